"""**vllm-legacy.** vLLM before its V1 engine, the papers' "vLLM": prompts first, whole, in their own batches.

Choose it to compare with what was published, or where the first token is all that counts. While a waiting
prompt fits, the batch is prompts only, in order of arrival; else it is one token for every running request
[vLLM-D of SOLA, §6.1; the vLLM of SLOs-Serve, §6.1].

Costs: every arrival stops all decodes for as long as its prompt takes, so under load the pace has gaps that
no setting takes away. Nothing is refused or planned. One knob, the engine's: `limits.batch_tokens`, how many
prompt tokens go together. A prompt longer than that, which that engine would have refused, goes in chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.batch.ordered_batch import prompts_or_decodes
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.unconditional_admission import admit_everyone

WATERMARK = 0.01
"""Share of the blocks that a prompt leaves free for those that decode, that engine's own setting."""


@dataclass(frozen=True, slots=True)
class VllmLegacy:
    """vLLM's V0 scheduler with recompute. Remembers nothing between steps."""

    def start(self) -> None:
        """Nothing to remember."""

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Everybody."""
        return admit_everyone(view, new)

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        """Prompts if any can go on or start, else decodes."""
        spare_blocks = int(WATERMARK * view.kv.total_blocks) if view.running else 0
        return prompts_or_decodes(view, view.waiting, spare_blocks).standing_step(), None
