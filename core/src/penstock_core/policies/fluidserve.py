"""**fluidserve.** Holds a request while its deadline allows, and sheds it only when its SLO is about to be
lost.

Choose it if bursts are short and arrivals can wait: a request that does not fit now may fit soon, when others
have ended, whereas an immediate rejection would be final. Requests start in order of deadline, if memory
lasts until all predicted ends and all decodes would still meet the smallest TPOT target. Until then they are
held. Requests that can no longer meet their SLO are shed: served behind all others, and preempted first
[after FluidServe].

Costs: clients are not notified. A client whose request is held learns only at the deadline that its SLO is
missed; an immediate rejection would have let another replica serve it. Starting is greedy, one by one: no
plan weighs which of several requests to start. Wrong lengths cause wrong memory forecasts.

Knobs: `most_prompt_tokens` of a batch; the engine's `limits.batch_tokens`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.batch.relegation import Lost, Work, decode_batch, divide, lost_in
from penstock_core.batch.slack_batch import slack_batch
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, deadline_order
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.start_check import StartCheck
from penstock_core.policies.unconditional_admission import admit_all


@dataclass(frozen=True, slots=True)
class FluidServe:
    """Starts requests by deadline if they fit until their end, holds the others, sheds lost requests.

    The state is the set of shed jobs.
    """

    most_prompt_tokens: int = 1024

    def start(self) -> Lost:
        """Return the initial state."""
        return frozenset()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Admit all candidates."""
        return admit_all(view, new)

    def step(self, view: ReplicaView, memory: Lost) -> tuple[Step, Lost]:
        """Return the next batch, and the shed jobs."""
        decodes = decode_batch(view)
        on_time, relegated = divide(view, memory, decodes)
        by_deadline = Work(on_time.decodes, sorted(on_time.prefills, key=deadline_order))
        start_check = StartCheck(view, by_deadline, decodes)
        batch = slack_batch(
            view,
            by_deadline,
            relegated,
            decodes,
            most_prompt_tokens=self.most_prompt_tokens,
            may_start=start_check.try_start,
        )
        return batch.step(), lost_in(relegated)
