"""What an engine is asked, and how readings become points: no engine needed."""

import asyncio
from math import inf
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.timing.fit import Fit, Point, Quality
from penstock_core.timing.time_model import BatchWork, TimeModel, chunk_work
from penstock_profiler.decoding import Decoding
from penstock_profiler.engine import CompletionStream, Drafts, TokenArrival
from penstock_profiler.measure import gaps_s, lengthened_gap, mean_context, speculative_iteration
from penstock_profiler.plan import (
    ANSWER_TOKENS,
    DecodeProbe,
    PrefillProbe,
    Probe,
    ProfileLimits,
    from_ends,
    interleaved,
    plan,
)
from penstock_profiler.profiling import ROUNDS, ProbeSummary, Profile, Readings, summarize, uncertainty

limits = st.builds(
    ProfileLimits,
    prompt_tokens=st.integers(64, 5000),
    requests=st.integers(1, 64),
    context_tokens=st.integers(ANSWER_TOKENS - 10, 9000),
    kv_tokens=st.none() | st.integers(1000, 100_000),
)


@given(limits)
def test_every_probe_is_within_the_engines_bounds_and_unique(bounds: ProfileLimits) -> None:
    probes = plan(bounds)
    assert len(set(probes)) == len(probes)
    for probe in probes:
        if isinstance(probe, PrefillProbe):
            assert 1 <= probe.prompt_tokens <= bounds.prompt_tokens
        else:
            assert 1 <= probe.requests <= bounds.requests
            assert 1 <= probe.prompt_tokens <= bounds.prompt_tokens
            assert probe.prompt_tokens + ANSWER_TOKENS <= bounds.context_tokens
            assert probe.requests * (probe.prompt_tokens + ANSWER_TOKENS) <= (bounds.kv_tokens or 10**9)


def test_sizes_grow_by_half_octaves_and_contexts_are_short_middle_and_long() -> None:
    probes = plan(ProfileLimits(100, 10, 1000))
    assert {probe.prompt_tokens for probe in probes if isinstance(probe, PrefillProbe)} == {
        *(16, 24, 32, 48, 64, 96, 100)
    }
    assert {probe for probe in probes if isinstance(probe, DecodeProbe)} == {
        DecodeProbe(requests, tokens) for requests in (1, 2, 3, 4, 6, 8, 10) for tokens in (25, 64, 100)
    }


def test_an_engine_is_probed_with_usual_sizes_unless_its_limits_are_known() -> None:
    probes = plan(ProfileLimits())
    assert max(probe.prompt_tokens for probe in probes) == 2048
    assert max(probe.requests for probe in probes if isinstance(probe, DecodeProbe)) == 32
    longest = max(
        probe.prompt_tokens for probe in plan(ProfileLimits(16384)) if isinstance(probe, DecodeProbe)
    )
    assert longest == 8192 - ANSWER_TOKENS


@pytest.mark.parametrize(("room", "prompts"), [(0, set()), (1, {1}), (63, {15, 63}), (64, {16, 64})])
def test_decodes_leave_room_for_their_answers(room: int, prompts: set[int]) -> None:
    probes = plan(ProfileLimits(2048, 1, ANSWER_TOKENS + room))
    assert {probe.prompt_tokens for probe in probes if isinstance(probe, DecodeProbe)} == prompts


def test_decodes_may_fill_the_cache_to_its_last_token() -> None:
    def most(kv_tokens: int) -> int:
        probes = plan(ProfileLimits(64, 4, 8192, kv_tokens))
        return max(
            probe.requests for probe in probes if probe == DecodeProbe(4, 64) or probe == DecodeProbe(3, 64)
        )

    assert most(4 * (64 + ANSWER_TOKENS)) == 4
    assert most(4 * (64 + ANSWER_TOKENS) - 1) == 3


def test_probes_are_named_by_their_requests() -> None:
    assert (str(PrefillProbe(64)), str(DecodeProbe(4, 100))) == ("prefill of 64", "4 decodes after 100")


def test_the_first_probes_cover_small_and_large_batches() -> None:
    first = plan(ProfileLimits(2048, 32, 8192))[:6]
    assert first[:4] == [PrefillProbe(16), DecodeProbe(1, 64), PrefillProbe(2048), DecodeProbe(32, 64)]
    assert {type(probe) for probe in first} == {PrefillProbe, DecodeProbe}


@given(st.lists(st.integers(), unique=True))
def test_an_order_from_the_ends_has_every_probe(items: list[int]) -> None:
    order = from_ends(items)
    assert sorted(order) == sorted(items)
    assert order[:2] == ([items[0], items[-1]] if len(items) > 1 else items)


def test_probes_start_at_the_ends_and_halve_the_gaps() -> None:
    assert from_ends(range(9)) == [0, 8, 4, 2, 6, 1, 5, 3, 7]


def test_the_longer_list_continues_alone() -> None:
    assert interleaved([1, 2, 3, 4], [10, 20]) == [1, 10, 2, 20, 3, 4]


def test_a_batch_without_drafts_takes_the_gap_between_its_tokens() -> None:
    assert speculative_iteration(8, 4000, 0.02, 96, Drafts()) == Point(BatchWork(8, 4000), 0.02)


def test_accepted_drafts_make_a_batch_longer_than_the_gap() -> None:
    # 60 tokens of 4 requests, 20 of them accepted drafts: 40 iterations of one request, with 80 drafts
    point = speculative_iteration(4, 1000, 0.01, 60, Drafts(drafted=80, accepted=20))
    assert point.work == BatchWork(4 * 3, 1000, 0.0, 2)
    assert point.seconds == pytest.approx(0.015)


def test_an_iteration_is_never_counted_as_less_than_one() -> None:
    assert speculative_iteration(1, 100, 0.01, 5, Drafts(10, 5)) == Point(BatchWork(11, 100, 0.0, 10), 0.05)


def seen(*at_ms: float) -> list[TokenArrival]:
    """A token at each of these."""
    return [TokenArrival(at / 1e3, tokens) for tokens, at in enumerate(at_ms)]


def test_a_gap_ignores_stalls_and_merged_tokens() -> None:
    without_drift = seen(*range(0, 250, 10))
    assert gaps_s(without_drift) == pytest.approx([0.010] * 21)
    stalled = seen(*range(0, 100, 10), *range(1100, 1250, 10))
    assert median(gaps_s(stalled)) == pytest.approx(0.010)
    in_pairs = seen(*[at // 20 * 20 for at in range(0, 250, 10)])
    assert median(gaps_s(in_pairs)) == pytest.approx(0.010)


def test_the_gap_of_a_window_of_merged_tokens_is_their_mean() -> None:
    assert gaps_s([TokenArrival(1.0, 5), TokenArrival(1.3, 8)]) == pytest.approx([0.1])


def test_a_gap_ends_with_the_first_token_that_is_far_enough_behind() -> None:
    window = [TokenArrival(1.0, 2), TokenArrival(1.5, 4), TokenArrival(2.0, 6), TokenArrival(5.0, 11)]
    assert gaps_s(window) == [1.0 / 4, 3.5 / 7, 3.0 / 5]


def test_chunks_since_a_moment_begin_with_the_last_one_before() -> None:
    one, other = CompletionStream(1, 0.0, seen(10, 20, 30)), CompletionStream(1, 0.0, seen(15, 25))
    together = Decoding([one, other], [])
    assert together.now() == [one.arrivals[2], other.arrivals[1]]
    assert together.since([one.arrivals[1], other.arrivals[0]]) == [one.arrivals[1:], other.arrivals]


async def test_tokens_that_arrived_count_even_if_the_stream_has_ended() -> None:
    ended = asyncio.create_task(asyncio.sleep(0))
    await ended
    together = Decoding([CompletionStream(1, 0.0, seen(10, 20, 30))], [ended])
    assert await together.reach(2)
    assert not await together.reach(3)


def beside(*at_ms: float) -> CompletionStream:
    """A request of one token that decodes."""
    return CompletionStream(1, 0.0, [TokenArrival(at / 1e3, tokens) for tokens, at in enumerate(at_ms, 1)])


def test_a_prefill_is_the_gap_that_ends_with_its_first_token() -> None:
    prompt = CompletionStream(99, 0.044, [TokenArrival(0.0902, 1)])
    point = lengthened_gap(beside(10, 20, 30, 40, 50, 90, 100, 110), prompt)
    assert point is not None
    assert point.work == BatchWork(100, 1 + 6, chunk_work(99, 0))
    assert point.seconds == pytest.approx(0.040)


def test_the_last_of_several_iterations_is_not_the_prefill_of_the_prompt() -> None:
    prompt = CompletionStream(99, 0.044, [TokenArrival(0.170, 1)])
    assert lengthened_gap(beside(10, 20, 30, 40, 50, 90, 130, 170, 180), prompt) is None


def test_a_sequential_engine_has_no_gap_with_a_prefill() -> None:
    prompt = CompletionStream(99, 0.044, [TokenArrival(0.170, 1)])
    assert lengthened_gap(beside(10, 20, 30, 40, 50, 60), prompt) is None


@pytest.mark.parametrize(("first_s", "together"), [(2.25, True), (2.5, False)])
def test_a_first_token_belongs_to_a_gap_at_most_one_usual_gap_away(first_s: float, together: bool) -> None:
    prompt = CompletionStream(99, 1.0, [TokenArrival(first_s, 1)])
    point = lengthened_gap(beside(250, 500, 750, 1000, 2000), prompt)
    assert (point is not None) == together


def test_a_prompt_that_the_server_reads_for_many_gaps_is_still_one_iteration() -> None:
    prompt = CompletionStream(99, 0.044, [TokenArrival(0.190, 1)])
    point = lengthened_gap(beside(10, 20, 30, 40, *range(50, 160, 10), 190, 200), prompt)
    assert point is not None
    assert point.seconds == pytest.approx(0.040)


@pytest.mark.parametrize(("earlier_ms", "in_one"), [(24, True), (26, False)])
def test_an_earlier_gap_of_half_the_lengthening_is_another_chunk(earlier_ms: float, in_one: bool) -> None:
    # a usual gap is 8 ms, and the prompt's is 40: 32 longer
    at_ms = [8, 16, 24, 32, 32 + earlier_ms]
    prompt = CompletionStream(99, 0.033, [TokenArrival((at_ms[-1] + 40) / 1e3, 1)])
    point = lengthened_gap(beside(*at_ms, at_ms[-1] + 40), prompt)
    assert (point is not None) == in_one


def test_a_gap_that_doubles_by_chance_is_no_chunk_of_a_short_prompt() -> None:
    prompt = CompletionStream(9, 0.035, [TokenArrival(0.061, 1)])
    assert lengthened_gap(beside(10, 20, 30, 49, 60), prompt) is not None
    assert lengthened_gap(beside(10, 20, 30, 51, 62), prompt) is None


def test_two_gaps_show_the_first_as_the_usual_one() -> None:
    point = lengthened_gap(beside(250, 500, 1500), CompletionStream(99, 0.6, [TokenArrival(1.5, 1)]))
    assert point is not None
    assert point.seconds == 1.0


def test_tokens_that_arrived_together_have_no_known_iteration() -> None:
    merged = CompletionStream(1, 0.0, [TokenArrival(0.25, 1), TokenArrival(0.5, 2), TokenArrival(1.5, 4)])
    assert lengthened_gap(merged, CompletionStream(99, 0.6, [TokenArrival(1.5, 1)])) is None


def test_a_request_with_one_gap_has_no_usual_gap() -> None:
    prompt = CompletionStream(99, 0.044, [TokenArrival(0.0902, 1)])
    assert lengthened_gap(beside(10, 90), prompt) is None


async def test_the_context_of_decodes_is_that_in_the_middle_of_their_windows() -> None:
    windows = [[TokenArrival(1.0, 4), TokenArrival(2.0, 20)], [TokenArrival(1.0, 5), TokenArrival(2.0, 23)]]
    together = Decoding([CompletionStream(100), CompletionStream(300)], [])
    assert mean_context(together, windows) == 400 + (12 + 14)


def test_every_probe_is_measured_before_any_is_repeated() -> None:
    probes: list[Probe] = [PrefillProbe(16), PrefillProbe(1024), DecodeProbe(4, 64)]
    took_s = {probes[0]: 0.01, probes[1]: 1.0, probes[2]: 0.02}
    requested: list[Probe] = []
    read = Readings()
    order = read.order(probes)
    for number, probe in enumerate(order):
        if number == 120:
            break
        requested.append(probe)
        point = Point(BatchWork(8), 0.01 * (1 + number // 3 % 3))
        read.add(probe, None if probe == probes[2] else point, took_s[probe])
    assert requested[: ROUNDS * 3] == probes * ROUNDS
    assert probes[2] not in requested[ROUNDS * 3 :], "it never came to anything"
    assert requested.count(probes[0]) > 5 * requested.count(probes[1]) > 5 * ROUNDS


def test_the_probe_with_the_most_uncertain_reading_is_repeated() -> None:
    def chosen(**took_s: float) -> str:
        spread = {"sure": (1.0, 1.0), "noisy": (0.9, 1.1), "known": (0.9, 1.1, 0.9, 1.1, 0.9, 1.1)}
        probes = {"sure": PrefillProbe(1), "noisy": PrefillProbe(2), "known": PrefillProbe(3)}
        read = Readings()
        order = read.order([])
        for name, seconds in spread.items():
            for each_s in seconds:
                read.add(probes[name], Point(BatchWork(1), each_s), took_s.get(name, 1.0))
        worth = next(order)
        return next(name for name, probe in probes.items() if probe == worth)

    assert chosen() == "noisy", "the more so the less often it was read"
    # a third reading makes 1/√2 − 1/√3 less uncertain, a seventh 1/√6 − 1/√7: 4.29 times less
    assert chosen(sure=100.0, noisy=4.2) == "noisy"
    assert chosen(sure=100.0, noisy=4.4) == "known"
    assert chosen(noisy=8.0, known=8.0) == "sure", "two readings may agree by chance"


def test_probing_ends_once_all_readings_are_stable() -> None:
    read = Readings()
    for probe in (requested := read.order([PrefillProbe(16)])):
        read.add(probe, Point(BatchWork(16), 0.01), 0.1)
    assert len(read.points[PrefillProbe(16)]) == ROUNDS
    assert next(requested, None) is None


def test_uncertainty_falls_with_the_number_of_readings() -> None:
    work = BatchWork(8, 800)
    once, spread = [Point(work, 0.01)], [Point(work, 0.009), Point(work, 0.01), Point(work, 0.011)]
    assert uncertainty([]) == inf
    assert uncertainty([spread]) == pytest.approx(1.25 * 0.2 / 3 / 3**0.5)
    assert uncertainty([spread * 4]) < uncertainty([spread])
    assert uncertainty([once, spread]) == pytest.approx(uncertainty([spread]) / 2)


def test_readings_are_corrected_to_a_constant_machine_speed() -> None:
    read, probes = Readings(), (PrefillProbe(16), PrefillProbe(64), PrefillProbe(256))
    for number in range(60):
        probe, slowdown = probes[number % 3], 1.5 if 20 <= number < 40 else 1.0
        read.add(probe, Point(BatchWork(probe.prompt_tokens), probe.prompt_tokens * slowdown), 0.1)
    without_drift = read.without_drift()
    assert {probe: len(points) for probe, points in without_drift.items()} == dict.fromkeys(probes, 20)
    for points in without_drift.values():
        (work,) = {point.work for point in points}
        assert [point.seconds for point in points] == pytest.approx([work.tokens] * 20)


@pytest.mark.parametrize(("times", "noise"), [((1, 1), 0.0), ((2, 1), 0.1), ((2, 3), 0.2)])
def test_noise_is_estimated_from_repeated_probes(times: tuple[int, int], noise: float) -> None:
    point = Point(BatchWork(8), 0.01)
    readings = [
        ProbeSummary(PrefillProbe(8), point, n, spread) for n, spread in zip(times, (0.1, 0.3), strict=True)
    ]
    nothing = Quality(0, 0.0, 0.0, 0.0)
    found = Profile(readings, 0.0, 0.5, Fit(TimeModel("x", ()), nothing, nothing))
    assert found.noise_without_drift == pytest.approx(noise)


def test_a_stalled_reading_does_not_move_its_probe() -> None:
    work = BatchWork(8, 800)
    found = summarize(DecodeProbe(8, 100), [Point(work, 0.010), Point(work, 0.011), Point(work, 0.5)])
    assert found.point == Point(work, 0.011)
    assert found.times == 3
    assert found.spread > 1


def test_noise_is_the_mean_spread_of_probes_that_were_read_again() -> None:
    read, work = Readings(), BatchWork(8, 800)
    assert read.noise == 0
    for probe, seconds in (
        (PrefillProbe(16), 0.9),
        (PrefillProbe(16), 1.0),
        (PrefillProbe(16), 1.1),
        (PrefillProbe(64), 5.0),
    ):
        read.add(probe, Point(work, seconds), 0.1)
    read.add(PrefillProbe(128), None, 0.1)
    assert read.noise == pytest.approx(0.2 / 3)
    read.add(PrefillProbe(64), Point(work, 15.0), 0.1)
    assert read.noise == pytest.approx((0.2 / 3 + 0.5) / 2)


def test_limits_stay_within_the_engines_context() -> None:
    limits = ProfileLimits(prompt_tokens=2048, requests=7, context_tokens=8192, kv_tokens=500)
    assert limits.within(0) == limits
    assert limits.within(4096) == ProfileLimits(2048, 7, 4096, 500)
    assert limits.within(1024) == ProfileLimits(1023, 7, 1024, 500)
