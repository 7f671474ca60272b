"""A replica's rejection as an HTTP response, on which the gateway tries the next endpoint.

The gateway reacts to the header `HOP`, whatever the status, so only responses after which it tries another
replica have it (`tries_next`). The client gets the response of the last replica that was tried, so each
response has the reason and a Retry-After.
"""

from penstock_core.domain.verdict import Reason, Rejected
from penstock_core.routing.attempts import OUT_OF_SERVICE, retry_after_s, spread_retry_s
from penstock_runtime.gateway_headers import REJECTED
from penstock_runtime.openai_errors import ApiError

HOP = (REJECTED, "1")

Headers = tuple[tuple[str, str], ...]

REASON_TEXTS = {
    Reason.PREFILL_BUDGET: "its first token would be late",
    Reason.DECODE_BUDGET: "its tokens would be late",
    Reason.KV_MEMORY: "it would not fit into memory",
    Reason.NEVER: "not even an idle replica could meet the targets",
    Reason.QUEUE_FULL: "the queue is full",
    Reason.DRAINING: "the replica is draining",
    Reason.ENGINE_DOWN: "the engine does not answer",
}


def rejection(tier: str, replica: str, rejected: Rejected, draw: float, *, tries_next: bool) -> ApiError:
    """Return the response to a rejected request.

    draw: random number in [0, 1), to spread retries. tries_next: whether the gateway tries another replica.
    """
    if rejected.reason in OUT_OF_SERVICE:
        message = f"replica {replica} takes no requests: {REASON_TEXTS[rejected.reason]}"
        return out_of_service(message, rejected.reason, draw, tries_next=tries_next)
    message = (
        f"the targets of tier '{tier}' cannot be met for this request on replica {replica}: "
        f"{REASON_TEXTS[rejected.reason]}"
    )
    if rejected.reason is Reason.NEVER:
        return _unattainable(message, _headers(rejected.reason, ("x-should-retry", "false"), tries_next))
    retry_s = spread_retry_s(retry_after_s([rejected]), draw)
    headers = _headers(rejected.reason, ("retry-after", str(retry_s)), tries_next)
    return _unattainable(f"{message}; try again in {retry_s} s", headers)


def out_of_service(message: str, reason: Reason, draw: float, *, tries_next: bool) -> ApiError:
    """Return the response of a replica that takes no requests."""
    retry_s = spread_retry_s(1, draw)
    return ApiError(
        503,
        f"{message}; try again in {retry_s} s",
        type="no_replicas",
        code="no_replicas",
        headers=_headers(reason, ("retry-after", str(retry_s)), tries_next),
    )


def passed_on(error: ApiError) -> ApiError:
    """Return the response to a request that was not read, after which the gateway tries another replica."""
    error.headers = (HOP, *error.headers)
    return error


def _unattainable(message: str, headers: Headers) -> ApiError:
    return ApiError(429, message, type="slo_unattainable", code="slo_unattainable", headers=headers)


def _headers(reason: Reason, retry: tuple[str, str], tries_next: bool) -> Headers:
    headers = (("x-penstock-reason", reason.value), retry)
    return (HOP, *headers) if tries_next else headers
