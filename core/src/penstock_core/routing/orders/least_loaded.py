"""**least-loaded.** First the replica that would finish first: all of its work and this prompt, over its
speed.

Choose it if snapshots are fresh: it balances the whole queue, including answers still to be generated, also
between engines of different speed. With policies that reject no request, the first replica asked serves the
request, so only the order balances load.

Costs: only a part of this time delays a first token. An answer of a thousand tokens counts like a prompt of a
thousand, although it is generated over a minute and hardly delays a new request; and its length is a
prediction.
"""

from collections.abc import Sequence

from penstock_core.routing.orders.turns import ranked
from penstock_core.routing.replica_load import ReplicaLoad, RoutingRequest


def least_loaded(loads: Sequence[ReplicaLoad], request: RoutingRequest) -> tuple[str, ...]:
    """Order by the time of all accepted work and of this prompt's uncached tokens."""
    return ranked(
        loads, request, lambda load: (load.done_s(request.uncached_tokens(load.name), request.now_s),)
    )
