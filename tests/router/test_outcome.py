"""Which requests met their SLO."""

import tracemalloc

import pytest
from penstock_core.domain.slo import Judge, Slo, Targets, Tier
from penstock_core.timing.builtin_models import time_model
from penstock_proto import replica_pb2 as wire
from penstock_routing.request.outcome import (
    MOST_TIMES,
    Ending,
    Measured,
    Outcome,
    add_times,
    measured,
    missed_targets,
    targets_of,
)

MODEL = time_model("llama-3-8b-a100")


def outcome(
    times_s: list[float],
    slo: Slo = Slo(),
    own: Targets = Targets(),
    stream: bool = True,
    finished: wire.Finished | None = None,
) -> Outcome:
    made = Outcome(Tier("t", slo), own, arrival_s=100.0, stream=stream, ending=Ending.ANSWERED)
    made.token_times_s, made.ended_s, made.finished = times_s, 110.0, finished
    return made


def test_a_stream_is_measured_by_the_times_of_its_written_tokens() -> None:
    durations = measured(outcome([100.5, 100.6, 100.9]))
    assert (durations.ttft_s, durations.e2e_s) == (0.5, 10.0)
    assert durations.tpot_s == pytest.approx(0.2)


def test_the_tier_says_how_its_tpot_is_judged() -> None:
    durations = measured(outcome([100.5, 100.6, 100.9], Slo(judge=Judge.MAX)))
    assert durations.tpot_s == pytest.approx(0.3)


def test_one_token_has_no_tpot() -> None:
    assert measured(outcome([100.5])).tpot_s is None


def in_one_piece(*gaps_us: int, slo: Slo = Slo()) -> Outcome:
    reported = wire.Finished(completion_tokens=len(gaps_us), token_gaps_us=gaps_us)
    return outcome([], slo, stream=False, finished=reported)


def test_a_whole_answer_is_measured_by_the_engines_token_times() -> None:
    durations = measured(in_one_piece(400_000, 20_000, 40_000))
    assert durations.ttft_s == pytest.approx(0.4)
    assert durations.tpot_s == pytest.approx(0.03)
    assert durations.e2e_s == 10.0


@pytest.mark.parametrize(
    ("judge", "pace_s"), [(Judge.MEAN, 0.4 / 13), (Judge.WINDOW, 0.031), (Judge.MAX, 0.04)]
)
def test_a_whole_answer_is_judged_by_its_tiers_rule(judge: Judge, pace_s: float) -> None:
    gaps = [400_000, *[30_000] * 9, 40_000, 30_000, 30_000, 30_000]
    assert measured(in_one_piece(*gaps, slo=Slo(judge=judge))).tpot_s == pytest.approx(pace_s)


def test_without_engine_reports_a_whole_answer_is_judged_by_its_end_only() -> None:
    reported = wire.Finished(completion_tokens=9, ttft_s=9.0, tpot_s=1.0)
    made = outcome([], Slo(0.1, tpot_s=0.1, e2e_s=11.0), stream=False, finished=reported)
    assert measured(made) == Measured(None, None, 10.0)
    assert missed_targets(Targets(0.1, 0.1, 11.0), measured(made)) == []
    assert missed_targets(Targets(0.1, 0.1, 9.0), measured(made)) == ["e2e"]


@pytest.mark.parametrize(
    ("slo", "missed"),
    [
        (Slo(), []),
        (Slo(0.5, tpot_s=0.2, e2e_s=10.0), []),
        (Slo(0.4, tpot_s=0.2, e2e_s=10.0), ["ttft"]),
        (Slo(0.5, tpot_s=0.1, e2e_s=9.0), ["tpot", "e2e"]),
    ],
)
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_an_outcome_lists_each_missed_target(slo: Slo, missed: list[str], stream: bool) -> None:
    reported = wire.Finished(completion_tokens=3, token_gaps_us=[500_000, 100_000, 300_000])
    made = outcome([100.5, 100.6, 100.9] if stream else [], slo, stream=stream, finished=reported)
    assert missed_targets(slo.targets(0.0), measured(made)) == missed


def test_an_answer_of_one_token_does_not_miss_tpot() -> None:
    made = outcome([100.5], Slo(1.0, tpot_s=0.1))
    assert missed_targets(Targets(1.0, 0.1), measured(made)) == []


def test_an_answer_without_tokens_has_only_an_end_to_end_time() -> None:
    assert measured(outcome([])) == Measured(None, None, 10.0)


def test_tokens_that_only_the_final_usage_counts_are_spread_over_the_seen_events() -> None:
    """An engine that speculates writes several in one event."""
    reported = wire.Finished(completion_tokens=9)
    durations = measured(outcome([100.5, 100.8, 101.1], finished=reported))
    assert durations.tpot_s == pytest.approx(0.6 / 8)


def test_an_impossible_count_of_a_replica_takes_little_memory() -> None:
    """Without the bound this test needs 32 GiB."""
    tracemalloc.start()
    try:
        reported = wire.Finished(completion_tokens=2**32 - 1, thinking_tokens=2**32 - 1)
        durations = measured(outcome([100.5, 100.8, 101.1], finished=reported))
        times_s = [100.0]
        for _ in range(3):
            add_times(times_s, 2**32 - 1, 100.5)
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert durations.ttft_s == pytest.approx(0.5)
    assert (len(times_s), times_s[-1]) == (MOST_TIMES, 100.5)
    assert most_bytes < 32 * MOST_TIMES


@pytest.mark.parametrize(
    ("slo", "pace_s", "kept"),
    [
        (Slo(tpot_s=0.01, answer_tpot_s=0.2), 0.1, False),
        (Slo(tpot_s=0.11, answer_tpot_s=0.19), 0.2, True),
        (Slo(tpot_s=0.11, answer_tpot_s=0.15), 0.2, False),
        (Slo(tpot_s=0.14), 0.75 / 5, False),
    ],
    ids=["thinking too slow", "both kept", "answer too slow", "one pace for all"],
)
def test_thinking_and_answer_are_judged_separately_where_each_has_a_tpot_target(
    slo: Slo, pace_s: float, kept: bool
) -> None:
    reported = wire.Finished(completion_tokens=6, thinking_tokens=3)
    durations = measured(outcome([100.5, 100.6, 100.7, 100.9, 101.1, 101.25], slo, finished=reported))
    assert durations.tpot_s == pytest.approx(pace_s, rel=0.1)
    assert (missed_targets(slo.targets(0.0), durations) == []) is kept


def test_a_slowdown_target_is_computed_by_the_time_model() -> None:
    made = outcome([100.5], Slo(ttft_slowdown=5), finished=wire.Finished(prompt_tokens=1000))
    targets = targets_of(made, MODEL)
    assert targets is not None
    assert targets.ttft_s == pytest.approx(5 * MODEL.prefill_seconds(1000))


def test_a_slowdown_without_a_time_model_is_not_judged() -> None:
    slo = Slo(ttft_slowdown=5)
    assert targets_of(outcome([100.5], slo, finished=wire.Finished(prompt_tokens=9)), None) is None
    assert targets_of(outcome([100.5], slo), MODEL) is None


def test_a_requests_own_targets_replace_its_tiers() -> None:
    made = outcome([100.5], Slo(ttft_slowdown=5, tpot_s=0.1, e2e_s=60), Targets(ttft_s=0.3))
    assert targets_of(made, None) == Targets(0.3, 0.1, 60)
