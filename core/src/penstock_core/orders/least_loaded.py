"""**least-loaded.** First the replica that would be done first with all it has: work over speed.

Choose it for policies that refuse nobody, where the first replica asked is the one that serves: it evens out
the whole queue, answers still to be written included, also between engines of different speed.

Costs: an answer of a thousand tokens counts like a prompt of a thousand, though it bothers nobody who comes
after it half as much; what a first token waits for is only a part of the number. It knows predicted lengths,
not true ones.
"""

from collections.abc import Sequence

from penstock_core.orders.turns import ranked
from penstock_core.replica_load import Asked, ReplicaLoad


def least_loaded(loads: Sequence[ReplicaLoad], asked: Asked) -> tuple[str, ...]:
    """By the time all accepted work takes."""
    return ranked(loads, asked, lambda load: (load.work_s,))
