"""**fluidserve.** Hold a request while its deadline allows; shed it only when that is about to be lost.

Choose it where bursts are short and arrivals can wait a little: a request that does not fit now may fit in a
moment, when others have ended, and one that was refused at once would have been lost for nothing. A request
starts when memory lasts until everybody's predicted end, when all decodes would still keep the tightest pace
with it, in order of deadline. Until then it is held; who can't be in time any more is shed: served
behind all others, and first to give its memory back [after FluidServe].

Costs: nobody is told. A client whose request is held learns at its deadline what a refusal would have told
at once, when another replica could still have served it. Starting is greedy, one by one: no plan weighs
which of several to keep. Wrong lengths are wrong memory.

Knobs: `most_prompt_tokens` of a batch; the engine's `limits.batch_tokens`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.batch.relegation import Lost, Work, beat, divided, lost_of
from penstock_core.batch.slack_batch import slack_batch
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, deadline_order
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.admission_on_hold import Holding
from penstock_core.policies.unconditional_admission import admit_everyone


@dataclass(frozen=True, slots=True)
class FluidServe:
    """Starts by deadline what fits to its end, holds the rest, sheds the lost. Remembers who was shed."""

    most_prompt_tokens: int = 1024

    def start(self) -> Lost:
        """Nobody was shed."""
        return frozenset()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Everybody."""
        return admit_everyone(view, new)

    def step(self, view: ReplicaView, memory: Lost) -> tuple[Step, Lost]:
        """The next batch, and who was shed."""
        decodes = beat(view)
        live, behind = divided(view, memory, decodes)
        by_deadline = Work(live.decodes, sorted(live.prefills, key=deadline_order))
        holding = Holding(view, by_deadline, decodes)
        batch = slack_batch(
            view,
            by_deadline,
            behind,
            decodes,
            most_prompt_tokens=self.most_prompt_tokens,
            may_start=holding.starts,
        )
        return batch.step(), lost_of(behind)
