"""**vllm.** Today's vLLM: all requests are admitted, first come first served, prompts in chunks beside
decodes.

Choose it as the baseline, or if load stays below capacity: it neither rejects nor plans. Each step spends a
token budget on running requests in the order they were started, decodes and unfinished prompts alike, then on
waiting ones in order of arrival. When blocks run out, the request started last is preempted, and computed
again from its tokens. If the engine has a drafter, every decode verifies the same fixed number of draft
tokens.

Costs: ignores SLOs. A burst makes all requests late, tight and loose tiers alike, and best effort is served
like the rest. The budget also bounds the longest pause between two tokens. One knob, the engine's:
`limits.batch_tokens`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.batch.ordered_batch import running_then_new
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.unconditional_admission import admit_all


@dataclass(frozen=True, slots=True)
class Vllm:
    """vLLM's V1 scheduler. Stateless."""

    def start(self) -> None:
        """Return no state."""

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Admit all candidates."""
        return admit_all(view, new)

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        """Return the next batch: running requests, then waiting ones unless a request had to be preempted."""
        return running_then_new(view, view.running, view.waiting).repeatable_step(), None
