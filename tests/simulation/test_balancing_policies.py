"""Whole runs of the policies that reject no request and balance targets: sola and accelgen.

Whatever arrives, the engine accepts every step, no step is empty while a request could progress, and every
request is served in the end. Decisions depend on how times compare, not on the unit that they are in.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.policy import Knobs, Policy, Step
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Judge, Slo, Targets, Tier
from penstock_core.policies.accelgen.policy import AccelGen
from penstock_core.policies.accelgen.token_budget import READING_TBT_S, budget
from penstock_core.policies.sola.policy import Sola
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork, Term, TimeModel
from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.simulation import Arrival, Fleet, simulate

from examples import examples

MODEL = TimeModel("small", (Term(1e-4, 0.010), Term(5e-5, 0.012)), 1e-6, 1e-8)
KV_TOKENS = 4096
POLICIES: dict[str, Policy[Any]] = {"sola": Sola(), "accelgen": AccelGen()}

RoutingRequest = tuple[Job, int]
"""A request as it arrives, and how long its answer really is."""


def run(
    policy: Policy[Any],
    requested: Sequence[RoutingRequest],
    limits: Limits,
    model: TimeModel = MODEL,
    speculation: Speculation | None = None,
) -> list[tuple[ReplicaView, Step]]:
    """Serve all requests; return each step with its view. Fail if the engine makes no progress."""
    engine = EngineState(KV_TOKENS, limits)
    coming, now_s, memory = sorted(requested, key=lambda a: -a[0].request.arrival_s), 0.0, policy.start()
    steps: list[tuple[ReplicaView, Step]] = []
    while coming or engine.running or engine.waiting:
        if not (engine.running or engine.waiting):
            now_s = max(now_s, coming[-1][0].request.arrival_s)
        while coming and coming[-1][0].request.arrival_s <= now_s:
            engine.add(*coming.pop())
        view = engine.view(now_s, now_s, model, speculation)
        step, memory = policy.step(view, memory)
        assert step.tokens, "no request progresses"
        steps.append((view, step))
        work = engine.start(step).shape().work()
        now_s += model.seconds(work if work.tokens else BatchWork(1))
        engine.finish(now_s)
    return steps


requests = st.builds(
    lambda at_s, prompt, predicted, answer, targets, best_effort: (
        at_s,
        prompt,
        predicted,
        answer,
        targets,
        best_effort,
    ),
    st.floats(0, 1.5),
    st.integers(1, 1500),
    st.integers(2, 250),
    st.integers(1, 120),
    st.builds(
        Targets,
        st.sampled_from((None, 0.001, 0.2, 1.0)),
        st.sampled_from((None, 0.001, 0.03, 0.2)),
        st.sampled_from((None, None, 2.0)),
        st.sampled_from(list(Judge)),
    ),
    st.sampled_from((False, False, True)),
)


def routing_request(drawn: Sequence[tuple[float, int, int, int, Targets, bool]]) -> list[RoutingRequest]:
    return [
        (new_job(Request(f"r{i:02}", "tier", at_s, prompt, 4096, targets), predicted, best_effort), answer)
        for i, (at_s, prompt, predicted, answer, targets, best_effort) in enumerate(drawn)
    ]


@pytest.mark.parametrize("name", POLICIES)
@examples(25)
@given(
    drawn=st.lists(requests, min_size=1, max_size=12),
    limits=st.builds(Limits, st.sampled_from((64, 300, 8192)), st.sampled_from((3, 256))),
    speculation=st.sampled_from((None, Speculation(3, 0.7))),
)
def test_every_step_is_possible_and_all_requests_are_served(
    name: str,
    drawn: list[tuple[float, int, int, int, Targets, bool]],
    limits: Limits,
    speculation: Speculation | None,
) -> None:
    """Also where memory, slots and tokens are short, lengths are wrong and targets cannot be kept."""
    run(POLICIES[name], routing_request(drawn), limits, speculation=speculation)


def random_load(seed: int, scale: float = 1.0) -> list[RoutingRequest]:
    random, at_s, requested = Random(seed), 0.0, []
    for i in range(60):
        at_s += random.expovariate(12.0)
        targets = Targets(
            random.choice((0.5, 1.0)) * scale,
            random.choice((0.03, 0.1)) * scale,
            random.choice((None, None, 4.0 * scale)),
            random.choice(list(Judge)),
        )
        request = Request(f"r{i:02}", "tier", at_s * scale, random.randint(5, 900), 4096, targets)
        requested.append(
            (new_job(request, random.randint(2, 150), random.random() < 0.1), random.randint(1, 150))
        )
    return requested


def slowed(model: TimeModel, scale: float) -> TimeModel:
    terms = tuple(Term(t.token_s * scale, t.fixed_s * scale) for t in model.terms)
    return replace(
        model,
        terms=terms,
        context_token_s=model.context_token_s * scale,
        prefill_work_s=model.prefill_work_s * scale,
    )


@pytest.mark.parametrize("name", POLICIES)
def test_decisions_do_not_change_if_all_times_are_four_times_as_long(name: str) -> None:
    """Times, targets, rates and knobs scaled together; by a power of two, so that no rounding differs."""
    scaled: dict[str, Policy[Any]] = {
        "sola": Sola(surplus_s=4 * Sola().surplus_s, aging_s=120.0),
        "accelgen": AccelGen(gamma_s=3.0, reading_tbt_s=4 * READING_TBT_S, aging_s=120.0),
    }
    limits = Limits(2048, 24)
    as_it_is = [step for _, step in run(POLICIES[name], random_load(1), limits)]
    slow = [step for _, step in run(scaled[name], random_load(1, 4.0), limits, slowed(MODEL, 4.0))]
    assert [(s.tokens, s.preempt) for s in slow] == [(s.tokens, s.preempt) for s in as_it_is]


@pytest.mark.parametrize("seed", range(3))
def test_accelgen_keeps_its_token_budget(seed: int) -> None:
    """But for a batch of decodes alone that is longer, and for the one that must progress when none may."""
    for view, step in run(POLICIES["accelgen"], random_load(seed), Limits()):
        decodes = [job for job in view.running if job.decoding and not job.best_effort]
        room = budget(view, decodes, READING_TBT_S)
        offline = {job.request.id for job in (*view.running, *view.waiting) if job.best_effort}
        tokens = [tokens for job_id, tokens in step.tokens.items() if job_id not in offline]
        assert sum(tokens) <= max(room.tokens, len(decodes)) or len(tokens) == 1


@pytest.mark.parametrize("seed", range(3))
def test_sola_serves_every_request_that_fits_the_batch(seed: int) -> None:
    """While decodes are minimised all of them are in the batch; else it holds prompts."""
    for view, step in run(POLICIES["sola"], random_load(seed), Limits()):
        decodes = [job.request.id for job in view.running if job.decoding and not job.best_effort]
        left_out = set(decodes) - set(step.tokens) - set(step.preempt)
        prompts = [job for job in (*view.running, *view.waiting) if not job.decoding]
        assert not left_out or any(job.request.id in step.tokens for job in prompts)


@pytest.mark.parametrize("name", POLICIES)
def test_a_pool_that_names_the_policy_is_served(name: str) -> None:
    """Far over capacity, with predicted lengths and an engine that is not as the planner thinks."""
    random, at_s, arrivals = Random(3), 0.0, []
    for i in range(70):
        at_s += random.expovariate(20.0)
        tier = random.choice(("chat", "code", "batch"))
        arrivals.append(Arrival(f"{i:03}", at_s, tier, random.randint(5, 2500), random.randint(1, 300)))
    tiers = {
        "chat": Tier("chat", Slo(ttft_slowdown=5, tpot_s=0.1)),
        "code": Tier("code", Slo(ttft_s=0.5, tpot_s=0.05, judge=Judge.WINDOW)),
        "batch": Tier("batch", best_effort=True),
    }
    model = time_model("llama-3-8b-a100")
    fleet = Fleet(name, model, 20_000, tiers, "chat", knobs=Knobs(aging_s=5.0))
    assert all(
        outcome.output_tokens == arrival.output_tokens
        for outcome, arrival in zip(
            sorted(simulate(fleet, arrivals, 1), key=lambda o: o.id), arrivals, strict=True
        )
    )
