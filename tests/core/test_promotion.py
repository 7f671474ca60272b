"""Best effort that is admitted after all."""

from dataclasses import replace

from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.policies.slos_serve.feasibility import Feasible, Infeasible, feasible
from penstock_core.policies.slos_serve.policy import SlosServe
from penstock_core.policies.slos_serve.promotion import to_promote
from penstock_core.policies.slos_serve.workload import Workload
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.time_model import BatchWork

OPT = time_model("slos-serve-opt-6.7b-a100")


def asks(name: str, prompt: int = 500, ttft_s: float | None = 1.0, *, best_effort: bool = True) -> Job:
    return new_job(Request(name, "tier", 0.0, prompt, 4096, Targets(ttft_s, 0.1)), 50, best_effort)


def replica(
    *waiting: Job, running: tuple[Job, ...] = (), now_s: float = 0.0, blocks: int = 2000
) -> ReplicaView:
    held = sum(-(-job.computed_tokens // 16) for job in running)
    return ReplicaView(now_s, now_s, running, waiting, KvCache(blocks, blocks - held, 16), Limits(), OPT)


def promotes(view: ReplicaView) -> set[str]:
    return set(SlosServe().step(view, None)[0].promote)


def chosen_of(view: ReplicaView) -> str | None:
    return to_promote(Workload.of(view, 30.0))


def test_the_cheapest_request_that_fits_is_promoted() -> None:
    assert promotes(replica(asks("a", 900), asks("b", 300))) == {"b"}


def test_the_cheapest_of_the_most_valuable_set_is_promoted() -> None:
    """There is time for one of them. The small one costs less for its value, and is worth less."""
    small, large = asks("small", 6000, 1.2), asks("large", 11_500, 1.2)
    large = large._replace(request=replace(large.request, value=1.5))
    assert promotes(replica(small, large)) == {"large"}
    assert promotes(replica(small)) == {"small"}


def test_a_request_chosen_by_the_program_is_promoted_only_if_a_plan_confirms_it() -> None:
    """The fluid of the program knows no price: `large` would fit, and is too dear beside short requests."""
    queue = [asks(f"w{i}", 400, 0.9, best_effort=False) for i in range(16)]
    small, large = asks("small", 500, 1.0), asks("large", 3000, 1.0)
    large = large._replace(request=replace(large.request, value=1.2))
    assert promotes(replica(*queue, small, large)) == {"small"}


def test_a_request_is_promoted_without_a_lead_for_slow_steps() -> None:
    """Its verdict was best effort. As a new request it would be rejected."""
    tight = asks("tight", 250, OPT.prefill_seconds(250) + 0.1)
    view = replica(tight)
    rough = replace(view, model=replace(OPT, slow_chance=0.05, slow_excess=3.0))
    assert promotes(rough) == {"tight"}
    new = tight._replace(best_effort=False)
    assert not isinstance(feasible(Workload.of(replace(rough, waiting=()), 30.0).admitted, [new]), Feasible)


def test_no_request_is_promoted_if_the_cheapest_does_not_fit() -> None:
    queue = [asks(f"a{i}", 2500, 0.64, best_effort=False) for i in range(3)]
    patient = asks("patient", 1000, 9.0)
    assert promotes(replica(*queue, patient)) == {"patient"}
    assert promotes(replica(*queue, asks("cheap", 900, 0.3), patient)) == set()


def test_requests_without_targets_or_time_or_that_have_begun_to_answer_are_not_promoted() -> None:
    assert chosen_of(replica()) is None
    assert chosen_of(replica(asks("free", ttft_s=None))) is None
    assert chosen_of(replica(asks("late"), now_s=0.99)) is None
    assert chosen_of(replica(running=(advance(asks("begun"), 500, 1, 0.1),))) is None
    assert chosen_of(replica(asks("admitted", best_effort=False))) is None


def test_a_late_request_does_not_prevent_promotions() -> None:
    assert promotes(replica(asks("late", 300, 0.905), asks("b", 900, 9.0), now_s=0.9)) == {"b"}


def test_a_long_prompt_whose_attention_takes_too_long_is_neither_promoted_nor_admitted() -> None:
    """Its tokens alone take 1.3 s of the target of 2 s, with attention among them 3.5 s."""
    h100 = time_model("llama-3-8b-h100")
    long = asks("long", 70_000, 2.0)
    assert h100.seconds(BatchWork(70_000)) < 2.0 < h100.prefill_seconds(70_000)
    view = replace(replica(long, blocks=30_000), model=h100)
    assert promotes(view) == set()
    alone = Workload.of(replace(view, waiting=()), 30.0).admitted
    new = asks("long", 70_000, 2.0, best_effort=False)
    assert isinstance(feasible(alone, [new]), Infeasible)


def test_what_is_left_of_a_long_prompt_attends_to_all_before_it() -> None:
    h100 = time_model("llama-3-8b-h100")
    begun = advance(asks("begun", 80_000, 2.0), 40_000, 0, 0.0)
    assert h100.prefill_seconds(40_000) < 2.0 < h100.prefill_seconds(40_000, 40_000)
    assert promotes(replace(replica(running=(begun,), blocks=30_000), model=h100)) == set()


def test_a_request_with_a_begun_prompt_can_still_be_promoted() -> None:
    assert chosen_of(replica(running=(advance(asks("begun"), 200, 0, 0.1),), now_s=0.1)) == "begun"


def test_no_request_is_promoted_beyond_capacity() -> None:
    crowd = [asks(f"a{i}", 2500, best_effort=False) for i in range(4)]
    for count in range(5):
        view = replica(*crowd[:count], asks("b", 2500))
        fits = isinstance(feasible(Workload.of(view, 30.0).admitted, [asks("b", 2500)]), Feasible)
        assert (promotes(view) == {"b"}) == fits
    assert promotes(replica(asks("b", 2500), blocks=100)) == set()


def test_a_step_names_the_promoted_request_and_serves_it_as_admitted() -> None:
    view = replica(asks("b"), asks("free", ttft_s=None))
    step, _ = SlosServe().step(view, None)
    assert step.promote == ("b",)
    assert next(iter(step.tokens)) == "b"
    step, _ = SlosServe().step(replica(asks("free", ttft_s=None)), None)
    assert step.promote == ()
