"""Rollouts: when pods are replaced, how many at a time, and how long each may take to drain.

*When.* A pod is replaced when its template changes, or its part of the pool file, whose digest is on the
template. Renewed certificates roll no pods, because both sides reload them.

*How many.* Replicas are replaced one at a time by the StatefulSet's rolling update, highest ordinal first: it
deletes a pod, waits until its successor is ready, and continues. So at least `replicas − 1` are ready. Two at
once (`maxUnavailable` of a StatefulSet) would be faster and cost a second replica's capacity. `partition` is
for manual canaries and stays 0. A pod that never becomes ready stops the rollout. Because pods are managed in
parallel, correcting the pool replaces it immediately; no pod must be deleted by hand. Routers are cheap, so
each new one is ready before an old one stops.

*How long.* A stopping replica takes no new requests and finishes those that it has. Its grace period covers
the longest SLO of its tiers, up to ten minutes, so that a rollout, scale-down or eviction does not cut off
admitted requests. `drainTimeout` is the minimum, and all that best effort gets. The time is a bound, not a
wait: a pod ends with its last request.
"""

import math

from penstock_pool import Pool, TierSpec

from penstock_operator.manifests.digest import digest
from penstock_operator.objects.pool_file import replica_file, router_file

MAX_DRAIN_S = 600.0
"""Upper limit of the drain in seconds, because nodes must be drained at some time."""

ENGINE_STOP_S = 10.0
"""Seconds for the engine to end after its sidecar."""

SLACK_S = 5.0
"""Seconds between a process's own deadline and the kubelet's."""

LAME_DUCK_S = 5.0
"""Seconds for which a stopping router still serves, until proxies have removed it."""

MIN_READY_S = 3
"""Seconds that a new replica is ready before the next one is replaced: routers connect in that time."""


def replica_digest(pool: Pool, http: bool) -> str:
    """Return the digest of what a replica's pod reads. http: whether it serves HTTP."""
    return digest(replica_file(pool, http))


def router_digest(pool: Pool) -> str:
    """Return the digest of what a router's pod reads."""
    return digest(router_file(pool))


def replica_drain_s(pool: Pool) -> float:
    """Return the longest drain of a replica in seconds."""
    return max(pool.spec.scheduling.drain_timeout_s, longest_answer_s(pool))


def replica_grace_s(pool: Pool) -> int:
    """Return the grace period of a replica's pod in seconds, from SIGTERM to SIGKILL."""
    return math.ceil(replica_drain_s(pool) + ENGINE_STOP_S + SLACK_S)


def router_drain_s(pool: Pool) -> float:
    """Return the longest drain of a router in seconds."""
    return max(pool.spec.router.drain_timeout_s, longest_answer_s(pool))


def router_grace_s(pool: Pool) -> int:
    """Return the grace period of a router's pod in seconds, from SIGTERM to SIGKILL."""
    return math.ceil(LAME_DUCK_S + router_drain_s(pool) + SLACK_S)


def longest_answer_s(pool: Pool) -> float:
    """Return the longest time that an admitted request may take within its SLO, at most the upper limit."""
    lengths = (_answer_s(tier, pool.spec.engine.max_model_len) for tier in pool.spec.tiers)
    return min(max(lengths), MAX_DRAIN_S)


def _answer_s(tier: TierSpec, tokens: int) -> float:
    """Return the deadline of the longest answer's last token in seconds. A slowdown target is left out,
    because it depends on the prompt, and is small compared with the answer.
    """
    if tier.slo is None:
        return 0.0
    if tier.slo.e2e_s is not None:
        return tier.slo.e2e_s
    first_s = tier.slo.ttft if isinstance(tier.slo.ttft, float) else 0.0
    tpots_s = [one_s for one_s in (tier.slo.tpot_s, tier.slo.answer_tpot_s) if one_s is not None]
    return first_s + tokens * max(tpots_s) if tpots_s else MAX_DRAIN_S
