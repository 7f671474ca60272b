"""**slos-serve.** Admits a request only if its SLOs and those of everybody admitted before can be kept.

Choose it when late answers are worth little and something can be done with a request that is refused
early: another replica, a retry, the best-effort tier. Among requests with a promise past capacity it is
the only policy here that keeps every promise it makes, exactly so far as the time model and the predicted
lengths are right.

Costs: it refuses, past capacity costly requests first: the fuller memory is, the less a newcomer may take
for its value. It plans for the worst case within its predictions, one token a batch though decodes draft,
so a little of what it refuses would have been in time. An admission takes a millisecond. Batches end early
(60 ms, or four of the shortest) so that arrivals need not wait, at a few percent of throughput. Best effort
gets surplus only, but the oldest always moves, and who can be promised its targets later is.

Knobs: `aging_s`, how long best effort waits before newcomers must fit around it; a tier's value. `pacing` is
the period of the fluid by which the program proposes sets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from penstock_core.batch.best_effort import oldest_waiting_too_long
from penstock_core.domain.policy import Knobs, Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.forecast.decode_load import Pacing
from penstock_core.policies.slos_serve.admission import decide, way_around
from penstock_core.policies.slos_serve.batch_formation import form_batch
from penstock_core.policies.slos_serve.promotion import promotable, with_promoted


@dataclass(frozen=True, slots=True)
class SlosServe:
    """Admission by dynamic programming, batches by deadline [SLOs-Serve]. Remembers nothing between steps."""

    pacing: Pacing = field(default_factory=Pacing)
    aging_s: float = Knobs().aging_s

    def start(self) -> None:
        """Nothing to remember."""

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """The best set of newcomers that keeps every promise."""
        return decide(view, new, self.pacing, oldest_waiting_too_long(view, self.aging_s))

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        """The next batch, and whom of best effort it can promise something after all."""
        chosen = promotable(view)
        if chosen is not None:
            view = with_promoted(view, chosen)
        oldest = oldest_waiting_too_long(view, self.aging_s)
        around = way_around(view, oldest) if oldest else None
        step = form_batch(view, oldest if around else None, around)
        return (step if chosen is None else replace(step, promote=(chosen.request.id,))), None
