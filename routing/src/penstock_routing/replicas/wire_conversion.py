"""Converts the session's messages to core's types."""

from math import inf

import orjson
from penstock_core.domain.verdict import Admitted, BestEffort, Reason, Rejected
from penstock_core.forecast.snapshot import Snapshot
from penstock_core.timing.time_model import TimeModel, from_json
from penstock_proto import replica_pb2 as wire

REASONS: dict[wire.Reason.ValueType, Reason] = {
    wire.REASON_PREFILL_BUDGET: Reason.PREFILL_BUDGET,
    wire.REASON_DECODE_BUDGET: Reason.DECODE_BUDGET,
    wire.REASON_KV_MEMORY: Reason.KV_MEMORY,
    wire.REASON_NEVER: Reason.NEVER,
    wire.REASON_QUEUE_FULL: Reason.QUEUE_FULL,
    wire.REASON_DRAINING: Reason.DRAINING,
    wire.REASON_ENGINE_DOWN: Reason.ENGINE_DOWN,
}


class MalformedMessage(Exception):
    """An unusable message of a replica. The text is the reason."""


INTERNAL = wire.Failed(failure=wire.FAILURE_INTERNAL, status=502)
"""The end of a request whose event could not be handled."""


def rejected(message: wire.Rejected) -> Rejected:
    """Convert a rejection. An unknown reason of a later version becomes `QUEUE_FULL`."""
    earliest_s = message.earliest_s if message.HasField("earliest_s") else None
    return Rejected(REASONS.get(message.reason, Reason.QUEUE_FULL), earliest_s)


def accepted(event: wire.Event) -> Admitted | BestEffort:
    """Convert an `admitted` or `best_effort` event."""
    if event.HasField("best_effort"):
        return BestEffort()
    return Admitted(event.admitted.ttft_predicted_s, event.admitted.tpot_predicted_s)


def snapshot(message: wire.Snapshot) -> Snapshot:
    """Convert a snapshot."""
    return Snapshot(
        running=message.running,
        waiting=message.waiting,
        best_effort=message.best_effort,
        prefill_tokens_left=message.prefill_tokens_left,
        kv_tokens_free=message.kv_tokens_free,
        kv_tokens_total=message.kv_tokens_total,
        work_s=message.work_s,
        prefill_wait_s=message.prefill_wait_s,
        prefill_slack_s=message.prefill_slack_s,
        prefill_tokens_s=message.prefill_tokens_s,
        step_s=message.step_s,
        tightest_tpot_s=message.tightest_tpot_s,
        kv_tokens_headroom=message.kv_tokens_headroom,
    )


def end(event: wire.Event, kind: str) -> wire.Finished | wire.Failed | Rejected:
    """Convert an event of this kind that ends a request."""
    if kind == "rejected":
        return rejected(event.rejected)
    return _finished(event.finished) if kind == "finished" else event.failed


def _finished(message: wire.Finished) -> wire.Finished:
    """Replace invalid durations by 0, because one NaN makes the sum of a histogram unusable."""
    if not 0 <= message.ttft_s < inf:
        message.ttft_s = 0.0
    if not 0 <= message.tpot_s < inf:
        message.tpot_s = 0.0
    return message


def time_model(description: wire.DescribeReply) -> TimeModel | None:
    """Return the replica's time model; None if it has sent none. Raises MalformedMessage."""
    model_json = description.time_model_json
    try:
        return from_json(orjson.loads(model_json)) if model_json else None
    except ValueError as error:
        raise MalformedMessage(f"malformed time model: {error}") from None


def http_endpoint(address: str, description: wire.DescribeReply) -> str | None:
    """Return `host:port` of the replica's HTTP interface, on the host of its gRPC service; None if closed."""
    return _on_same_host(address, description.http_port)


def engine_endpoint(address: str, description: wire.DescribeReply) -> str | None:
    """Return `host:port` of the engine, on the host of the gRPC service; None if it is closed to routers."""
    return _on_same_host(address, description.engine_tls_port or description.engine_port)


def _on_same_host(address: str, port: int) -> str | None:
    return f"{address.rpartition(':')[0]}:{port}" if 0 < port < 65536 else None
