"""What counts as having kept a promise."""

import pytest
from penstock_core.builtin_time_models import time_model
from penstock_core.slo import Judge, Slo, Targets, Tier
from penstock_proto import replica_pb2 as wire
from penstock_router.outcome import Ending, Measured, Outcome, measured, misses, targets_of

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


def test_a_stream_is_measured_by_what_was_written() -> None:
    seen = measured(outcome([100.5, 100.6, 100.9]))
    assert (seen.ttft_s, seen.e2e_s) == (0.5, 10.0)
    assert seen.tpot_s == pytest.approx(0.2)


def test_the_tier_says_how_its_pace_is_judged() -> None:
    seen = measured(outcome([100.5, 100.6, 100.9], Slo(judge=Judge.MAX)))
    assert seen.tpot_s == pytest.approx(0.3)


def test_one_token_has_no_pace() -> None:
    assert measured(outcome([100.5])).tpot_s is None


def test_an_answer_in_one_piece_is_measured_by_its_replica() -> None:
    told = wire.Finished(completion_tokens=9, ttft_s=0.4, tpot_s=0.03)
    seen = measured(outcome([], stream=False, finished=told))
    assert seen == Measured(0.4, 0.03, 10.0)


@pytest.mark.parametrize(
    ("targets", "missed"),
    [
        (Targets(), []),
        (Targets(0.5, 0.2, 10.0), []),
        (Targets(0.4, 0.2, 10.0), ["ttft"]),
        (Targets(0.5, 0.1, 9.0), ["tpot", "e2e"]),
    ],
)
def test_misses(targets: Targets, missed: list[str]) -> None:
    assert misses(targets, Measured(0.5, 0.2, 10.0)) == missed


def test_a_pace_that_there_was_none_of_is_not_missed() -> None:
    assert misses(Targets(1.0, 0.1), Measured(0.5, None, 1.0)) == []


def test_a_slowdown_is_told_by_the_time_model() -> None:
    made = outcome([100.5], Slo(ttft_slowdown=5), finished=wire.Finished(prompt_tokens=1000))
    targets = targets_of(made, MODEL)
    assert targets is not None
    assert targets.ttft_s == pytest.approx(5 * MODEL.prefill_seconds(1000))


def test_a_slowdown_nobody_can_tell_is_not_judged() -> None:
    slo = Slo(ttft_slowdown=5)
    assert targets_of(outcome([100.5], slo, finished=wire.Finished(prompt_tokens=9)), None) is None
    assert targets_of(outcome([100.5], slo), MODEL) is None


def test_a_requests_own_targets_stand_in_place_of_its_tiers() -> None:
    made = outcome([100.5], Slo(ttft_slowdown=5, tpot_s=0.1, e2e_s=60), Targets(ttft_s=0.3))
    assert targets_of(made, None) == Targets(0.3, 0.1, 60)
