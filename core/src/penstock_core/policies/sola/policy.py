"""**sola.** Balances TTFT against TPOT: it minimises whichever is nearer to missing its target.

Choose it if every request has both targets and none may be rejected, such as the chat of a single product.
Each iteration examines every request's TTFT and TPOT so far as shares of their targets. While prompts are
closer to being late, prefill goes first, as much as leaves every decode in time. While decodes are, they go
first, with the fewest prompts that keep the rest in time. So neither latency is improved at the cost of the
other's target.

Costs: rejects no request, so far beyond capacity all requests are late together. Prompts are delayed until
they are urgent, which helps attainment and hurts mean TTFT. A request starts only if all predicted lengths
fit the KV cache, so preemption is rare and some memory stays unused. Best effort uses the rest.

Knobs: `window`, iterations over which the choice is smoothed; `surplus_s`, longest batch for requests without
targets; `aging_s`, longest wait of one before none overtakes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock_core.batch.best_effort import fill_surplus
from penstock_core.batch.forced_progress import force_oldest_progress
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
from penstock_core.policies.sola.monitor import LatencyGoal, Pressure, problem
from penstock_core.policies.sola.workload import PromptQueue, in_order
from penstock_core.policies.unconditional_admission import admit_all


class SolaState(NamedTuple):
    """State between two steps: pressure of the last iterations, cost correction, step in progress."""

    window: tuple[Pressure, ...] = ()
    gammas: Gammas = Gammas()
    last: Sent | None = None


@dataclass(frozen=True, slots=True)
class Sola:
    """State-aware scheduling [SOLA]. The paper does not specify the window's length."""

    window: int = 10
    patience: float = 0.25
    surplus_s: float = 0.060
    aging_s: float = Knobs().aging_s

    def start(self) -> SolaState:
        """Return the initial state."""
        return SolaState()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Admit all candidates."""
        return admit_all(view, new)

    def step(self, view: ReplicaView, memory: SolaState) -> tuple[Step, SolaState]:
        """Apply monitor, choice of problem, order and workload; then add requests without targets."""
        gammas = learned(memory.gammas, memory.last, view)
        costs, jobs = Costs(view.model, gammas), phases(view, self.aging_s)
        state = pressure_of(jobs, view.now_s)
        window = (*memory.window, state)[-self.window :]
        prompts = in_order(
            [*jobs.prompts, *jobs.without_target],
            view.now_s,
            costs,
            loosened=state.loosened,
            patience=self.patience,
        )
        prompts = prompts.of(startable(view, prompts.jobs, self.aging_s))
        batch = OpenBatch(view)
        if jobs.decodes and (not prompts.jobs or problem(window) is LatencyGoal.TPOT):
            minimise_tpot(batch, jobs, prompts, costs)
        else:
            minimise_ttft(batch, jobs, prompts, costs, state.loosened)
        self._fill(batch, jobs, prompts)
        force_oldest_progress(batch)
        return batch.step(), SolaState(window, gammas, sent(batch))

    def _fill(self, batch: OpenBatch, jobs: Phases, prompts: PromptQueue) -> None:
        """Add requests without targets, as far as all others stay in time."""
        others = [
            job for job in (*jobs.without_target, *jobs.best_effort) if job.request.id not in batch.tokens
        ]
        if others:
            now_s = batch.view.now_s
            decodes_s = to_spare_s(jobs.decodes, now_s, loosened=False)
            fill_surplus(batch, others, min(decodes_s, prompts.slack_s.min(initial=self.surplus_s)))
