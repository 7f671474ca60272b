"""**class-affinity.** Gathers requests of similar TPOT targets on the same replicas, and spills over under
load.

A batch is at most as long as the smallest TPOT target in it allows. One coding request among chats makes
every batch there short, and short batches waste more time on their fixed cost, so different targets are
better kept apart. A replica belongs to the class of its smallest TPOT target; an idle one belongs to none.
While the first token there would leave half of its budget, a request goes to its own class or to an idle
replica; then to one with a smaller target, which it does not slow down; last to one with a larger target,
which it would slow down. Within each group the soonest first token leads. If all are busy, the order is
`best-fit`'s.

Choose it if tiers have different TPOT targets and there are several replicas: classes settle in proportion to
their load, without configuration or coordination between routers.

Costs: a tier's own replicas are busier than others, so the gain between bursts is lost during bursts. With
equal TPOT targets it is `best-fit`. A tier without a TTFT target spills over only if memory is full. A
best-effort tier has no TPOT target and slows no other tier down.
"""

from collections.abc import Sequence
from math import inf

from penstock_core.routing.orders.turns import ranked
from penstock_core.routing.replica_load import ReplicaLoad, RoutingRequest

SHARE = 0.5
"""Share of the TTFT budget beyond which a replica is busy. The rest covers forecast errors, and requests that
arrive before the next snapshot.
"""

ALIKE = 1.25
"""Largest ratio of TPOT targets within a class: each answer with an end-to-end target has a different one."""


def class_affinity(loads: Sequence[ReplicaLoad], request: RoutingRequest) -> tuple[str, ...]:
    """Order by class: own replicas that are not busy, then other ones that are not, then busy ones."""
    return ranked(loads, request, lambda load: _key(load, request))


def _key(load: ReplicaLoad, request: RoutingRequest) -> tuple[float, ...]:
    first_token_s = load.first_token_s(request.uncached_tokens(load.name), request.now_s)
    full = not load.holds(request.prompt_tokens)
    busy = full or first_token_s > SHARE * request.ttft_s
    mismatch = 0 if busy else _tpot_mismatch(load.snapshot.tightest_tpot_s, request.tpot_s)
    return busy, full, mismatch, first_token_s


def _tpot_mismatch(others_s: float, own_s: float) -> int:
    """Return 0 for the same class or no class, 1 if theirs has the smaller target, 2 if this request has."""
    if others_s == inf:
        return 0
    if own_s * ALIKE < others_s:
        return 2
    return 1 if others_s * ALIKE < own_s else 0
