"""**qoserve.** Sizes prompt chunks by the slack of decodes; requests that can no longer be in time wait.

Choose it if tiers differ and no request may be rejected: batches are long while decodes are ahead of their
deadlines and short while they are not, so the token budget needs no tuning, and in a burst requests that can
still be in time are not delayed by those that cannot [Niyama; QoServe]. Prompts are ordered by deadline plus
`work_weight` times their own prefill time: under load a short prompt that is due a little later goes first.

Costs: all requests are admitted, so beyond capacity a share of them waits for long without a notice. It plans
one batch ahead and does not forecast memory: a decode may be preempted. Relegation is final.

Knobs: `work_weight`; `most_prompt_tokens`, beyond which longer chunks have no benefit; the engine's
`limits.batch_tokens`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.batch.relegation import Lost, Work, decode_batch, divide, lost_in
from penstock_core.batch.slack_batch import slack_batch
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.unconditional_admission import admit_all
from penstock_core.timing.time_model import BatchWork

USUAL_TOKENS = 1024
"""Size of the batch from whose time per token the remaining work of a prompt is estimated."""


@dataclass(frozen=True, slots=True)
class QoServe:
    """Dynamic chunks, hybrid priority, eager relegation. The state is the set of relegated jobs."""

    work_weight: float = 1.0
    most_prompt_tokens: int = 1024

    def start(self) -> Lost:
        """Return the initial state."""
        return frozenset()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Admit all candidates."""
        return admit_all(view, new)

    def step(self, view: ReplicaView, memory: Lost) -> tuple[Step, Lost]:
        """Return the next batch, and the jobs that can no longer meet their SLO."""
        decodes = decode_batch(view)
        on_time, relegated = divide(view, memory, decodes)
        by_priority = Work(on_time.decodes, self._by_priority(view, on_time.prefills))
        batch = slack_batch(view, by_priority, relegated, decodes, most_prompt_tokens=self.most_prompt_tokens)
        return batch.step(), lost_in(relegated)

    def _by_priority(self, view: ReplicaView, prefills: Sequence[Job]) -> list[Job]:
        """Return the prefills by deadline and remaining work; ties in order of arrival."""
        token_s = self.work_weight * view.model.seconds(BatchWork(USUAL_TOKENS)) / USUAL_TOKENS
        return sorted(prefills, key=lambda job: job.due_s + token_s * job.pending_tokens)
