"""What of the time that windows lend stays unlent while more is refused than promised.

A pace judged over windows lends time to prompts (`batch_plan`), and the last batch before a window's end
may use up what is left of it. If that iteration takes longer than the plan says, every answer breaks whose
window ends with it. Few do, so an answer of a few windows hardly ever meets one, but an answer of hundreds
lives through many. So beside an answer with a hundred windows or more to go, a batch lasts at most a part
of the slack that this one leaves: slack / (1 + `RESERVE`). Decodes alone are never held back by it.

Near capacity a reserve costs more requests than it saves. Where more is asked than can be served it costs
next to nothing. So it is kept only while a replica carries more requests that were refused a promise, and are
served as best effort, than promised ones. Offline work, which asked for none, does not count. Requests that
were turned away cannot: a pool whose `backup` is not best effort has no reserve.

That changes with every request that comes or ends, so a promise made without the reserve has to be kept under
it: where the engine finds no way with it, it goes without (`batching_rules.engines_way`).
"""

from itertools import chain, islice

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.slo import NO_DEADLINE_S
from penstock_core.domain.token_window import WINDOW_TOKENS

RESERVE = 0.2
"""Of a batch's planned time, for it to last longer."""

LONG_ANSWER_TOKENS = 100.0 * WINDOW_TOKENS
"""Still to come of an answer that is long."""


def in_reserve(view: ReplicaView, promised: int) -> float:
    """What batches beside long answers have to spare, where so many requests have a promise: 0 or all."""
    everyone = chain(view.running, view.waiting)
    refused = (job for job in everyone if job.best_effort and job.due_s < NO_DEADLINE_S)
    return RESERVE if next(islice(refused, promised, None), None) else 0.0
