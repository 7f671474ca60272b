from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.external_engine.capacity import ReleaseWindow
from penstock_core.external_engine.planning_view import EngineJobs, planning_view
from penstock_core.external_engine.release import Release, in_order_of_arrival, release
from penstock_core.policies import build
from penstock_core.timing.time_model import Term, TimeModel

from examples import examples

MODEL = TimeModel("a millisecond a token, ten for each batch", (Term(0.001, 0.01),))
LIMITS = Limits(batch_tokens=200, running=8)
WINDOW = ReleaseWindow(lead_s=0.01)


def job(
    id: str,
    prompt: int = 50,
    out: int = 20,
    *,
    arrived_s: float = 0.0,
    ttft_s: float | None = 1.0,
    tpot_s: float | None = 0.1,
    offline: bool = False,
) -> Job:
    targets = Targets() if offline else Targets(ttft_s, tpot_s)
    return new_job(Request(id, "chat", arrived_s, prompt, 500, targets), out, offline)


def decode(id: str, now_s: float, ahead_s: float = 0.0, **more: object) -> Job:
    """One that has brought its first token so long ago that it is so far ahead of its deadlines."""
    fresh = job(id, **more)  # type: ignore[arg-type]
    begun = advance(fresh, fresh.pending_tokens, 1, now_s)
    return begun._replace(due_s=begun.due_s + ahead_s)


def view(held: Sequence[Job], now_s: float = 0.0, blocks: int = 1000, limits: Limits = LIMITS) -> ReplicaView:
    return ReplicaView(now_s, now_s, (), tuple(held), KvCache(blocks, blocks, 16), limits, MODEL)


def released(
    held: Sequence[Job],
    inside: EngineJobs = EngineJobs(),  # noqa: B008
    *,
    now_s: float = 0.0,
    blocks: int = 1000,
    limits: Limits = LIMITS,
    policy: str = "slos-serve",
    window: ReleaseWindow = WINDOW,
) -> Release[object]:
    chosen = build(policy)
    return release(chosen.step, view(held, now_s, blocks, limits), inside, chosen.start(), window)


def test_an_idle_engine_gets_the_requests_of_one_step_in_the_policys_order() -> None:
    due = [job("loose", 5, ttft_s=5.0), job("tight", 5, ttft_s=0.3), job("next", 5, ttft_s=0.9)]
    assert released(due).released == ("tight", "next", "loose")
    assert released(due, policy="vllm").released == ("loose", "tight", "next")


def test_without_held_requests_the_policy_is_not_called() -> None:
    def never(_: ReplicaView, memory: None) -> tuple[Step, None]:
        raise AssertionError

    assert release(never, view([]), EngineJobs(), None, WINDOW).released == ()


def test_an_engine_with_enough_work_gets_no_further_request() -> None:
    inside = EngineJobs((), (job("a", prompt=150),), since_s=0.0)
    assert released([job("b")], inside, now_s=0.01).released == ()
    assert released([job("b")], inside, now_s=0.155).released == ("b",)  # done at 0.16


def test_an_engine_later_than_predicted_gets_the_next_request() -> None:
    inside = EngineJobs((), (job("a", prompt=150),), since_s=0.0)
    assert released([job("b")], inside, now_s=9.0).released == ("b",)


def test_each_released_request_has_a_slot() -> None:
    inside = EngineJobs(tuple(decode(f"d{i}", 0.0, ahead_s=9.0) for i in range(6)))
    held = [job(f"h{i}", prompt=10) for i in range(4)]
    assert len(released(held, inside).released) == 2


def test_there_is_memory_for_all_of_them_at_their_peak() -> None:
    inside = EngineJobs((decode("d", 0.0, ahead_s=9.0, prompt=100, out=60),))
    assert released([job("h", prompt=100, out=60)], inside, blocks=20, policy="vllm").released == ("h",)
    assert released([job("h", prompt=100, out=61)], inside, blocks=19, policy="vllm").released == ()


def test_a_long_prompt_waits_until_decodes_inside_are_ahead_of_their_tpot() -> None:
    long = job("long", prompt=190, ttft_s=5.0)
    assert released([long], EngineJobs((decode("d", 0.0),)), policy="vllm").released == ()
    assert released([long], EngineJobs((decode("d", 0.0, ahead_s=0.3),)), policy="vllm").released == ("long",)


def test_a_prompt_of_many_iterations_lets_each_return_its_token() -> None:
    """Four iterations of about 0.1 s: the TPOT target is met, so no decode has to be ahead."""
    limits = Limits(batch_tokens=90, running=8)
    long = job("long", prompt=350, ttft_s=5.0)
    assert released([long], EngineJobs((decode("d", 0.0),)), policy="vllm", limits=limits).released == (
        "long",
    )
    slower = EngineJobs((decode("d", 0.0, tpot_s=0.07),))
    assert released([long], slower, policy="vllm", limits=limits).released == ()


def test_a_request_that_can_just_be_in_time_is_released_even_if_others_are_late() -> None:
    inside = EngineJobs((decode("d", 0.0),))
    assert released([job("long", prompt=190, ttft_s=0.22)], inside, policy="vllm").released == ("long",)
    lost = job("long", prompt=190, ttft_s=0.1)
    assert released([lost], inside, policy="vllm").released == ()
    impatient = replace(WINDOW, patience_s=0.0)
    assert released([lost], inside, policy="vllm", window=impatient).released == ("long",)


def test_a_decode_that_misses_its_tpot_in_any_case_delays_no_request() -> None:
    late = decode("d", 0.0, tpot_s=0.005)
    assert released([job("long", prompt=190)], EngineJobs((late,)), policy="vllm").released == ("long",)


def test_a_decode_without_a_tpot_delays_no_request() -> None:
    unpaced = decode("d", 0.0, tpot_s=None)
    assert released([job("long", prompt=190)], EngineJobs((unpaced,)), policy="vllm").released == ("long",)


def test_no_admitted_request_is_overtaken_for_lack_of_capacity() -> None:
    inside = EngineJobs((decode("d", 0.0),))
    held = [job("long", prompt=150, ttft_s=5.0), job("short", prompt=10, ttft_s=5.0)]
    assert released(held, inside, policy="vllm").released == ()
    assert released(held[1:], inside, policy="vllm").released == ("short",)


def test_best_effort_beyond_its_share_is_skipped() -> None:
    inside = EngineJobs(tuple(decode(f"b{i}", 0.0, offline=True) for i in range(4)))
    held = [job("more", prompt=10, offline=True), job("short", prompt=10)]
    assert released(held, inside, policy="vllm").released == ("short",)
    none = replace(WINDOW, best_effort_share=0.0)
    assert released(held, EngineJobs((decode("d", 0.0),)), policy="vllm", window=none).released == (
        "more",
        "short",
    )


def test_best_effort_that_would_exceed_a_tpot_is_skipped() -> None:
    held = [job("more", prompt=150, offline=True), job("short", prompt=10)]
    assert released(held, EngineJobs((decode("d", 0.0),)), policy="vllm").released == ("short",)


def test_best_effort_comes_last() -> None:
    held = [job("offline", prompt=10, offline=True), job("short", prompt=10)]
    assert released(held).released == ("short", "offline")


def test_a_promoted_request_counts_as_admitted() -> None:
    def promoting(seen: ReplicaView, requested: int) -> tuple[Step, int]:
        if requested == 0:
            return Step({"a": 1}, promote=("b",)), 1
        assert [job.best_effort for job in seen.waiting] == [False]
        return Step({"b": 1}), 2

    held = [job("a", prompt=1), job("b", prompt=1, offline=True)]
    decided = release(promoting, view(held), EngineJobs(), 0, replace(WINDOW, lead_s=0.02))
    assert (decided.released, decided.promote, decided.memory) == (("a", "b"), ("b",), 2)


def test_an_idle_engine_gets_a_request_whatever_the_policy_decides() -> None:
    def starts_no_request(_: ReplicaView, memory: None) -> tuple[Step, None]:
        return Step(), memory

    held = [job("a"), job("b")]
    assert release(starts_no_request, view(held), EngineJobs(), None, WINDOW).released == ("a",)
    busy = EngineJobs((decode("d", 0.0, ahead_s=9.0),))
    assert release(starts_no_request, view(held), busy, None, WINDOW).released == ()


def test_if_the_policy_fails_requests_are_released_in_order_of_arrival() -> None:
    held = [job("a", ttft_s=5.0), job("b", ttft_s=0.5)]
    assert release(in_order_of_arrival, view(held), EngineJobs(), None, WINDOW).released == ("a", "b")


def test_the_forecast_is_when_the_prompts_in_the_engine_are_computed() -> None:
    running = decode("d", 0.0, prompt=40)
    inside = EngineJobs((running,), (job("p", prompt=350),), since_s=0.0)
    ahead = planning_view(view([job("h")]), inside)
    assert ahead.busy_until_s == pytest.approx(0.372)  # 199 and 151 tokens, each beside the decode's
    d, p = ahead.running
    assert (d.generated_tokens, d.computed_tokens) == (3, 42)
    assert (p.generated_tokens, p.decoding, p.anchor is not None) == (1, True, True)
    assert ahead.kv.free_blocks == 1000 - 3 - 22
    assert [job.request.id for job in ahead.waiting] == ["h"]
    half_done = planning_view(replace(view([]), now_s=0.21, busy_until_s=0.21), inside)
    assert half_done.busy_until_s == pytest.approx(0.372)
    assert half_done.running[0].generated_tokens == 2


def test_no_request_inside_is_preempted() -> None:
    ahead = planning_view(view([]), EngineJobs((decode("b", 0.0, offline=True),)))
    (rooted,) = ahead.running
    assert (rooted.best_effort, rooted.due_s, rooted.tpot_s) == (False, inf, None)
    assert ahead.busy_until_s == 0.0


jobs = st.builds(
    lambda prompt, out, ttft_s, tpot_s, offline, arrived_s: job(
        "?", prompt, out, arrived_s=arrived_s, ttft_s=ttft_s, tpot_s=tpot_s, offline=offline
    ),
    st.integers(1, 400),
    st.integers(1, 40),
    st.floats(0.05, 3.0),
    st.one_of(st.none(), st.floats(0.02, 0.2)),
    st.booleans(),
    st.floats(0.0, 2.0),
)
POLICY = st.sampled_from(["slos-serve", "annealing", "vllm", "sola", "accelgen", "sarathi", "fcfs", "orca"])


class Engine:
    """First come first served, in virtual time, as foreseen or up to twice as slow."""

    def __init__(self, slowness: float) -> None:
        self.prefills: list[Job] = []
        self.decodes: dict[str, Job] = {}
        self.since_s, self.slowness = 0.0, slowness

    @property
    def inside(self) -> EngineJobs:
        return EngineJobs(tuple(self.decodes.values()), tuple(self.prefills), self.since_s)

    def take(self, came: Job, now_s: float) -> None:
        if not self.prefills:
            self.since_s = now_s
        self.prefills.append(came)

    def iterate(self, now_s: float) -> tuple[float, list[str]]:
        """When it ends, and which requests ended with it."""
        left = LIMITS.batch_tokens - len(self.decodes)
        for i, prefill in enumerate(self.prefills):
            chunk = min(prefill.pending_tokens, left)
            left -= chunk
            self.prefills[i] = prefill._replace(computed_tokens=prefill.computed_tokens + chunk)
        end_s = now_s + self.slowness * (0.01 + 0.001 * (LIMITS.batch_tokens - left))
        self.decodes = {id: advance(one, 1, 1, end_s) for id, one in self.decodes.items()}
        done = [one for one in self.prefills if not one.pending_tokens]
        if done:
            self.prefills = [one for one in self.prefills if one.pending_tokens]
            self.since_s = end_s
        for one in done:
            self.decodes[one.request.id] = advance(one, 0, 1, end_s)
        ends = {id: one.request.max_output_tokens for id, one in self.decodes.items()}
        gone = [id for id, one in self.decodes.items() if one.generated_tokens >= ends[id]]
        return end_s, [self.decodes.pop(id).request.id for id in gone]


@examples(60)
@given(st.lists(jobs, min_size=1, max_size=14), POLICY, st.floats(1.0, 2.0), st.integers(30, 60))
def test_each_request_is_released_once_within_bounds_and_in_the_policy_s_order(
    drawn: list[Job], policy: str, slowness: float, blocks: int
) -> None:
    chosen = build(policy)
    memory, engine, now_s = chosen.start(), Engine(slowness), 0.0
    coming = [
        one._replace(request=replace(one.request, id=f"j{i}", max_output_tokens=one.output_tokens))
        for i, one in enumerate(sorted(drawn, key=lambda one: one.request.arrival_s))
    ]
    held: list[Job] = []
    came_in: list[str] = []
    ended: list[str] = []
    for _ in range(20_000):
        if len(ended) == len(drawn):
            break
        while coming and coming[0].request.arrival_s <= now_s:
            held.append(coming.pop(0))
        steps: list[Step] = []

        def watched(seen: ReplicaView, memory: object) -> tuple[Step, object]:
            step, memory = chosen.step(seen, memory)
            steps.append(step)  # noqa: B023
            return step, memory

        busy = bool(engine.inside.jobs)
        decided = release(watched, view(held, now_s, blocks), engine.inside, memory, WINDOW)
        memory = decided.memory
        given = {one.request.id: one for one in held}
        order = [id for step in steps for id in step.tokens if id in given]
        if order:
            assert list(decided.released) == [id for id in dict.fromkeys(order) if id in decided.released]
        for id in decided.released:
            engine.take(given[id], now_s)
        held = [one for one in held if one.request.id not in decided.released]
        came_in += decided.released
        assert busy or decided.released or not given
        assert len(engine.inside.jobs) <= LIMITS.running
        if engine.inside.jobs:
            now_s, gone = engine.iterate(now_s)
            ended += gone
        else:
            now_s = coming[0].request.arrival_s
    assert sorted(came_in) == sorted(ended) == sorted(f"j{i}" for i in range(len(drawn)))
