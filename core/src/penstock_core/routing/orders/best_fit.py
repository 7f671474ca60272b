"""**best-fit.** First the replicas whose planner would likely admit it, the soonest first token first.

Each replica tells what its planner sees: how long a prefill would wait, how fast it would go beside what
decodes there, how much memory stays free at the future peak. From that this order forecasts what admission
tests. Replicas whose memory would hold the prompt come before those whose would not, and among them the one
that would bring its first token out soonest: admission is likeliest where that is, and it costs the others
there least, since the wait is their work. A replica that decodes at a tight pace leaves prefill less, so it
looks as slow as it is.

Choose it with a policy that refuses, where prompts are long: the soonest first token is what is wanted.

Costs: it believes forecasts, and they are of prefills: whether one more decode can keep its pace they do not
say. News ages, and the prompt length is a guess from its bytes. It fills no replica on purpose to keep
another free: packing was measured, and loses in every burst, since work waits at the full replica while the
free one stands still.
"""

from collections.abc import Sequence

from penstock_core.routing.orders.turns import ranked
from penstock_core.routing.replica_load import Asked, ReplicaLoad


def best_fit(loads: Sequence[ReplicaLoad], asked: Asked) -> tuple[str, ...]:
    """By whether its memory holds the prompt, then by when its first token would be out."""
    tokens = asked.prompt_tokens
    return ranked(loads, asked, lambda load: (not load.holds(tokens), load.first_token_s(tokens)))
