"""Prompts that may start, by a forecast of peak memory [SOLA, §5.1; LightLLM].

Preemption costs a whole prefill, so SOLA starts a request only if the future peak of all running requests and
of it fits the KV cache (`kv_forecast`). One that does not fit is skipped and the next is tried [Algorithm 1],
so a small request may overtake a large one; a request that has waited for `aging_s` is not overtaken.

Best effort does not count, since it is preempted on demand. A request whose predicted peak exceeds the whole
cache counts as all of it, since it may end before that.

The paper computes peaks only if memory is short, to save time, and so does this code: while the sum of the
individual peaks fits, so does the peak of the sum. Requests that the next batch cannot reach are not
examined.
"""

from collections.abc import Sequence

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.forecast.kv_forecast import first_fit


def startable(view: ReplicaView, prompts: Sequence[Job], aging_s: float) -> list[int]:
    """Return the indices of prompts, given in order, that may be in the next batch or are beyond its reach.

    Prompts that hold memory already may be in it.
    """
    examined = prompts[: _reach(view, prompts)]
    running = [job for job in view.running if not job.best_effort]
    fits = iter(first_fit(view.kv, running, [job for job in examined if not job.holds_kv]))
    may: list[int] = []
    for place, job in enumerate(examined):
        if job.holds_kv or next(fits):
            may.append(place)
        elif not job.best_effort and view.now_s - job.request.arrival_s > aging_s:
            return may
    return [*may, *range(len(examined), len(prompts))]


def _reach(view: ReplicaView, prompts: Sequence[Job]) -> int:
    """Return the number of prompts that fill a batch."""
    tokens = 0
    for place, job in enumerate(prompts):
        tokens += job.pending_tokens
        if tokens >= view.limits.batch_tokens:
            return place + 1
    return len(prompts)
