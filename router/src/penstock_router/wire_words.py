"""The session's messages in the core's words."""

import orjson
from penstock_core.routing import ReplicaLoad
from penstock_core.time_model import TimeModel, from_json
from penstock_core.verdict import Admitted, BestEffort, Reason, Rejected
from penstock_proto import replica_pb2 as wire

REASONS: dict[int, Reason] = {
    wire.REASON_PREFILL_BUDGET: Reason.PREFILL_BUDGET,
    wire.REASON_DECODE_BUDGET: Reason.DECODE_BUDGET,
    wire.REASON_KV_MEMORY: Reason.KV_MEMORY,
    wire.REASON_NEVER: Reason.NEVER,
    wire.REASON_QUEUE_FULL: Reason.QUEUE_FULL,
    wire.REASON_DRAINING: Reason.DRAINING,
    wire.REASON_ENGINE_DOWN: Reason.ENGINE_DOWN,
}


def rejected(message: wire.Rejected) -> Rejected:
    """The rejection. A reason of a later version, which this router does not know, means a full replica."""
    earliest_s = message.earliest_s if message.HasField("earliest_s") else None
    return Rejected(REASONS.get(message.reason, Reason.QUEUE_FULL), earliest_s)


def accepted(event: wire.Event) -> Admitted | BestEffort:
    """The acceptance that an `admitted` or `best_effort` event holds."""
    if event.HasField("best_effort"):
        return BestEffort()
    return Admitted(event.admitted.ttft_predicted_s, event.admitted.tpot_predicted_s)


def load(name: str, snapshot: wire.Snapshot) -> ReplicaLoad:
    """The snapshot, for routing."""
    return ReplicaLoad(
        name,
        running=snapshot.running,
        waiting=snapshot.waiting,
        best_effort=snapshot.best_effort,
        prefill_tokens_left=snapshot.prefill_tokens_left,
        kv_tokens_free=snapshot.kv_tokens_free,
        kv_tokens_total=snapshot.kv_tokens_total,
    )


def time_model(description: wire.DescribeReply) -> TimeModel | None:
    """The replica's time model; None where it has not said one."""
    said = description.time_model_json
    return from_json(orjson.loads(said)) if said else None
