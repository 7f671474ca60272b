"""Error response while no replica takes requests."""

from penstock_core.routing.attempts import spread_retry_s
from penstock_runtime.openai_errors import ApiError


def no_replicas(draw: float) -> ApiError:
    """Return the error (503). draw: random number in [0, 1), to spread retries."""
    retry_s = spread_retry_s(1, draw)
    return ApiError(
        503,
        f"no replica is in service; try again in {retry_s} s",
        type="no_replicas",
        code="no_replicas",
        headers=(("retry-after", str(retry_s)),),
    )
