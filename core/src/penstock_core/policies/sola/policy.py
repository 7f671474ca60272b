"""**sola.** Balances first-token against per-token latency: it minimises whichever is nearer to breaking.

Choose it where every request has both targets and none may be refused: a single product's chat, say. Each
iteration looks at how far every request's TTFT and TPOT have run, in shares of its own targets. While prompts
are closer to late, prefill goes first, as much as leaves every decode in time; while decodes are, they go
first, with the fewest prompts that keep the rest in time. So neither latency is bought with more of the other
than there is to spare.

Costs: refuses nothing, so far past capacity everybody is late together. Prompts are held back until they
press, which is right for attainment and wrong for a mean TTFT. A request starts only where everybody's
predicted lengths fit the KV cache, so preemption is rare and some memory stays unused. Best effort gets what
targets leave.

Knobs: `window`, iterations over which the choice is smoothed; `surplus_s`, how long a batch may get for the
sake of those without targets; `aging_s`, how long one may wait before nobody overtakes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock_core.batch.best_effort import fill_surplus
from penstock_core.batch.forced_progress import let_oldest_move
from penstock_core.batch.open_batch import OpenBatch
from penstock_core.domain.policy import Knobs, Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.sola.cost import Costs, Gammas, Sent, learned, sent
from penstock_core.policies.sola.iteration import (
    Phases,
    minimise_tpot,
    minimise_ttft,
    phases,
    pressure_of,
    to_spare_s,
)
from penstock_core.policies.sola.kv_admission import startable
from penstock_core.policies.sola.monitor import Pressure, Problem, problem
from penstock_core.policies.sola.workload import Prompts, in_order
from penstock_core.policies.unconditional_admission import admit_everyone


class Remembered(NamedTuple):
    """Between two steps: the last iterations' pressure, the costs' correction, the step under way."""

    window: tuple[Pressure, ...] = ()
    gammas: Gammas = Gammas()
    last: Sent | None = None


@dataclass(frozen=True, slots=True)
class Sola:
    """State-aware scheduling [SOLA]. The paper leaves the window's length open."""

    window: int = 10
    patience: float = 0.25
    surplus_s: float = 0.060
    aging_s: float = Knobs().aging_s

    def start(self) -> Remembered:
        """Nothing seen yet."""
        return Remembered()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Everybody."""
        return admit_everyone(view, new)

    def step(self, view: ReplicaView, memory: Remembered) -> tuple[Step, Remembered]:
        """Monitor, choice of problem, order, workload; then those without targets."""
        gammas = learned(memory.gammas, memory.last, view)
        costs, people = Costs(view.model, gammas), phases(view, self.aging_s)
        state = pressure_of(people, view.now_s)
        window = (*memory.window, state)[-self.window :]
        prompts = in_order(
            [*people.prompts, *people.unhurried],
            view.now_s,
            costs,
            loosened=state.loosened,
            patience=self.patience,
        )
        prompts = prompts.of(startable(view, prompts.jobs, self.aging_s))
        batch = OpenBatch(view)
        if people.decodes and (not prompts.jobs or problem(window) is Problem.TPOT):
            minimise_tpot(batch, people, prompts, costs)
        else:
            minimise_ttft(batch, people, prompts, costs, state.loosened)
        self._fill(batch, people, prompts)
        let_oldest_move(batch)
        return batch.step(), Remembered(window, gammas, sent(batch))

    def _fill(self, batch: OpenBatch, people: Phases, prompts: Prompts) -> None:
        """Surplus, as far as everybody with a target stays in time."""
        others = [
            job for job in (*people.unhurried, *people.best_effort) if job.request.id not in batch.tokens
        ]
        if others:
            now_s = batch.view.now_s
            decodes_s = to_spare_s(people.decodes, now_s, loosened=False)
            fill_surplus(batch, others, min(decodes_s, prompts.slack_s.min(initial=self.surplus_s)))
