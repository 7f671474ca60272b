"""**class-affinity.** Each tier gathers on replicas of its own, and spills over when those are busy.

A batch is as long as the tightest pace in it allows. One coder among chats makes every batch there short, and
short batches waste more on their fixed cost; so whose paces differ had better not meet. Each tier ranks all
replicas by a draw of its own (rendezvous hashing: alike in every router, and a replica that comes or goes
moves nobody else) and takes them in that order, so long as the first token there would not use up its share
of the budget and memory holds the prompt. The others follow, the soonest first token first.

Choose it where tiers differ much in pace and each has traffic for a replica or more of its own.

Costs: the first replicas of a tier are kept busier than others, so bursts meet a queue that they need not
have met, and more first tries are refused. With tiers of one pace it gains nothing for that. A tier without
a first-token target spills over only where memory is full.
"""

from collections.abc import Sequence
from hashlib import blake2b

from penstock_core.orders.turns import ranked
from penstock_core.replica_load import Asked, ReplicaLoad

SHARE = 0.5
"""Of the first-token budget. A replica where more would be gone is busy; half is left for what is forecast
wrong, and for those who arrive before the next snapshot."""


def class_affinity(loads: Sequence[ReplicaLoad], asked: Asked) -> tuple[str, ...]:
    """The tier's own replicas that are not busy, as it likes them; then the rest as `best_fit` ranks them."""
    return ranked(loads, asked, lambda load: _key(load, asked))


def _key(load: ReplicaLoad, asked: Asked) -> tuple[float, ...]:
    tokens = asked.prompt_tokens
    first_token_s, crowded = load.first_token_s(tokens), load.kv_tokens_headroom < tokens
    if crowded or first_token_s > SHARE * asked.ttft_s:
        return True, crowded, first_token_s
    return False, False, -_liking(asked.tier, load.name)


def _liking(tier: str, name: str) -> int:
    """How much a tier likes a replica: drawn once and for all."""
    return int.from_bytes(blake2b(f"{tier}\0{name}".encode(), digest_size=8).digest(), "big")
