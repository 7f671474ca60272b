"""Parts of the replica's HTTP side apart: headers of an attempt, rejections, pages, events of a request."""

from time import time
from typing import Any, cast

import orjson
import pytest
from penstock_core.domain.verdict import Admitted, BestEffort, Reason, Rejected
from penstock_proto import replica_pb2 as wire
from penstock_routing.replicas.upstream_request import UpstreamRequest
from penstock_runtime.http_request import HttpRequest
from penstock_runtime.openai_errors import ApiError
from penstock_sidecar.frames.outbox import Urgency
from penstock_sidecar.http.app import HttpApp
from penstock_sidecar.http.attempt_head import AttemptHead, attempt_head
from penstock_sidecar.http.http_owner import HttpOwner
from penstock_sidecar.http.http_serving import http_listener
from penstock_sidecar.http.rejection import REASON_TEXTS, out_of_service, rejection
from penstock_sidecar.options import Address

FIRST = AttemptHead(
    picked=False, hop=1, first=False, backup=False, final=False, application=None, spent_s=0.0
)


def head_of(**headers: str) -> dict[bytes, bytes]:
    return {name.replace("_", "-").encode(): value.encode("latin-1") for name, value in headers.items()}


@pytest.mark.parametrize(
    ("headers", "attempt"),
    [
        ({}, FIRST),
        ({"x_envoy_attempt_count": "1"}, FIRST._replace(first=True)),
        ({"x_envoy_attempt_count": "2"}, FIRST._replace(hop=2)),
        ({"x_envoy_attempt_count": "3"}, FIRST._replace(hop=3, backup=True)),
        ({"x_envoy_attempt_count": "0"}, FIRST),
        ({"x_envoy_attempt_count": "-7"}, FIRST),
        ({"x_envoy_attempt_count": "9" * 9}, FIRST._replace(hop=999_999_999, backup=True)),
        ({"x_envoy_attempt_count": "9" * 10}, FIRST),
        ({"x_penstock_max_hops": "0"}, FIRST._replace(picked=True, backup=True)),
        ({"x_gateway_destination_endpoint": "a:1"}, FIRST._replace(final=True)),
        ({"x_gateway_destination_endpoint": "a:1,b:1"}, FIRST),
        (
            {"x_gateway_destination_endpoint": "a:1,b:1", "x_envoy_attempt_count": "2"},
            FIRST._replace(hop=2, final=True),
        ),
        ({"x_penstock_max_hops": "1"}, FIRST._replace(picked=True)),
        ({"x_penstock_max_hops": "many"}, FIRST),
        ({"x_penstock_application": "caf\xe9"}, FIRST._replace(application="caf\xe9")),
        (
            {"x_penstock_timeout_ms": "3000", "x_envoy_expected_rq_timeout_ms": "1750"},
            FIRST._replace(spent_s=1.25),
        ),
        ({"x_penstock_timeout_ms": "3000", "x_envoy_expected_rq_timeout_ms": "3001"}, FIRST),
        ({"x_penstock_timeout_ms": "3000"}, FIRST),
        ({"x_envoy_expected_rq_timeout_ms": "1000"}, FIRST),
    ],
)
def test_an_attempt_is_read_from_headers_and_is_the_first_without_them(
    headers: dict[str, str], attempt: AttemptHead
) -> None:
    assert attempt_head(head_of(**headers), default_hops=2) == attempt


OUT = (Reason.DRAINING, Reason.ENGINE_DOWN)


@pytest.mark.parametrize(
    ("attempt", "passed_on"),
    [
        (FIRST, set(Reason)),
        (FIRST._replace(backup=True), set(OUT)),
        (FIRST._replace(final=True), set()),
        (FIRST._replace(backup=True, final=True), set()),
    ],
    ids=["order", "backup", "order's end", "last backup"],
)
def test_a_replica_of_the_order_and_an_unavailable_backup_hop(
    attempt: AttemptHead, passed_on: set[Reason]
) -> None:
    assert {reason for reason in Reason if attempt.tries_next(reason)} == passed_on


def test_only_the_first_of_several_attempts_is_repeated_after_a_loss() -> None:
    assert FIRST._replace(first=True).replays
    assert not FIRST._replace(first=True, final=True).replays
    assert not FIRST.replays, "the gateway does not number its attempts"


@pytest.mark.parametrize("tries_next", [True, False])
@pytest.mark.parametrize("reason", Reason)
def test_every_rejection_has_its_reason_and_hops_if_another_replica_follows(
    reason: Reason, tries_next: bool
) -> None:
    error = rejection("chat", "r0", Rejected(reason, None), draw=0.0, tries_next=tries_next)
    headers = dict(error.headers)
    assert (headers.get("x-penstock-rejected") == "1") == ("x-penstock-rejected" in headers) == tries_next
    assert headers["x-penstock-reason"] == reason.value
    assert REASON_TEXTS[reason] in error.message and "replica r0" in error.message
    assert error.status == (503 if reason in OUT else 429)
    assert error.code == ("no_replicas" if reason in OUT else "slo_unattainable")
    assert (
        (headers.get("x-should-retry") == "false")
        == (reason is Reason.NEVER)
        == ("retry-after" not in headers)
    )


@pytest.mark.parametrize(("draw", "again"), [(0.0, "4"), (0.5, "5"), (0.99, "6")])
def test_the_retry_time_is_the_replicas_spread_by_half(draw: float, again: str) -> None:
    error = rejection("chat", "r0", Rejected(Reason.KV_MEMORY, 3.2), draw, tries_next=True)
    assert dict(error.headers)["retry-after"] == again
    assert error.message.endswith(f"it would not fit into memory; try again in {again} s")


@pytest.mark.parametrize(("draw", "again"), [(0.0, "1"), (0.6, "1"), (0.7, "2")])
def test_an_unavailable_replica_is_retried_in_one_or_two_seconds(draw: float, again: str) -> None:
    error = out_of_service("it is away", Reason.DRAINING, draw, tries_next=True)
    assert (error.type, dict(error.headers)["retry-after"]) == ("no_replicas", again)
    assert error.message == f"it is away; try again in {again} s"


class State:
    """As much of a replica's state as the pages show."""

    def __init__(self, *, serves: bool = True) -> None:
        self.serves, self.max_model_len = serves, 4096


class Call:
    """An HTTP request that keeps its answer."""

    def __init__(self, path: str, method: str = "GET") -> None:
        self.path, self.method = path, method
        self.headers = [(b"x-request-id", b"mine")]
        self.body = b""

    async def answer(self, body: bytes) -> None:
        self.body = body


async def page(path: str, method: str = "GET", *, serves: bool = True) -> dict[str, Any]:
    """Return the content of a page. Raises ApiError."""
    app = HttpApp("org/m", "vllm", cast(Any, State(serves=serves)), cast(Any, None), cast(Any, None))
    call = Call(path, method)
    await app(cast(HttpRequest, call))
    return cast(dict[str, Any], orjson.loads(call.body))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_pages_report_health_readiness_and_the_model(method: str) -> None:
    assert await page("/health", method, serves=False) == {"status": "ok"}
    assert await page("/ready", method) == {"status": "ready"}
    model = await page("/v1/models/org/m", method)
    assert abs(model.pop("created") - time()) < 60
    assert model == {
        "id": "org/m",
        "object": "model",
        "owned_by": "penstock",
        "engine": "vllm",
        "max_model_len": 4096,
    }
    models = await page("/v1/models", method)
    assert (models["object"], [each["id"] for each in models["data"]]) == ("list", ["org/m"])


@pytest.mark.parametrize(
    ("path", "method", "status", "message", "allowed"),
    [
        ("/v1/chat/completions", "GET", 405, "/v1/chat/completions takes POST, not GET", "POST"),
        ("/v1/models", "POST", 405, "/v1/models takes GET, HEAD, not POST", "GET, HEAD"),
        ("/v1/models/other", "DELETE", 405, "/v1/models/other takes GET, HEAD, not DELETE", "GET, HEAD"),
        ("/health", "X" * 40, 405, f"/health takes GET, HEAD, not {'X' * 32}", "GET, HEAD"),
        ("/" + "a" * 300, "GET", 404, "no such path: /" + "a" * 255, None),
        ("/ready", "GET", 503, "the replica takes no requests now", None),
    ],
)
async def test_an_unknown_path_or_method_is_an_error_with_the_request_id(
    path: str, method: str, status: int, message: str, allowed: str | None
) -> None:
    with pytest.raises(ApiError) as error:
        await page(path, method, serves=False)
    headers = dict(error.value.headers)
    assert (error.value.status, error.value.message, headers.get("allow")) == (status, message, allowed)
    assert headers["x-request-id"] == "mine"
    assert headers.get("x-should-retry") == ("false" if status < 500 else None)


def test_events_of_a_request_reach_its_own_reader() -> None:
    upstream, accepted = UpstreamRequest(1), list[tuple[Admitted | BestEffort, bytes]]()
    owner = HttpOwner(upstream, lambda *accepting: accepted.append(accepting))
    owner.outbox.put(wire.Event(id=1))
    assert (accepted, upstream.end) == ([], None)
    owner.outbox.put(wire.Event(id=1, best_effort=wire.BestEffort()), 0, Urgency.STEP)
    assert accepted == [(BestEffort(), b"")] and upstream.end is None
    owner.outbox.output(1, b"one", 1, Urgency.STEP)
    assert upstream.has_output
    owner.outbox.put(wire.Event(id=1, finished=wire.Finished(completion_tokens=7)))
    received = upstream.take()
    assert (received.data, received.tokens) == (b"one", 1)
    assert isinstance(received.end, wire.Finished)


def test_a_replica_listens_only_at_the_given_addresses() -> None:
    assert http_listener(None) is None
    listener = http_listener(Address("127.0.0.1", 0))
    assert listener is not None
    with listener:
        assert listener.getsockname()[0] == "127.0.0.1"
