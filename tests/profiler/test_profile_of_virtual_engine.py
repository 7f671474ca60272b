"""An engine whose iterations take a time model's durations is measured in virtual time.

Whatever the profiler finds can be compared with the model that the engine runs by.
"""

from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest
from penstock_core.timing.fit import Point
from penstock_core.timing.time_model import BatchWork, chunk_work
from penstock_profiler import (
    DecodeProbe,
    EngineError,
    NoTimeModel,
    PrefillProbe,
    Probe,
    Profile,
    ProfileLimits,
    profile,
)
from penstock_profiler.engine import ACCEPTED, DRAFTED
from penstock_profiler.measure import PROBE_TIMEOUT_S, TimingMethod, measured
from penstock_profiler.plan import ANSWER_TOKENS, CONCURRENT_ANSWER_TOKENS, FIRST_TOKEN, NEXT_TOKEN, plan
from penstock_profiler.profiling import LEAST_PROBES, MIXING_PROBE, OVERHEAD_READINGS, ROUNDS
from virtual_time import now_s, run

from tests.profiler.virtual_engine import MODEL, TRANSPORT_S, VirtualEngine, connected

pytestmark = pytest.mark.timeout(60)  # in virtual time, a loop without end is one of real time

SMALL = ProfileLimits(prompt_tokens=512, requests=8, context_tokens=4096)


@pytest.fixture(autouse=True)
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_profiler.engine.perf_counter", now_s)
    monkeypatch.setattr("penstock_profiler.profiling.monotonic", now_s)


def read(
    virtual: VirtualEngine, probe: Probe, overhead_s: float = TRANSPORT_S, *, mixes: bool = True
) -> Point | None:
    """One probe of an engine that is left alone afterwards."""

    async def reading() -> Point | None:
        found = await measured(connected(virtual), probe, TimingMethod(overhead_s, mixes), Random(1))
        assert not virtual.running, "requests with enough tokens are cancelled"
        return found

    return run(reading())


def profiled(
    virtual: VirtualEngine, limits: ProfileLimits = SMALL, seconds: float = 30.0
) -> tuple[Profile, list[Probe], float]:
    """Return a profile, its readings' probes, and its duration."""
    requested: list[Probe] = []

    def on_reading(probe: Probe, number: int) -> None:
        assert number == len(requested)
        requested.append(probe)

    async def all_of_it() -> tuple[Profile, float]:
        return await profile(connected(virtual), limits, seconds, on_reading), now_s()

    found, took_s = run(all_of_it())
    return found, requested, took_s


def test_a_lone_prompt_is_measured_without_the_transport_time() -> None:
    work = BatchWork(500, 0, chunk_work(500, 0))
    virtual = VirtualEngine()
    point = read(virtual, PrefillProbe(500), mixes=False)
    assert point is not None
    assert point.work == work
    assert point.seconds == pytest.approx(MODEL.seconds(work))
    assert virtual.asked == [(500, 1)]


def test_a_prompt_beside_a_decode_is_an_iteration_with_both() -> None:
    virtual = VirtualEngine()
    point = read(virtual, PrefillProbe(500))
    assert point is not None
    assert (point.work.tokens, point.work.prefill_work) == (500, chunk_work(499, 0))
    assert 5 < point.work.context_tokens < 10
    assert point.seconds == pytest.approx(MODEL.seconds(point.work), rel=1e-4)
    assert virtual.asked == [(1, CONCURRENT_ANSWER_TOKENS), (499, 1)]


@pytest.mark.parametrize(
    ("tokens", "requested"), [(1, [(1, 1)]), (2, [(1, CONCURRENT_ANSWER_TOKENS), (1, 1)])]
)
def test_a_single_token_has_no_room_for_a_decode_beside_it(
    tokens: int, requested: list[tuple[int, int]]
) -> None:
    virtual = VirtualEngine()
    point = read(virtual, PrefillProbe(tokens))
    assert point is not None
    assert point.work.tokens == tokens
    assert virtual.asked == requested


def test_a_prompt_no_longer_than_the_round_trip_gives_no_reading() -> None:
    whole = read(VirtualEngine(), PrefillProbe(64), overhead_s=0.0, mixes=False)
    assert whole is not None
    assert read(VirtualEngine(), PrefillProbe(64), overhead_s=whole.seconds, mixes=False) is None


def test_decodes_take_the_gap_between_their_tokens() -> None:
    virtual = VirtualEngine()
    point = read(virtual, DecodeProbe(8, 100))
    assert point is not None
    assert (point.work.tokens, point.work.prefill_work) == (8, 0)
    assert 8 * 105 < point.work.context_tokens < 8 * 115
    assert point.seconds == pytest.approx(MODEL.seconds(point.work), rel=1e-4)
    assert virtual.asked == [(100, ANSWER_TOKENS)] * 8


def test_decodes_with_drafts_are_as_long_as_all_that_is_verified() -> None:
    virtual = VirtualEngine(drafted=3, accepted=1)
    virtual.counters = {DRAFTED: 5000, ACCEPTED: 4000}
    point = read(virtual, DecodeProbe(4, 100))
    assert point is not None
    assert (point.work.tokens, point.work.spec_steps) == (4 * 4, 3)
    assert point.seconds == pytest.approx(MODEL.seconds(point.work), rel=0.05)


@pytest.mark.parametrize(
    ("probe", "ends_after"),
    [
        (PrefillProbe(1), 0),
        (PrefillProbe(500), 3),
        (PrefillProbe(500), 4),
        (DecodeProbe(4, 100), 0),
        (DecodeProbe(4, 100), 16),
    ],
    ids=str,
)
def test_answers_that_end_too_early_give_no_reading(probe: Probe, ends_after: int) -> None:
    assert read(VirtualEngine(ends_after=ends_after), probe) is None


def test_long_prompts_are_measured_if_the_server_reads_them_for_many_iterations() -> None:
    virtual = VirtualEngine(read_token_s=0.0001)  # as long as their computation
    point = read(virtual, PrefillProbe(3000))
    assert point is not None
    assert point.seconds == pytest.approx(MODEL.seconds(point.work), rel=1e-4)


def test_an_engine_without_mixed_batches_gives_no_mixed_reading() -> None:
    assert read(VirtualEngine(mixes=False), PrefillProbe(500)) is None


@pytest.mark.parametrize("probe", [PrefillProbe(500), DecodeProbe(4, 100)], ids=str)
def test_a_failing_engine_is_not_read_as_an_early_end(probe: Probe) -> None:
    with pytest.raises(EngineError, match="out of memory"):
        read(VirtualEngine(error="out of memory"), probe)


def test_a_probe_that_never_ends_is_an_error_that_names_it() -> None:
    stuck = VirtualEngine(slowdown=lambda at_s: 1e6)
    with pytest.raises(EngineError, match=f"2 decodes after 100 took longer than {PROBE_TIMEOUT_S:g} s"):
        read(stuck, DecodeProbe(2, 100))
    with pytest.raises(EngineError, match=f"prefill of 64 took longer than {PROBE_TIMEOUT_S:g} s"):
        read(stuck, PrefillProbe(64))


def test_a_profile_finds_the_engines_time_model() -> None:
    virtual = VirtualEngine()
    found, requested, took_s = profiled(virtual)
    for work in (BatchWork(1, 64), BatchWork(8, 4096), BatchWork(512, 0, chunk_work(512, 0))):
        assert found.fit.model.seconds(work) == pytest.approx(MODEL.seconds(work), rel=0.02)
    assert found.overhead_s == pytest.approx(TRANSPORT_S, rel=0.01)
    assert found.noise < 0.001
    assert requested == plan(SMALL) * ROUNDS, "all is known by then"
    assert {summary.probe for summary in found.summaries} == set(requested)
    assert virtual.asked[: 2 * OVERHEAD_READINGS] == [(1, 1), (1, ANSWER_TOKENS)] * OVERHEAD_READINGS, (
        f"{FIRST_TOKEN} and {NEXT_TOKEN}"
    )
    assert (
        virtual.asked[2 * OVERHEAD_READINGS : 4 * OVERHEAD_READINGS]
        == [(1, CONCURRENT_ANSWER_TOKENS), (MIXING_PROBE.prompt_tokens - 1, 1)] * OVERHEAD_READINGS
    )
    assert took_s < 30


def test_a_changing_speed_does_not_count_as_noise() -> None:
    slow_by_turns = VirtualEngine(slowdown=lambda at_s: 1.0 + 0.5 * (at_s % 10 > 7))
    found, requested, took_s = profiled(slow_by_turns, seconds=60.0)
    assert found.noise > 2 * found.noise_without_drift
    assert found.fit.model.seconds(BatchWork(512, 0, chunk_work(512, 0))) == pytest.approx(
        MODEL.seconds(BatchWork(512, 0, chunk_work(512, 0))), rel=0.1
    )
    assert len(requested) > 2 * len(plan(SMALL))
    assert requested.count(PrefillProbe(16)) > 1.5 * requested.count(DecodeProbe(8, 512)), (
        "long probes are dear"
    )
    assert 60 <= took_s < 61, "it goes on until time is up"


@pytest.mark.parametrize(
    "virtual", [VirtualEngine(mixes=False), VirtualEngine(drafted=2)], ids=["apart", "drafts"]
)
def test_prompts_that_cannot_run_beside_a_decode_are_measured_alone(virtual: VirtualEngine) -> None:
    found, _, _ = profiled(virtual, seconds=1)
    prefills = [summary.point for summary in found.summaries if isinstance(summary.probe, PrefillProbe)]
    assert all(point.work.context_tokens == 0 for point in prefills)
    assert [point.seconds for point in prefills] == pytest.approx(
        [MODEL.seconds(point.work) for point in prefills], rel=0.2
    )


def test_a_short_time_still_allows_the_fewest_probes() -> None:
    _, requested, _ = profiled(VirtualEngine(), seconds=0)
    assert requested == plan(SMALL)[:LEAST_PROBES]


def test_each_probe_is_requested_once_if_few_give_a_reading() -> None:
    async def too_few_probes() -> list[Probe]:
        requested: list[Probe] = []
        with pytest.raises(NoTimeModel, match="the engine ends answers early or accepts few requests"):
            await profile(
                connected(VirtualEngine(ends_after=1)),
                ProfileLimits(prompt_tokens=48, requests=2, context_tokens=1024),
                0,
                lambda probe, number: requested.append(probe),
            )
        return requested

    assert run(too_few_probes()) == plan(ProfileLimits(prompt_tokens=48, requests=2, context_tokens=1024))


def profile_twice() -> Coroutine[Any, Any, list[bytes]]:
    async def prompts() -> list[bytes]:
        sent: list[bytes] = []

        class Noting(VirtualEngine):
            def post(self, url: str, *, data: bytes, headers: dict[str, str]) -> Any:
                sent.append(data)
                return super().post(url, data=data, headers=headers)

        for _ in range(2):
            await profile(connected(Noting()), SMALL, 0)
        return sent

    return prompts()


def test_every_prompt_is_unique_so_that_no_prefix_is_cached() -> None:
    long = [data for data in run(profile_twice()) if len(data) > 500]
    assert len(set(long)) == len(long)
