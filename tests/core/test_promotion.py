"""Best effort that is admitted after all."""

from dataclasses import replace

from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.policies.slos_serve.feasibility import Fit, Promised, fit
from penstock_core.policies.slos_serve.policy import SlosServe
from penstock_core.policies.slos_serve.promotion import promotable, with_promoted
from penstock_core.timing.builtin_models import time_model

OPT = time_model("slos-serve-opt-6.7b-a100")


def asks(name: str, prompt: int = 500, ttft_s: float | None = 1.0, *, best_effort: bool = True) -> Job:
    return new_job(Request(name, "tier", 0.0, prompt, 4096, Targets(ttft_s, 0.1)), 50, best_effort)


def replica(
    *waiting: Job, running: tuple[Job, ...] = (), now_s: float = 0.0, blocks: int = 2000
) -> ReplicaView:
    held = sum(-(-job.computed_tokens // 16) for job in running)
    return ReplicaView(now_s, now_s, running, waiting, KvCache(blocks, blocks - held, 16), Limits(), OPT)


def test_the_cheapest_whose_targets_fit_is_promoted() -> None:
    chosen = promotable(replica(asks("long", 1500), asks("short", 300)))
    assert chosen is not None
    assert (chosen.request.id, chosen.best_effort) == ("short", False)


def test_nobody_is_promoted_who_has_no_targets_or_no_time_left_or_has_begun_to_answer() -> None:
    assert promotable(replica()) is None
    assert promotable(replica(asks("free", ttft_s=None))) is None
    assert promotable(replica(asks("late"), now_s=0.99)) is None
    assert promotable(replica(running=(advance(asks("begun"), 500, 1, 0.1),))) is None
    assert promotable(replica(asks("promised", best_effort=False))) is None


def test_who_has_begun_its_prompt_can_still_be_promoted() -> None:
    chosen = promotable(replica(running=(advance(asks("begun"), 200, 0, 0.1),), now_s=0.1))
    assert chosen is not None
    assert chosen.computed_tokens == 200


def test_nobody_is_promoted_past_what_fits() -> None:
    crowd = [asks(f"a{i}", 2500, best_effort=False) for i in range(4)]
    for count in range(5):
        view = replica(*crowd[:count], asks("b", 2500))
        fits = isinstance(fit(view, Promised.of(crowd[:count]), [asks("b", 2500)]), Fit)
        assert (promotable(view) is not None) == fits
    assert promotable(replica(asks("b", 2500), blocks=100)) is None


def test_the_step_says_whom_it_promotes_and_serves_it_as_admitted() -> None:
    view = replica(asks("b"), asks("free", ttft_s=None))
    step, _ = SlosServe().step(view, None)
    assert step.promote == ("b",)
    assert next(iter(step.tokens)) == "b"
    step, _ = SlosServe().step(replica(asks("free", ttft_s=None)), None)
    assert step.promote == ()


def test_only_the_one_changes_in_the_view() -> None:
    view = replica(asks("b"), asks("c"), running=(advance(asks("r"), 500, 1, 0.1),))
    chosen = promotable(view)
    assert chosen is not None
    after = with_promoted(view, chosen)
    assert after == replace(view, waiting=(chosen, view.waiting[1]))
