"""When pods are replaced, how many at a time, and how long each may take to leave.

*When.* A pod is replaced when its own template changes, and when something changes that it reads at its
start: its part of the pool file, whose digest stands on the template. Certificates roll nothing: both sides
take renewed ones up as they come.

*How many.* Replicas one at a time, by the StatefulSet's rolling update, highest ordinal first: it deletes a
pod, waits until its successor is ready, and goes on. So at least `replicas − 1` are ready all the while; two
at once (`maxUnavailable` of a StatefulSet) would be quicker and is not worth a second GPU's capacity.
`partition` is for canaries by hand and stays 0. One that never becomes ready stops the roll there, and as
pods are managed in parallel, a corrected pool replaces it at once: nobody has to delete pods by hand. Routers
cost little, so each new one is up before an old one goes.

*How long.* A replica told to stop takes no new work and finishes what it has. It is given as long as its
tiers' longest promise may take: an admitted request is never cut off by a roll, a scale-down or an eviction,
as long as that is at most ten minutes. `drainTimeout` is the least; best effort has only that. The time is a
bound, not a wait: a pod leaves when its last request has ended.
"""

import math

from penstock_pool import Pool, TierSpec

from penstock_operator.manifests.digest import digest
from penstock_operator.objects.pool_file import replica_file, router_file

LONGEST_DRAIN_S = 600.0
"""Upper limit, because nodes must be drained at some time."""

ENGINE_STOP_S = 10.0
"""For the engine to end after its sidecar has."""

SLACK_S = 5.0
"""Between a process's own deadline and the kubelet's."""

LAME_DUCK_S = 5.0
"""A router that is to stop goes on serving for so long, until proxies have heard that it leaves."""

SETTLE_S = 3
"""A new replica has been ready for so long before the next one goes: routers have connected to it by then."""


def replica_digest(pool: Pool) -> str:
    """Of what a replica's pod reads."""
    return digest(replica_file(pool))


def router_digest(pool: Pool) -> str:
    """Of what a router's pod reads."""
    return digest(router_file(pool))


def replica_drain_s(pool: Pool) -> float:
    """How long a replica may take to finish what it has."""
    return max(pool.spec.scheduling.drain_timeout_s, longest_promise_s(pool))


def replica_grace_s(pool: Pool) -> int:
    """A replica's pod from being told to stop to being killed."""
    return math.ceil(replica_drain_s(pool) + ENGINE_STOP_S + SLACK_S)


def router_drain_s(pool: Pool) -> float:
    """How long a router may take to finish what it has."""
    return max(pool.spec.router.drain_timeout_s, longest_promise_s(pool))


def router_grace_s(pool: Pool) -> int:
    """A router's pod from being told to stop to being killed."""
    return math.ceil(LAME_DUCK_S + router_drain_s(pool) + SLACK_S)


def longest_promise_s(pool: Pool) -> float:
    """The longest that an admitted request may take and keep its SLO, as far as that is waited for."""
    lengths = (_promise_s(tier, pool.spec.engine.max_model_len) for tier in pool.spec.tiers)
    return min(max(lengths), LONGEST_DRAIN_S)


def _promise_s(tier: TierSpec, tokens: int) -> float:
    """Until the last token of the longest answer is due. What a slowdown comes to is not known here; it is
    little beside the answer."""
    if tier.slo is None:
        return 0.0
    if tier.slo.e2e_s is not None:
        return tier.slo.e2e_s
    first_s = tier.slo.ttft if isinstance(tier.slo.ttft, float) else 0.0
    paces_s = [pace for pace in (tier.slo.tpot_s, tier.slo.answer_tpot_s) if pace is not None]
    return first_s + tokens * max(paces_s) if paces_s else LONGEST_DRAIN_S
