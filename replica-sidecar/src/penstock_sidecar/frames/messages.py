"""Converts core's types to messages for the router."""

from collections.abc import Sequence

from penstock_core.domain.verdict import Admitted, BestEffort, Rejected, Verdict
from penstock_core.forecast.snapshot import Snapshot
from penstock_proto import replica_pb2 as wire
from penstock_proto.sse import EngineUsage
from penstock_routing.replicas.wire_conversion import REASONS
from penstock_runtime.openai_errors import ApiError

WIRE_REASONS = {reason: number for number, reason in REASONS.items()}
"""The numbers of reasons in messages."""

RETURNED = ApiError(
    503, "this replica is draining and returned the request", "server_error", code="replica_draining"
)
INTERNAL = ApiError(500, "internal error of the replica", "server_error")


def verdict_event(id: int, verdict: Verdict) -> wire.Event:
    """Return a verdict as a request's first event."""
    if isinstance(verdict, Admitted):
        admitted = wire.Admitted(
            ttft_predicted_s=verdict.ttft_predicted_s, tpot_predicted_s=verdict.tpot_predicted_s
        )
        return wire.Event(id=id, admitted=admitted)
    if isinstance(verdict, BestEffort):
        return wire.Event(id=id, best_effort=wire.BestEffort())
    return wire.Event(id=id, rejected=_rejected(verdict))


def _rejected(verdict: Rejected) -> wire.Rejected:
    return wire.Rejected(reason=WIRE_REASONS[verdict.reason], earliest_s=verdict.earliest_s)


def snapshot_message(load: Snapshot, engine_ready: bool, draining: bool) -> wire.Snapshot:
    """Return a replica's load as a message."""
    return wire.Snapshot(
        running=load.running,
        waiting=load.waiting,
        best_effort=load.best_effort,
        prefill_tokens_left=load.prefill_tokens_left,
        kv_tokens_free=load.kv_tokens_free,
        kv_tokens_total=load.kv_tokens_total,
        draining=draining,
        engine_ready=engine_ready,
        work_s=load.work_s,
        prefill_wait_s=load.prefill_wait_s,
        prefill_slack_s=load.prefill_slack_s,
        prefill_tokens_s=load.prefill_tokens_s,
        step_s=load.step_s,
        tightest_tpot_s=load.tightest_tpot_s,
        kv_tokens_headroom=load.kv_tokens_headroom,
    )


def prefixes_message(changes: Sequence[tuple[int, bool]], complete: bool) -> wire.CachedPrefixes:
    """Return changes of the cached prefixes as a message.

    changes: each key, and whether it is now cached. complete: whether these are all cached prefixes.
    """
    return wire.CachedPrefixes(
        complete=complete,
        added=[key for key, cached in changes if cached],
        removed=[key for key, cached in changes if not cached],
    )


def verdict_labels(verdict: Verdict) -> tuple[str, str]:
    """Return a verdict and its reason as metrics and logs name them."""
    if isinstance(verdict, Rejected):
        return "rejected", verdict.reason.value
    return ("admitted" if isinstance(verdict, Admitted) else "best-effort"), ""


def failed_event(id: int, failure: wire.Failure.ValueType, status: int, body: bytes) -> wire.Event:
    """Return the last event of a request that ends in an error."""
    return wire.Event(id=id, failed=wire.Failed(failure=failure, status=status, body=body))


def finished_event(
    id: int,
    usage: EngineUsage,
    ttft_s: float,
    tpot_s: float,
    *,
    thinking_tokens: int = 0,
    token_gaps_us: Sequence[int] = (),
) -> wire.Event:
    """Return the last event of a complete answer."""
    return wire.Event(
        id=id,
        finished=wire.Finished(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            ttft_s=ttft_s,
            tpot_s=tpot_s,
            thinking_tokens=thinking_tokens,
            token_gaps_us=token_gaps_us,
            cached_tokens=usage.cached_tokens or 0,
        ),
    )
