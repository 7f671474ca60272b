"""**qoserve.** Prompt chunks as large as decodes' slack allows; who can't be in time any more waits behind.

Choose it where tiers differ and nothing may be refused: batches are long while decodes are ahead of their
pace and short while they are not, so the token budget need not be tuned, and in a burst those who can still
be in time are not made late by those who can't [Niyama; QoServe]. Prompts go by deadline plus `work_weight`
times their own prefill time: under load a short one goes first that is due a little later.

Costs: everybody is admitted, so past capacity a share of requests waits for long, and is told nothing. It
looks one batch ahead and does not count memory: a decode may lose its blocks. Relegation is final.

Knobs: `work_weight`; `most_prompt_tokens`, past which longer chunks save nothing; the engine's
`limits.batch_tokens`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.batch.relegation import Lost, Work, beat, divided, lost_of
from penstock_core.batch.slack_batch import slack_batch
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.unconditional_admission import admit_everyone
from penstock_core.timing.time_model import BatchWork


@dataclass(frozen=True, slots=True)
class QoServe:
    """Dynamic chunks, hybrid priority, eager relegation. Remembers who was relegated."""

    work_weight: float = 1.0
    most_prompt_tokens: int = 1024

    def start(self) -> Lost:
        """Nobody was relegated."""
        return frozenset()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Everybody."""
        return admit_everyone(view, new)

    def step(self, view: ReplicaView, memory: Lost) -> tuple[Step, Lost]:
        """The next batch, and who has no promise left to keep."""
        decodes = beat(view)
        live, behind = divided(view, memory, decodes)
        by_priority = Work(live.decodes, self._by_priority(view, live.prefills))
        batch = slack_batch(view, by_priority, behind, decodes, most_prompt_tokens=self.most_prompt_tokens)
        return batch.step(), lost_of(behind)

    def _by_priority(self, view: ReplicaView, prefills: Sequence[Job]) -> list[Job]:
        """By deadline and work left; ties in order of arrival."""
        token_s = self.work_weight * view.model.seconds(BatchWork(1024)) / 1024
        return sorted(prefills, key=lambda job: job.due_s + token_s * job.pending_tokens)
