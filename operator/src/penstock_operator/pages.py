"""The operator's pages: `/metrics`, `/health` for liveness, `/ready`."""

import contextlib
import time
from collections.abc import Callable, Iterator

from penstock_runtime.http_request import App
from penstock_runtime.openai_errors import ApiError
from penstock_runtime.pages import PROMETHEUS, Page, pages_app
from prometheus_client import CollectorRegistry, generate_latest

from penstock_operator.cluster.cache import PoolKey


class OperatorHealth:
    """The operator's health. stuck_s: a longer reconciliation counts as stuck."""

    def __init__(self, stuck_s: float) -> None:
        self.stuck_s = stuck_s
        self.synced = False
        self.failed_task: str | None = None
        self._started_s: dict[PoolKey, float] = {}

    @contextlib.contextmanager
    def reconciling(self, key: PoolKey) -> Iterator[None]:
        """Record that a worker reconciles this pool while the block runs."""
        self._started_s[key] = time.monotonic()
        try:
            yield
        finally:
            del self._started_s[key]

    def failure(self) -> str | None:
        """Return why the process should be restarted; None if it is healthy."""
        if self.failed_task is not None:
            return f"{self.failed_task} ended"
        now_s = time.monotonic()
        stuck = [str(key) for key, started_s in self._started_s.items() if now_s - started_s > self.stuck_s]
        return f"stuck at {', '.join(stuck)}" if stuck else None


def pages(registry: CollectorRegistry, health: OperatorHealth, before_scrape: Callable[[], None]) -> App:
    """Return the application. before_scrape: updates gauges."""

    def metrics() -> bytes:
        before_scrape()
        return generate_latest(registry)

    def liveness() -> bytes:
        failure = health.failure()
        if failure is not None:
            raise ApiError(503, failure, type="server_error", code="unhealthy")
        return b'{"status":"ok"}'

    def ready() -> bytes:
        if not health.synced:
            raise ApiError(503, "the pools are not read yet", type="server_error", code="not_ready")
        return b"{}"

    return pages_app(
        "penstock-operator",
        {
            "/metrics": Page("metrics for Prometheus", metrics, PROMETHEUS),
            "/health": Page("200 while no pool is stuck", liveness),
            "/ready": Page("200 once the pools are read", ready),
        },
    )
