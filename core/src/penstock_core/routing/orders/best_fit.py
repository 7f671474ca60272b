"""**best-fit.** First the replicas whose planner would likely admit the request, the soonest first token
first.

Each replica's snapshot has its planner's forecast: how long a prefill would wait, how fast it would be beside
the decodes, how much memory is free at the future peak. From that this order predicts the result of
admission. Replicas whose memory can hold the prompt come first, and among them the one with the soonest first
token: admission is most likely there, and affects other requests least, since the wait consists of their
work. A replica whose decodes have a tight TPOT target has less time for prefill, which its forecast includes.

Choose it with a policy that rejects, for long prompts, whose TTFT matters.

Costs: it relies on forecasts of prefills, which do not say whether one more decode can meet its TPOT.
Snapshots age, and the prompt length is an estimate from its bytes. It does not fill one replica to keep
another free: packing was measured, and loses in every burst, since requests wait at the full replica while
the free one is idle.
"""

from collections.abc import Sequence

from penstock_core.routing.orders.turns import ranked
from penstock_core.routing.replica_load import ReplicaLoad, RoutingRequest


def best_fit(loads: Sequence[ReplicaLoad], request: RoutingRequest) -> tuple[str, ...]:
    """Order by whether memory holds the prompt, then by the predicted time of the first token."""
    return ranked(loads, request, lambda load: _key(load, request))


def _key(load: ReplicaLoad, request: RoutingRequest) -> tuple[float, ...]:
    uncached = request.uncached_tokens(load.name)
    return not load.holds(request.prompt_tokens), load.first_token_s(uncached, request.now_s)
