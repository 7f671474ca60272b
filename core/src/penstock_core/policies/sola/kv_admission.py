"""Which prompts may start, by the memory that everybody will need at its worst [SOLA, §5.1; LightLLM].

Preemption costs a whole prefill, so SOLA starts a request only where the future peak of all that run and of
it fits the KV cache (`kv_forecast`). One that does not fit is passed over and the next is tried [Algorithm
1], so a small one may overtake a large one; yet nobody is overtaken who has waited for `aging_s`.

Best effort is left out of the count: it gives its blocks back whenever they are needed. A request whose
predicted peak is more than the whole cache is counted as all of it, since it may well end before that.

The paper computes peaks only where memory is short, to save time. So it is here: while the sum of
everybody's own peaks fits, so does the peak of the sum. And nobody is looked at whom the next batch cannot
reach.
"""

from collections.abc import Sequence

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.forecast.kv_forecast import first_fit


def startable(view: ReplicaView, prompts: Sequence[Job], aging_s: float) -> list[int]:
    """Places of the prompts, given in order, that may be in the next batch, and of those beyond its reach.

    Those that hold memory already may be in it.
    """
    examined = prompts[: _reach(view, prompts)]
    running = [job for job in view.running if not job.best_effort]
    fits = iter(first_fit(view.kv, running, [job for job in examined if job.computed_tokens == 0]))
    may: list[int] = []
    for place, job in enumerate(examined):
        if job.computed_tokens > 0 or next(fits):
            may.append(place)
        elif not job.best_effort and view.now_s - job.request.arrival_s > aging_s:
            return may
    return [*may, *range(len(examined), len(prompts))]


def _reach(view: ReplicaView, prompts: Sequence[Job]) -> int:
    """How many prompts fill a batch."""
    tokens = 0
    for place, job in enumerate(prompts):
        tokens += job.pending_tokens
        if tokens >= view.limits.batch_tokens:
            return place + 1
    return len(prompts)
