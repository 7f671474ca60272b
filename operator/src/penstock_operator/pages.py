"""The operator's small HTTP face: `/metrics`, `/health` for liveness, `/ready`."""

import contextlib
import time
from collections.abc import Callable, Iterator

import orjson
from penstock_runtime.asgi import App, Receive, Scope, Send, answer
from penstock_runtime.openai_errors import ApiError
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from penstock_operator.cluster.seen import PoolKey


class Health:
    """Whether the operator gets on. stuck_s: a look that takes longer is not going to end."""

    def __init__(self, stuck_s: float) -> None:
        self.stuck_s = stuck_s
        self.synced = False
        self.broken: str | None = None
        self._since_s: dict[PoolKey, float] = {}

    @contextlib.contextmanager
    def busy(self, key: PoolKey) -> Iterator[None]:
        """A worker is at this pool."""
        self._since_s[key] = time.monotonic()
        try:
            yield
        finally:
            del self._since_s[key]

    def complaint(self) -> str | None:
        """Why the process should be started anew; None where it should not."""
        if self.broken is not None:
            return f"{self.broken} ended"
        now_s = time.monotonic()
        stuck = [str(key) for key, since_s in self._since_s.items() if now_s - since_s > self.stuck_s]
        return f"stuck at {', '.join(stuck)}" if stuck else None


def pages(registry: CollectorRegistry, health: Health, before_scrape: Callable[[], None]) -> App:
    """The pages. before_scrape: brings gauges up to date."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == "/metrics":
            before_scrape()
            await answer(send, generate_latest(registry), content_type=CONTENT_TYPE_LATEST.encode())
        elif path == "/health":
            complaint = health.complaint()
            body = orjson.dumps({"status": complaint or "ok"})
            await answer(send, body, status=200 if complaint is None else 503)
        elif path == "/ready":
            await answer(send, b"{}", status=200 if health.synced else 503)
        else:
            raise ApiError(404, f"there is no {path}; there are /metrics, /health and /ready")

    return app
