"""**least-loaded.** First the replica that would be done first: all it has and this prompt, over its speed.

Choose it where snapshots are fresh: it evens out the whole queue, answers still to be written included, also
between engines of different speed. With policies that refuse nobody the first replica asked is the one that
serves, so nothing else does.

Costs: what a first token waits for is only a part of the number. An answer of a thousand tokens counts like a
prompt of a thousand, though it will be written over a minute and hardly delays a newcomer; and its length is
a prediction.
"""

from collections.abc import Sequence

from penstock_core.routing.orders.turns import ranked
from penstock_core.routing.replica_load import Asked, ReplicaLoad


def least_loaded(loads: Sequence[ReplicaLoad], asked: Asked) -> tuple[str, ...]:
    """By the time that all accepted work and this prompt take."""
    return ranked(loads, asked, lambda load: (load.work_s + load.prefill_s(asked.prompt_tokens),))
