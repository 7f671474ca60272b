"""The simulator itself: every request has one end, time and memory are the engine's, seeds reproduce runs.

Policies here are small and literal, so that expected results can be computed by hand.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, islice
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core import policies
from penstock_core.domain.policy import Knobs, Policy, Step
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.slo import Slo, Tier
from penstock_core.domain.verdict import Admitted, BestEffort, Reason, Rejected, Verdict
from penstock_core.routing.attempts import Backup
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import Arrival, Fleet, LengthKnowledge, SimulatedOutcome, simulate
from penstock_simulator.simulation.replica import StuckPolicy

from examples import examples

MODEL = time_model("slos-serve-opt-6.7b-a100")
TIERS = {
    "chat": Tier("chat", Slo(ttft_slowdown=5, tpot_s=0.1)),
    "coder": Tier("coder", Slo(ttft_s=1.0, tpot_s=0.05)),
    "thinker": Tier("thinker", Slo(ttft_s=5.0, tpot_s=0.03, answer_tpot_s=0.2)),
    "batch": Tier("batch", best_effort=True),
}
EXACT = Fleet("vllm", MODEL, 43296, TIERS, "chat", truth=TruthKind.EXACT, lengths=LengthKnowledge.KNOWN)
LIVE = replace(EXACT, policy="slos-serve", truth=TruthKind.MEASURED, lengths=LengthKnowledge.PREDICTED)

Build = Callable[[str, Knobs], Any]


@dataclass
class Scripted:
    """vLLM's steps with scripted verdicts.

    views: what it was shown when it was asked. together: requests decided in one call.
    """

    answer: Callable[[ReplicaView, Job], Verdict] = lambda view, job: Admitted(0.0, 0.0)
    policy: Policy[Any] = field(default_factory=lambda: policies.build("vllm"))
    views: list[ReplicaView] = field(default_factory=list)
    together: list[list[str]] = field(default_factory=list)

    def start(self) -> Any:
        return self.policy.start()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        self.views.append(view)
        self.together.append([job.request.id for job in new])
        return [self.answer(view, job) for job in new]

    def step(self, view: ReplicaView, memory: Any) -> tuple[Step, Any]:
        return self.policy.step(view, memory)


def handing_out(*built: Any) -> Build:
    """A builder that gives each replica the next of these."""
    left = iter(built)
    return lambda name, knobs: next(left)


def traffic(rate_rps: float, seed: int = 1, tiers: Sequence[str] = ("chat", "coder")) -> Iterator[Arrival]:
    random, at_s = Random(seed), 0.0
    for i in count():
        at_s += random.expovariate(rate_rps)
        prompt, output = random.randint(50, 1500), random.randint(1, 120)
        yield Arrival(str(i), at_s, tiers[i % len(tiers)], prompt, output)


def ended(
    fleet: Fleet, arrivals: Iterator[Arrival] | list[Arrival], **more: Any
) -> dict[str, SimulatedOutcome]:
    return {outcome.id: outcome for outcome in simulate(fleet, arrivals, 0, **more)}


def test_a_lone_request_takes_the_time_models_prediction() -> None:
    fleet = replace(EXACT, hop_latency_s=0.125)
    only = ended(fleet, [Arrival("a", 3.0, "", 500, 3)])["a"]
    decode_s = MODEL.prefill_seconds(1)
    assert (only.tier, only.verdict, only.replica, only.hops) == ("chat", "admitted", "r0", 1)
    assert (only.prompt_tokens, only.output_tokens, only.arrival_s) == (500, 3, 3.0)
    assert only.ttft_s == pytest.approx(0.125 + MODEL.prefill_seconds(500))
    assert only.tpot_s == pytest.approx(decode_s)
    assert only.e2e_s == pytest.approx(0.125 + MODEL.prefill_seconds(500) + 2 * decode_s)
    assert only.met


@pytest.mark.parametrize("policy", ["slos-serve", "vllm"])
@pytest.mark.parametrize("order", ["round-robin", "least-loaded"])
def test_a_seed_reproduces_a_run(policy: str, order: str) -> None:
    fleet = replace(LIVE, policy=policy, order=order, replicas=3, speculation=Speculation(3, 0.7))

    def run(seed: int) -> list[SimulatedOutcome]:
        return list(simulate(fleet, islice(traffic(20.0), 120), seed))

    assert run(5) == run(5)
    assert run(5) != run(6)


def test_arrivals_are_read_no_earlier_than_they_are_due() -> None:
    read = 0

    def endless() -> Iterator[Arrival]:
        nonlocal read
        for arrival in traffic(2.0):
            read += 1
            yield arrival

    outcomes = list(islice(simulate(LIVE, endless(), 0), 30))
    assert len(outcomes) == 30
    assert read < 60


@st.composite
def workloads(draw: st.DrawFn) -> list[Arrival]:
    """Bursts, sessions out of step, thinking, requests that fit nowhere."""
    at_s, arrivals = 0.0, []
    for i in range(draw(st.integers(1, 25))):
        at_s += draw(st.sampled_from([0.0, 0.0, 0.01, 0.5]))
        output = draw(st.integers(1, 40))
        session = draw(st.sampled_from(["", "", "s", "t"]))
        arrivals.append(
            Arrival(
                str(i),
                at_s,
                draw(st.sampled_from(["", *TIERS])),
                draw(st.sampled_from([1, 100, 900, 2500])),
                output,
                draw(st.integers(0, output)),
                session,
                draw(st.integers(0, 2)) if session else 0,
            )
        )
    return arrivals


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    """Small memories, so that it is always short."""
    return replace(
        draw(st.sampled_from([EXACT, LIVE])),
        policy=draw(st.sampled_from(["slos-serve", "vllm"])),
        replicas=draw(st.sampled_from([1, 3])),
        backup=draw(st.sampled_from(list(Backup))),
        kv_tokens=2560,
        hop_latency_s=draw(st.sampled_from([0.0, 0.002])),
        speculation=draw(st.sampled_from([None, Speculation(3, 0.6)])),
        routers=draw(st.sampled_from([1, 2])),
    )


@given(workloads(), fleets())
@examples(60)
def test_every_arrival_has_exactly_one_outcome(arrivals: list[Arrival], fleet: Fleet) -> None:
    checking = [Conserving(policies.build(fleet.policy)) for _ in range(fleet.replicas)]
    outcomes = list(simulate(fleet, arrivals, 0, handing_out(*checking)))
    by_id = {outcome.id: outcome for outcome in outcomes}
    assert len(outcomes) == len(by_id) == len(arrivals)
    for arrival in arrivals:
        outcome = by_id[arrival.id]
        fits = arrival.prompt_tokens + arrival.output_tokens <= 2560
        assert (outcome.verdict == "failed") == (not fits)
        served = outcome.verdict in {"admitted", "best-effort"}
        assert outcome.output_tokens == (arrival.output_tokens if served else 0)
        assert (outcome.e2e_s is not None) == bool(outcome.replica) == served
        assert outcome.arrival_s >= arrival.arrival_s
        assert outcome.hops <= min(fleet.max_hops, fleet.replicas)


@dataclass
class Conserving:
    """A policy whose every view has to account for all blocks."""

    policy: Policy[Any]

    def start(self) -> Any:
        return self.policy.start()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> Any:
        self.check(view)
        return self.policy.admit(view, new)

    def step(self, view: ReplicaView, memory: Any) -> tuple[Step, Any]:
        self.check(view)
        held = sum(view.kv.blocks_for(job.computed_tokens) for job in view.running)
        assert view.kv.total_blocks - view.kv.free_blocks >= held
        return self.policy.step(view, memory)

    def check(self, view: ReplicaView) -> None:
        assert 0 <= view.kv.free_blocks <= view.kv.total_blocks
        assert view.busy_until_s >= view.now_s
        assert len(view.running) <= view.limits.running
        if not view.running:
            assert view.kv.free_blocks == view.kv.total_blocks


def test_new_requests_of_one_instant_at_one_replica_are_decided_together() -> None:
    scripted = Scripted()
    arrivals = [Arrival(str(i), at_s, "chat", 100, 5) for i, at_s in enumerate([1.0, 1.0, 1.0, 1.2])]
    ended(EXACT, arrivals, build=handing_out(scripted))
    assert scripted.together == [["0", "1", "2"], ["3"]]


def test_a_new_request_is_decided_immediately_on_the_state_after_the_iteration() -> None:
    scripted = Scripted()
    arrivals = [Arrival("a", 0.0, "chat", 800, 5), Arrival("b", 0.01, "chat", 100, 5)]
    ended(replace(EXACT, hop_latency_s=0.0), arrivals, build=handing_out(scripted))
    second = scripted.views[1]
    assert second.now_s == 0.01
    assert second.busy_until_s == pytest.approx(MODEL.prefill_seconds(800))
    assert [(job.request.id, job.decoding) for job in second.running] == [("a", True)]


def test_rejected_requests_hop_and_every_hop_takes_time() -> None:
    full = Scripted(lambda view, job: Rejected(Reason.KV_MEMORY))
    open_ = Scripted()
    fleet = replace(EXACT, replicas=3, hop_latency_s=0.1)
    outcome = ended(fleet, [Arrival("a", 0.0, "chat", 500, 3)], build=handing_out(full, full, open_))["a"]
    assert (outcome.replica, outcome.hops, outcome.verdict) == ("r2", 3, "admitted")
    assert outcome.ttft_s == pytest.approx(0.3 + MODEL.prefill_seconds(500))


@pytest.mark.parametrize(
    ("backup", "verdict", "met"),
    [(Backup.BEST_EFFORT, "best-effort", True), (Backup.REJECT, "rejected", False)],
)
def test_the_backup_serves_best_effort_or_not_at_all(backup: Backup, verdict: str, met: bool) -> None:
    """Best effort that happens to be in time has kept its targets."""
    full = Scripted(lambda view, job: Rejected(Reason.KV_MEMORY))
    fleet = replace(EXACT, backup=backup, max_hops=1)
    outcome = ended(fleet, [Arrival("a", 0.0, "chat", 500, 3)], build=handing_out(full))["a"]
    assert (outcome.verdict, outcome.met, outcome.hops) == (verdict, met, 1)


def test_best_effort_is_accepted_without_a_decision() -> None:
    scripted = Scripted(lambda view, job: Rejected(Reason.NEVER))
    outcome = ended(EXACT, [Arrival("a", 0.0, "batch", 500, 3)], build=handing_out(scripted))["a"]
    assert outcome.verdict == "best-effort"
    assert scripted.together == []


def test_stale_snapshots_change_routes_and_lose_no_request() -> None:
    def run(age_s: float) -> list[SimulatedOutcome]:
        fleet = replace(LIVE, replicas=4, order="least-loaded", snapshot_age_s=age_s, backup=Backup.REJECT)
        return sorted(simulate(fleet, islice(traffic(16.0), 300), 0))

    fresh, stale = run(0.0), run(3.0)
    assert [outcome.id for outcome in fresh] == [outcome.id for outcome in stale]
    assert [outcome.replica for outcome in fresh] != [outcome.replica for outcome in stale]


def test_a_stage_is_sent_when_the_previous_one_has_ended() -> None:
    arrivals = [
        Arrival("a", 0.0, "chat", 800, 50, session="s", stage=0),
        Arrival("other", 0.0, "chat", 100, 5),
        Arrival("b", 0.0, "chat", 900, 10, session="s", stage=1),
        Arrival("c", 30.0, "chat", 900, 10, session="s", stage=2),
    ]
    outcomes = ended(EXACT, arrivals)
    first = outcomes["a"]
    assert first.e2e_s is not None
    assert outcomes["b"].arrival_s == first.arrival_s + first.e2e_s
    assert outcomes["c"].arrival_s == 30.0
    assert (outcomes["c"].session, outcomes["c"].stage) == ("s", 2)
    assert outcomes["b"].ttft_s is not None
    assert outcomes["b"].ttft_s < first.e2e_s  # its clock starts when it is sent


@pytest.mark.parametrize("backup", list(Backup))
def test_a_session_whose_turn_was_not_admitted_continues_as_best_effort(backup: Backup) -> None:
    scripted = Scripted(
        lambda view, job: Rejected(Reason.KV_MEMORY) if job.request.id == "b" else Admitted(0, 0)
    )
    arrivals = [Arrival(name, 0.0, "chat", 50, 5, session="s", stage=i) for i, name in enumerate("abcd")]
    arrivals.append(Arrival("e", 900.0, "chat", 50, 5, session="s", stage=0))
    fleet = replace(EXACT, backup=backup)
    outcomes = ended(fleet, arrivals, build=handing_out(scripted))
    second = "best-effort" if backup is Backup.BEST_EFFORT else "rejected"
    verdicts = [outcomes[name].verdict for name in "abcde"]
    assert verdicts == ["admitted", second, "best-effort", "best-effort", "admitted"]


def test_an_old_session_is_forgotten() -> None:
    scripted = Scripted(
        lambda view, job: Rejected(Reason.KV_MEMORY) if job.request.id == "a" else Admitted(0, 0)
    )
    arrivals = [
        Arrival("a", 0.0, "chat", 50, 5, session="s", stage=0),
        Arrival("x", 5000.0, "chat", 50, 5, session="t", stage=0),
        Arrival("b", 9000.0, "chat", 50, 5, session="s", stage=1),
    ]
    outcomes = ended(EXACT, arrivals, build=handing_out(scripted))
    assert outcomes["a"].verdict == "best-effort"
    assert outcomes["b"].verdict == "admitted"


def test_thinking_and_answer_have_separate_tpot_targets() -> None:
    """A long prompt delays its answer: that would miss the TPOT target of thinking, not its own."""
    scripted = Scripted()
    thought_s = 0.001 + MODEL.prefill_seconds(100) + 39 * MODEL.prefill_seconds(1)
    arrivals = [
        Arrival("a", 0.0, "thinker", 100, 60, thinking_tokens=40),
        Arrival("long", thought_s + 0.1, "batch", 8000, 2),
    ]
    outcomes = ended(EXACT, arrivals, build=handing_out(scripted))
    assert outcomes["a"].met
    never_thought = [arrivals[0]._replace(thinking_tokens=60), arrivals[1]]
    assert not ended(EXACT, never_thought)["a"].met


def test_the_engine_gives_the_answer_its_own_tpot() -> None:
    scripted = Scripted()
    arrivals = [
        Arrival("a", 0.0, "thinker", 100, 30, thinking_tokens=10),
        Arrival("early", 0.15, "chat", 10, 2),
        Arrival("late", 0.6, "chat", 10, 2),
    ]
    ended(EXACT, arrivals, build=handing_out(scripted))
    paces = [next(job.tpot_s for job in view.running if job.request.id == "a") for view in scripted.views[1:]]
    assert paces == [0.03, 0.2]


def test_a_promoted_job_counts_as_admitted_and_keeps_its_verdict() -> None:
    @dataclass
    class Promoting(Scripted):
        seen: tuple[bool, ...] = ()

        def step(self, view: ReplicaView, memory: Any) -> tuple[Step, Any]:
            step, memory = self.policy.step(view, memory)
            self.seen += tuple(job.best_effort for job in view.running)
            waiting = tuple(job.request.id for job in view.waiting if job.best_effort)
            return replace(step, promote=waiting), memory

    promoting = Promoting()
    outcome = ended(EXACT, [Arrival("a", 0.0, "batch", 50, 4)], build=handing_out(promoting))["a"]
    assert outcome.verdict == "best-effort"
    assert promoting.seen == (False, False, False)


def test_speculation_returns_several_tokens_and_its_acceptance_is_measured() -> None:
    @dataclass
    class Drafting(Scripted):
        believed: Speculation = field(default_factory=lambda: Speculation(3, 0.9))

        def step(self, view: ReplicaView, memory: Any) -> tuple[Step, Any]:
            step, memory = self.policy.step(view, memory)
            assert view.speculation is not None
            self.believed = view.speculation
            return replace(step, drafts={job.request.id: 3 for job in view.running if job.decoding}), memory

    drafting = Drafting()
    fleet = replace(EXACT, speculation=Speculation(3, 0.9))
    fast = ended(fleet, [Arrival("a", 0.0, "chat", 100, 900)], build=handing_out(drafting))["a"]
    slow = ended(EXACT, [Arrival("a", 0.0, "chat", 100, 900)])["a"]
    assert fast.tpot_s is not None
    assert slow.tpot_s is not None
    assert fast.tpot_s < slow.tpot_s / 2
    assert fast.output_tokens == 900
    assert drafting.believed.acceptance != 0.9
    assert drafting.believed.acceptance_of("chat") == pytest.approx(0.9, abs=0.05)


def test_lengths_are_learned_by_each_replica_and_predictions_follow_a_long_answer() -> None:
    scripted = Scripted()
    arrivals = [Arrival(str(i), 10.0 * i, "chat", 100, 30) for i in range(60)]
    arrivals += [Arrival("long", 601.0, "chat", 100, 400), Arrival("next", 605.0, "chat", 100, 5)]
    ended(replace(EXACT, lengths=LengthKnowledge.PREDICTED), arrivals, build=handing_out(scripted))
    (running,) = scripted.views[-1].running
    assert running.request.id == "long"
    assert 100 < running.generated_tokens + 1 < running.output_tokens

    first, last = (view.now_s for view in (scripted.views[0], scripted.views[-1]))
    assert first < last


def test_a_measured_truth_is_learned_and_an_exact_one_is_known() -> None:
    scripted, exact = Scripted(), Scripted()
    ended(LIVE, islice(traffic(2.0), 60), build=handing_out(scripted))
    ended(EXACT, islice(traffic(2.0), 60), build=handing_out(exact))
    assert {view.model for view in exact.views} == {MODEL}
    assert len({view.model.scale for view in scripted.views}) > 10


@pytest.mark.parametrize("truth_model", ["llama-3-8b-a100", ""])
def test_the_ground_truth_may_be_another_engine_than_the_planned_one(truth_model: str) -> None:
    fleet = replace(LIVE, policy="vllm", truth_model=truth_model)
    outcome = ended(fleet, [Arrival("a", 0.0, "chat", 100, 200)])["a"]
    assert outcome.tpot_s is not None
    fast = outcome.tpot_s < 0.6 * MODEL.prefill_seconds(1)
    assert fast == bool(truth_model)


def test_a_policy_that_waits_is_called_again() -> None:
    @dataclass
    class Late(Scripted):
        def step(self, view: ReplicaView, memory: Any) -> tuple[Step, Any]:
            return self.policy.step(view, memory) if view.now_s >= 2.0 else (Step(), memory)

    arrivals = [Arrival("a", 0.5, "chat", 50, 2), Arrival("b", 0.7, "chat", 50, 2)]
    outcomes = ended(EXACT, arrivals, build=handing_out(Late()))
    assert outcomes["a"].ttft_s == pytest.approx(1.5 + MODEL.prefill_seconds(100), abs=0.011)
    assert outcomes["b"].e2e_s is not None


def test_a_policy_that_plans_no_batch_is_reported() -> None:
    @dataclass
    class Idle(Scripted):
        def step(self, view: ReplicaView, memory: Any) -> tuple[Step, Any]:
            return Step(), memory

    with pytest.raises(StuckPolicy, match="r0 has 1 requests, and its policy has planned no batch for 600 s"):
        ended(EXACT, [Arrival("a", 0.0, "chat", 50, 2)], build=handing_out(Idle()))


@pytest.mark.parametrize("replicas", [0, 65])
def test_the_number_of_replicas_is_bounded_by_distinct_seeds(replicas: int) -> None:
    with pytest.raises(ValueError, match="supports 1 to 64"):
        simulate(replace(EXACT, replicas=replicas), [], 0)


def test_a_full_replica_accepts_no_request() -> None:
    """Three requests at once: one more than the replica may hold, so the last is rejected."""
    fleet = replace(EXACT, limits=Limits(running=1), max_waiting=1)
    outcomes = ended(fleet, [Arrival(name, 0.0, "chat", 100, 5) for name in "abc"])
    assert [outcomes[name].verdict for name in "abc"] == ["admitted", "admitted", "rejected"]


def test_a_best_effort_verdict_is_served_as_best_effort() -> None:
    scripted = Scripted(lambda view, job: BestEffort())
    arrivals = [Arrival("a", 0.0, "chat", 50, 20), Arrival("b", 0.1, "chat", 50, 2)]
    outcomes = ended(EXACT, arrivals, build=handing_out(scripted))
    assert outcomes["a"].verdict == "best-effort"
    assert [job.best_effort for job in scripted.views[1].running] == [True]
