"""The sidecar's small HTTP face, for Prometheus and for probes: `/metrics`, `/health`, `/ready`."""

from collections.abc import Callable

from penstock_runtime.asgi import App, Receive, Scope, Send, answer
from penstock_runtime.openai_errors import ApiError
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST


def inspection_app(registry: CollectorRegistry, serving: Callable[[], bool]) -> App:
    """`/health` is about the process, `/ready` about whether it takes requests."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if path == "/metrics":
            await answer(send, generate_latest(registry), content_type=CONTENT_TYPE_LATEST.encode())
        elif path == "/health":
            await answer(send, b"{}")
        elif path == "/ready":
            await answer(send, b"{}", status=200 if serving() else 503)
        else:
            raise ApiError(404, f"there is no {path}; there are /metrics, /health and /ready")

    return app
