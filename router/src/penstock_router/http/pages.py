"""Pages about a router and its pool. None of them is on a request's path."""

import orjson
from penstock_core.domain.slo import Tier
from penstock_core.timing.time_model import TimeModel, to_json
from penstock_pool import Pool
from penstock_routing.applications.tier_selection import unknown_model
from penstock_routing.replicas.replica_link import ReplicaLink
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_runtime.openai_errors import ApiError

ModelEntry = dict[str, object]


def pool_page(pool: Pool, replica_set: ReplicaSet, model: TimeModel | None) -> bytes:
    """Describe the pool's tiers with their targets, its time model and its replicas."""
    page = {
        "pool": pool.metadata.name,
        "model": pool.spec.model.name,
        "policy": pool.spec.scheduling.policy,
        "default_tier": pool.spec.default_tier,
        "tiers": {tier.name: _tier(tier) for tier in pool.tiers().values()},
        "engine": {"type": pool.spec.engine.type, "max_model_len": max_model_len(replica_set, pool)},
        "time_model": None if model is None else to_json(model),
        "replicas": [_replica(link) for link in replica_set.links],
    }
    return orjson.dumps(page)


def model_entry(pool: Pool, replica_set: ReplicaSet, started_s: int) -> ModelEntry:
    """Return the pool's model in OpenAI's format with fields of Penstock. started_s: Unix time."""
    return {
        "id": pool.spec.model.name,
        "object": "model",
        "created": started_s,
        "owned_by": "penstock",
        "engine": pool.spec.engine.type,
        "max_model_len": max_model_len(replica_set, pool),
    }


def models_page(entry: ModelEntry) -> bytes:
    """Return OpenAI's list of models, which has the pool's only model."""
    return orjson.dumps({"object": "list", "data": [entry]})


def model_page(entry: ModelEntry, name: str) -> bytes:
    """Return one model's entry. Raises ApiError (404)."""
    if name != entry["id"]:
        raise unknown_model(name, str(entry["id"]))
    return orjson.dumps(entry)


def ready_page(replica_set: ReplicaSet, draining: bool, may_hold: bool) -> bytes:
    """Return the state of each replica. Raises ApiError (503) if this router should not get requests.

    That is so while it is stopping, or while no replica takes requests. A router that may hold requests stays
    ready without replicas, because a request has to arrive to start the first one.
    """
    if draining:
        raise ApiError(503, "the router is stopping", type="server_error", code="draining")
    states = {link.name: link.state.value for link in replica_set.links}
    if not replica_set.ready and not (may_hold and replica_set.known):
        listed = ", ".join(f"{name} {state}" for name, state in states.items()) or "none is known"
        raise ApiError(503, f"no replica is in service: {listed}", type="server_error", code="no_replicas")
    return orjson.dumps({"status": "ready", "replicas": states})


def max_model_len(replica_set: ReplicaSet, pool: Pool) -> int:
    """Return the smallest context length that engines report, else the pool's."""
    lengths = [link.description.max_model_len for link in replica_set.links]
    return min((length for length in lengths if length), default=pool.spec.engine.max_model_len)


def _tier(tier: Tier) -> dict[str, object]:
    return {
        "ttft_s": tier.slo.ttft_s,
        "ttft_slowdown": tier.slo.ttft_slowdown,
        "tpot_s": tier.slo.tpot_s,
        "answer_tpot_s": tier.slo.answer_tpot_s,
        "e2e_s": tier.slo.e2e_s,
        "judge": tier.slo.judge.value,
        "value": tier.value,
        "best_effort": tier.best_effort,
    }


def _replica(link: ReplicaLink) -> dict[str, object]:
    snapshot = link.load.snapshot
    return {
        "name": link.name,
        "state": link.state.value,
        "running": snapshot.running,
        "waiting": snapshot.waiting,
        "best_effort": snapshot.best_effort,
        "kv_tokens_free": snapshot.kv_tokens_free,
        "kv_tokens_total": snapshot.kv_tokens_total,
        "metrics_url": link.description.metrics_url or None,
    }
