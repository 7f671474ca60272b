"""Settings of routers, pickers and the HTTP interface of sidecars, from the pool file."""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock_core.domain.slo import Tier
from penstock_core.routing.attempts import Backup
from penstock_core.routing.orders import BY_PREFIX, ORDERS, WITHOUT_CACHES
from penstock_core.routing.replica_load import Order
from penstock_pool import Pool
from penstock_pool.autoscaling_spec import Autoscaling
from penstock_pool.engine_spec import EngineSpec
from penstock_runtime.grpc.messages import MESSAGE_BYTES

MOST_BODY_BYTES = MESSAGE_BYTES - 4 * 2**20
"""Longest body. It leaves room in a frame for other fields and requests: a frame over gRPC's bound would end
the session with all its requests."""


CONTINUING_ENGINES = frozenset({"vllm", "simulated"})
"""Types of engines that report token ids (`return_token_ids`) and accept them as a prompt."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of one process, which never change. `spec.router` of the pool file describes the bounds.

    compares_caches: whether `order` uses which replicas have cached a prompt's prefix.
    prefix_affinity: whether `order` sends requests that probably share a prefix to the same replicas.
    isolates: whether each application has separate cached prefixes.
    direct: whether routers send admitted requests to engines.
    max_moves: most times that a stream is continued on another replica; 0 if engines cannot continue one.
    move_wait_s: longest wait of a stream that is to be continued while no replica is in service.
    longest_wait_s: longest wait for a replica in a pool that may have none; 0 in other pools.
    """

    pool: str
    model: str
    max_model_len: int
    tiers: Mapping[str, Tier]
    default_tier: str
    order: Order
    compares_caches: bool
    prefix_affinity: bool
    isolates: bool
    max_hops: int
    backup: Backup
    max_moves: int
    move_wait_s: float
    direct: bool
    max_body_bytes: int
    max_sequences: int
    body_timeout_s: float
    max_inflight: int
    stream_buffer_bytes: int
    buffer_bytes: int
    verdict_timeout_s: float
    longest_wait_s: float


def settings_of(pool: Pool) -> Settings:
    """Return the settings of the pool's processes."""
    spec = pool.spec
    return Settings(
        pool=pool.metadata.name,
        model=spec.model.name,
        max_model_len=spec.engine.max_model_len,
        tiers=pool.tiers(),
        default_tier=spec.default_tier,
        order=ORDERS[spec.routing_order],
        compares_caches=spec.routing_order != WITHOUT_CACHES,
        prefix_affinity=spec.routing_order == BY_PREFIX and _may_cache(spec.engine),
        isolates=bool(spec.applications) and spec.engine.isolates_applications,
        max_hops=spec.routing.max_hops,
        backup=Backup(spec.routing.backup),
        max_moves=spec.routing.max_moves if spec.engine.type in CONTINUING_ENGINES else 0,
        move_wait_s=spec.routing.move_timeout_s,
        direct=spec.engine.direct,
        max_body_bytes=min(spec.router.max_body_bytes, MOST_BODY_BYTES),
        max_sequences=spec.router.max_sequences_per_request,
        body_timeout_s=spec.router.body_timeout_s,
        max_inflight=spec.router.max_inflight,
        stream_buffer_bytes=spec.router.stream_buffer_bytes,
        buffer_bytes=spec.router.buffer_bytes,
        verdict_timeout_s=spec.router.verdict_timeout_s,
        longest_wait_s=_longest_wait_s(spec.autoscaling),
    )


def _may_cache(engine: EngineSpec) -> bool:
    """Return whether the engine may have a prefix cache. A pool need not set it for type openai."""
    return engine.caches_prefixes or (engine.type == "openai" and engine.prefix_caching is None)


def _longest_wait_s(autoscaling: Autoscaling | None) -> float:
    if autoscaling is None or autoscaling.min_replicas > 0:
        return 0.0
    return autoscaling.wake_timeout_s
