"""The session's messages in the core's words, and what becomes of those that make no sense."""

from math import inf, nan

import pytest
from penstock_core.domain.verdict import Admitted, BestEffort, Reason, Rejected
from penstock_proto import replica_pb2 as wire
from penstock_routing.replicas import wire_conversion
from penstock_routing.replicas.wire_conversion import MalformedMessage


@pytest.mark.parametrize(
    ("said_s", "kept_s"),
    [(0.0, 0.0), (0.25, 0.25), (1e9, 1e9), (-0.25, 0.0), (nan, 0.0), (inf, 0.0), (-inf, 0.0)],
)
def test_an_end_has_durations_only(said_s: float, kept_s: float) -> None:
    for ttft_s, tpot_s, kept in ((said_s, 0.5, (kept_s, 0.5)), (0.5, said_s, (0.5, kept_s))):
        output = wire.Finished(prompt_tokens=3, ttft_s=ttft_s, tpot_s=tpot_s)
        end = wire_conversion.end(wire.Event(finished=output), "finished")
        assert isinstance(end, wire.Finished)
        assert (end.prompt_tokens, end.ttft_s, end.tpot_s) == (3, *kept)


def test_each_end_is_converted_by_its_kind() -> None:
    rejected = wire.Event(rejected=wire.Rejected(reason=wire.REASON_KV_MEMORY, earliest_s=1.5))
    assert wire_conversion.end(rejected, "rejected") == Rejected(Reason.KV_MEMORY, 1.5)
    failed = wire.Failed(failure=wire.FAILURE_INTERNAL, status=500)
    assert wire_conversion.end(wire.Event(failed=failed), "failed") == failed


def test_a_rejection_may_lack_retry_after_and_reason() -> None:
    assert wire_conversion.rejected(wire.Rejected(reason=wire.REASON_NEVER)) == Rejected(Reason.NEVER)
    assert wire_conversion.rejected(wire.Rejected()) == Rejected(Reason.QUEUE_FULL)


def test_an_acceptance_is_admitted_or_best_effort() -> None:
    admitted = wire.Admitted(ttft_predicted_s=0.5, tpot_predicted_s=0.25)
    assert wire_conversion.accepted(wire.Event(admitted=admitted)) == Admitted(0.5, 0.25)
    assert wire_conversion.accepted(wire.Event(best_effort=wire.BestEffort())) == BestEffort()


def test_a_time_model_may_be_missing_but_not_invalid() -> None:
    assert wire_conversion.time_model(wire.DescribeReply()) is None
    with pytest.raises(MalformedMessage, match="malformed time model: "):
        wire_conversion.time_model(wire.DescribeReply(time_model_json="{"))


def test_an_event_that_cannot_be_handled_is_answered_as_a_bad_gateway() -> None:
    internal = wire_conversion.INTERNAL
    assert (internal.failure, internal.status) == (wire.FAILURE_INTERNAL, 502)
