"""Safety margin on batches beside long answers, while a replica is overloaded.

TPOT judged over windows lends time to prefill (`batch_plan`), and the last batch before a window's end may
use up what is left of it. If that iteration takes longer than planned, every answer breaks whose window
ends with it. An answer of a few windows hardly ever meets one, an answer of hundreds lives through many. So
beside an answer with a hundred windows or more to go, a batch lasts at most slack / (1 + `MARGIN`) of it.

Near capacity a margin costs more requests than it saves. So there is one only while a replica carries more
requests that were rejected and are served best effort than admitted ones. Work that asked for no SLO does
not count. At three times the capacity of Reasoning, 98.3 % of admitted requests keep their SLO without it
and 99.5 % with it; elsewhere it changes nothing (`bench/results/ablations.md`).
"""

from itertools import chain, islice

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.slo import NO_DEADLINE_S

MARGIN = 0.2
"""Of a batch's planned duration, for it to last longer."""


def overload_margin(view: ReplicaView, admitted: int) -> float:
    """Return the margin of plans beside so many admitted requests: none or all."""
    everyone = chain(view.running, view.waiting)
    rejected = (job for job in everyone if job.best_effort and job.due_s < NO_DEADLINE_S)
    return MARGIN if next(islice(rejected, admitted, None), None) else 0.0
