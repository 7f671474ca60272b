"""**vllm-legacy.** vLLM before its V1 engine, the papers' "vLLM": prompts first, whole, in their own batches.

Choose it to compare with published results, or if only TTFT counts. While a waiting prompt fits, the batch
has prompts only, in order of arrival; otherwise it is one token for every running request [vLLM-D of SOLA,
§6.1; the vLLM of SLOs-Serve, §6.1].

Costs: every arrival stops all decodes for the duration of its prompt, so under load TPOT has gaps that no
setting removes. It neither rejects nor plans. One knob, the engine's: `limits.batch_tokens`, prompt tokens
that are batched together. A longer prompt, which that engine would have rejected, is computed in chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.batch.ordered_batch import prompts_or_decodes
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.unconditional_admission import admit_all

WATERMARK = 0.01
"""Share of the blocks that a prompt leaves free for decodes; that engine's own setting."""


@dataclass(frozen=True, slots=True)
class VllmLegacy:
    """vLLM's V0 scheduler with recompute. Stateless."""

    def start(self) -> None:
        """Return no state."""

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Admit all candidates."""
        return admit_all(view, new)

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        """Return prompts if any can continue or start, else decodes."""
        spare_blocks = int(WATERMARK * view.kv.total_blocks) if view.running else 0
        return prompts_or_decodes(view, view.waiting, spare_blocks).repeatable_step(), None
