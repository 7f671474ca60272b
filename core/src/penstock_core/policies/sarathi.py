"""**sarathi.** Fixed chunks: every decode in every batch, and the rest of a token budget for prompts.

Choose it if one TPOT target applies to all requests and load is steady: with the right budget no token waits
longer than one batch of that size, and no prediction is needed. Decodes go first, then the prompt in
progress, then new requests in order of arrival [Sarathi-Serve; SplitFuse, SOLA §4.1: n = 256, k = 512].

Costs: the budget suits one TPOT target and one load. A small one keeps decodes regular and delays prompts, a
large one the opposite; each chunk of a prompt reads the previous ones again. It ignores SLOs and rejects
nothing. One knob, the engine's: `limits.batch_tokens`; the best value is the largest budget whose batch meets
the smallest TPOT target.

It differs from `vllm` in one way: a decode never waits behind a prompt that was started before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.batch.ordered_batch import decodes_first, running_then_new
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.unconditional_admission import admit_all


@dataclass(frozen=True, slots=True)
class Sarathi:
    """Decodes, then chunks, within one token budget. Stateless."""

    def start(self) -> None:
        """Return no state."""

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Admit all candidates."""
        return admit_all(view, new)

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        """Return the next batch."""
        return running_then_new(view, decodes_first(view.running), view.waiting).repeatable_step(), None
