"""**class-affinity.** Requests of like pace gather on the same replicas, and spill over when those are busy.

A batch is as long as the tightest pace in it allows. One coder among chats makes every batch there short, and
short batches waste more on their fixed cost; so whose paces differ had better not meet. A replica belongs to
whoever set its pace, and an idle one to nobody. While the first token there would leave half of its budget,
a request goes to its own kind or to an idle replica; then to one that is paced tighter than it needs, where
it is no burden to others; last to one that it would slow down. Within each the soonest first token leads.
Where all are busy it goes as under `best-fit`.

Choose it where tiers differ in pace and replicas are several: kinds settle by themselves, in proportion to
their load, with nothing to configure or to agree upon between routers.

Costs: a tier's own replicas are kept busier than others, so it pays in bursts for what it gains between
them. With tiers of one pace it is `best-fit`. A tier without a first-token target spills over only where
memory is full. A best-effort tier has no pace and is no burden to anyone.
"""

from collections.abc import Sequence
from math import inf

from penstock_core.routing.orders.turns import ranked
from penstock_core.routing.replica_load import Asked, ReplicaLoad

SHARE = 0.5
"""Of the first-token budget. A replica where more would be gone is busy; half is left for what is forecast
wrong, and for those who arrive before the next snapshot."""

ALIKE = 1.25
"""Paces within this ratio are of one kind: answers with an end-to-end target have one of their own each."""


def class_affinity(loads: Sequence[ReplicaLoad], asked: Asked) -> tuple[str, ...]:
    """Its own kind's replicas that are not busy, then others that are not, then the rest."""
    return ranked(loads, asked, lambda load: _key(load, asked))


def _key(load: ReplicaLoad, asked: Asked) -> tuple[float, ...]:
    tokens = asked.prompt_tokens
    first_token_s, full = load.first_token_s(tokens), not load.holds(tokens)
    busy = full or first_token_s > SHARE * asked.ttft_s
    return busy, full, 0 if busy else _burden(load.snapshot.tightest_pace_s, asked.tpot_s), first_token_s


def _burden(theirs_s: float, own_s: float) -> int:
    """0 among its own kind and where nobody is, 1 where it is held to their pace, 2 where they are to its."""
    if theirs_s == inf:
        return 0
    if own_s * ALIKE < theirs_s:
        return 2
    return 1 if theirs_s * ALIKE < own_s else 0
