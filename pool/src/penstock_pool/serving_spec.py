"""Scheduling inside a replica, routing between replicas, and the routers."""

from typing import Annotated, Any, Literal

from penstock_core.domain.policy import Knobs
from penstock_core.domain.replica_admission import MOST_SEQUENCES
from pydantic import AfterValidator, BeforeValidator, Field, Strict

from penstock_pool.cel import CelRule, documents
from penstock_pool.known import OrderName, PolicyName
from penstock_pool.pod_spec import PodTemplate, Resources
from penstock_pool.scalars import Count, Duration, Number, ObjectName, Text, Url, wrong
from penstock_pool.spec import Spec

MOST_BODY_BYTES = 60 * 2**20
"""Upper limit of a request in bytes.

It is sent to its replica in one message of 64 MiB, with other fields.
"""
MOST_MOVES = 8
"""Upper limit of the replicas on which one answer is continued."""

ORDER_WITH_CACHES = "best-fit"
"""Order of a pool that names none and whose engines cache prefixes (`docs/adr/0045`)."""

ORDER_WITHOUT_CACHES = "round-robin"
"""Order of a pool that names none and whose engines have no prefix cache."""

_TOO_LONG_BODY = f"is longer than one message between router and replica can be; at most {MOST_BODY_BYTES}"


def _within_one_message(body_bytes: int) -> int:
    if body_bytes > MOST_BODY_BYTES:
        raise wrong(_TOO_LONG_BODY)
    return body_bytes


BodyBytes = Annotated[Count, AfterValidator(_within_one_message)]
"""Length of a request's body that fits into a session's message."""


def _not_offload(backup: Any) -> Any:
    if backup == "offload":
        raise wrong(
            "is not supported: routers do not send requests to another pool; write best-effort or reject"
        )
    return backup


class Scheduling(Spec):
    """Policy, bounds and timeouts of a replica."""

    policy: PolicyName = Field(
        default="slos-serve", description="Scheduling policy, by name.", examples=["slos-serve"]
    )
    max_batch_tokens: Count = Field(
        default=8192, description="Most tokens in one engine iteration.", examples=[8192]
    )
    max_running: Count = Field(
        default=256, description="Most requests that hold KV cache at once on a replica.", examples=[256]
    )
    max_waiting: Count = Field(
        default=1024,
        description="Most requests that wait on a replica; more are rejected.",
        examples=[1024],
    )
    aging_timeout_s: Duration = Field(
        default=Knobs().aging_s,
        description="After this time the best-effort request that has waited longest is served like one with "
        "an SLO, even if new requests are then rejected.",
        examples=["30s"],
    )
    delivery_allowance_s: Duration = Field(
        default=0.005,
        description="Least time subtracted from every first-token and end-to-end target for the transfer of "
        "a request to its engine and of its tokens to the client. A replica whose engine reports its steps "
        "measures the transfer, and subtracts more where it takes longer.",
        examples=["5ms"],
    )
    drain_timeout_s: Duration = Field(
        default=30.0,
        description="Longest time for which a stopping replica finishes its requests.",
        examples=["30s"],
    )

    def knobs(self) -> Knobs:
        """Return the parameters of the policy."""
        return Knobs(aging_s=self.aging_timeout_s)


class Routing(Spec):
    """Order of replicas, and treatment of rejected and interrupted requests."""

    order: OrderName | None = Field(
        default=None,
        description="Order in which replicas are tried, by name. Absent: `best-fit` if the engine caches "
        "prefixes, according to `engine.prefixCaching`, or else to its type's default and `engine.args`; "
        "otherwise `round-robin`.",
        examples=["prefix"],
    )
    max_hops: Count = Field(default=3, description="Most replicas tried before the backup.", examples=[3])
    backup: Annotated[Literal["best-effort", "reject"], BeforeValidator(_not_offload)] = Field(
        default="best-effort",
        description="Treatment of a request that no replica can serve in time: served as `best-effort`, or "
        "`reject`ed with 429.",
        examples=["best-effort"],
    )
    max_moves: Annotated[int, Strict(), Field(ge=0, le=MOST_MOVES)] = Field(
        default=2,
        description="How many times at most a stream whose replica is lost continues on another one; 0: it "
        "ends with an error event.",
        examples=[2],
    )
    move_timeout_s: Duration = Field(
        default=30.0,
        description="Longest time that such a stream waits while no replica is in service, for example after "
        "its router was cut off from all of them; then it ends with an error event. A request whose answer "
        "has not begun waits as long, and then gets 503.",
        examples=["30s"],
    )

    def order_with(self, caches_prefixes: bool) -> str:
        """Return the order's name, given whether engines have a prefix cache."""
        if self.order is not None:
            return self.order
        return ORDER_WITH_CACHES if caches_prefixes else ORDER_WITHOUT_CACHES


class RouterTls(Spec):
    """Certificate of the routers' API."""

    secret: ObjectName = Field(
        description="Secret of type kubernetes.io/tls in the pool's namespace. Routers load a renewed "
        "certificate without a restart.",
        examples=["llama3-api-tls"],
    )


class TracingSpec(Spec):
    """Spans of requests, by OpenTelemetry."""

    otlp_url: Url = Field(
        description="URL, with path, of a collector that accepts spans by OTLP over HTTP.",
        examples=["http://otel-collector.monitoring:4318/v1/traces"],
    )
    sampling: Annotated[Number, Field(gt=0, le=1)] = Field(
        default=1.0,
        description="Share of requests that begin a trace, above 0 and at most 1. A client's own trace is "
        "always continued.",
        examples=[0.1],
    )


class RouterSpec(Spec):
    """The router's replicas and bounds. The bounds keep one client from using up shared resources."""

    replicas: Count = Field(
        default=2,
        description="Routers, Envoys with pickers, or pickers in a cluster; each serves any request.",
        examples=[2],
    )
    max_body_bytes: BodyBytes = Field(
        default=8 * 2**20,
        description="Largest request body, in bytes, at most 60 MiB; larger is answered 413.",
        examples=[8388608],
        json_schema_extra=documents(CelRule(f"self <= {MOST_BODY_BYTES}", _TOO_LONG_BODY)),
    )
    max_header_bytes: Count = Field(
        default=32 * 2**10,
        description="Largest request head, in bytes; larger is answered 431.",
        examples=[32768],
    )
    max_sequences_per_request: Annotated[int, Strict(), Field(ge=1, le=MOST_SEQUENCES)] = Field(
        default=MOST_SEQUENCES,
        description="Most answers that one request may ask for, over all its prompts: their number times the "
        "larger of `n` and `best_of`; more are answered 400.",
        examples=[MOST_SEQUENCES],
    )
    body_timeout_s: Duration = Field(
        default=30.0,
        description="Longest time a client may take to send its body; then it is answered 408.",
        examples=["30s"],
    )
    max_inflight: Count = Field(
        default=4096,
        description="Most requests in progress in one router; more are answered 429.",
        examples=[4096],
    )
    stream_buffer_bytes: Count = Field(
        default=256 * 2**10,
        description="Most bytes held for a client that reads slowly; beyond it its request is cancelled.",
        examples=[262144],
    )
    buffer_bytes: Count = Field(
        default=256 * 2**20,
        description="Most bytes held for all requests: bodies, and output that clients have not read. Beyond "
        "it a new body is answered 429, and the request with the most held output is cancelled.",
        examples=[268435456],
    )
    write_timeout_s: Duration = Field(
        default=30.0,
        description="A client that reads none of its waiting bytes for this long is disconnected and its "
        "request cancelled; detected within twice this time.",
        examples=["30s"],
    )
    verdict_timeout_s: Duration = Field(
        default=5.0,
        description="Longest wait for a replica's verdict before the next replica is tried.",
        examples=["5s"],
    )
    drain_timeout_s: Duration = Field(
        default=30.0,
        description="Longest time for which a stopping router finishes its requests.",
        examples=["30s"],
    )
    tracing: TracingSpec | None = Field(
        default=None, description="With `gateway: envoy`: tracing of requests; absent: none."
    )
    tls: RouterTls | None = Field(
        default=None,
        description="Serve the API over TLS, at port 443 of its Service; absent: plain HTTP, at port 80. For "
        "a cluster.",
        examples=[{"secret": "llama3-api-tls"}],
    )
    image: Text | None = Field(
        default=None,
        description="Container image of the routers, or of the pickers; absent: the operator's "
        "own version. For a cluster.",
        examples=["registry.example/penstock/router:0.1.0"],
    )
    resources: Resources = Field(
        default_factory=Resources,
        description="Resources of the container `router`, or `picker`. For a cluster.",
    )
    pod_template: PodTemplate | None = Field(
        default=None,
        description="Merged into the pod of the router, or the picker: tolerations, node selection, "
        "annotations. For a cluster.",
        examples=[{"spec": {"nodeSelector": {"pool": "cpu"}}}],
    )
