"""**sarathi.** Fixed chunks: every decode in every batch, and the rest of a token budget for prompts.

Choose it where one pace fits everybody and load is steady: with the right budget no token ever waits longer
than one batch of that size, and nothing has to be predicted. Decodes go first, then the prompt under way,
then newcomers in order of arrival [Sarathi-Serve; SplitFuse, SOLA §4.1: n = 256, k = 512].

Costs: the budget suits one pace and one load. Small, it keeps decodes even and lets prompts wait; large, the
other way round; every prompt that is cut is read again by each of its chunks. It knows no SLO and refuses
nobody. One knob, the engine's: `limits.batch_tokens`. At its best it is the largest budget whose batch keeps
the tightest pace.

Beside `vllm` it differs in one thing: a decode never waits behind a prompt that was started before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.batch.open_batch import OpenBatch
from penstock_core.batch.ordered_batch import decodes_first, run_on, start
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.unconditional_admission import admit_everyone


@dataclass(frozen=True, slots=True)
class Sarathi:
    """Decodes, then chunks, under one token budget. Remembers nothing between steps."""

    def start(self) -> None:
        """Nothing to remember."""

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Everybody."""
        return admit_everyone(view, new)

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        """The next batch."""
        batch = OpenBatch(view)
        run_on(batch, decodes_first(view.running))
        if not batch.preempted:
            start(batch, view.waiting)
        return batch.standing_step(), None
