"""**vllm-real.** vLLM itself: what decides is the V1 scheduler of the release named in `requirements.txt`.

Choose it to check a baseline, or a claim about vLLM, against the code that claims are about. Everybody is
admitted, as vLLM does. Without drafts `vllm` takes the very same steps, and with drafts nearly; it needs
nothing and is faster.

Costs: 5 GB of packages (`make vllm-env`), seconds to import, ten times `vllm`'s time a step. It exists in
simulation only: a vLLM engine has it already. One knob, the engine's: `limits.batch_tokens`.

Two things differ from a server. A request whose prompt is a single token starts without the drafts that vLLM
pads it with beside decodes, since the simulated engine drafts for decodes only; they would be refused. And
answers end by the engine's word: vLLM hears of an end as of a stop, in the same step as on a server.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.batch.open_batch import OpenBatch
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.unconditional_admission import admit_everyone

from penstock_simulator.real_vllm.live_scheduler import LiveScheduler, Scheduled


@dataclass(frozen=True, slots=True)
class RealVllm:
    """vLLM's V1 scheduler, its own code. It has been loaded (`location.load`)."""

    def start(self) -> LiveScheduler | None:
        """Nothing yet: vLLM's scheduler is built for the first engine that is seen."""
        return None

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Everybody."""
        return admit_everyone(view, new)

    def step(self, view: ReplicaView, memory: LiveScheduler | None) -> tuple[Step, LiveScheduler]:
        """vLLM's next batch."""
        live = memory or LiveScheduler(view)
        live.follow(view)
        return _as_step(view, live.schedule()), live


def _as_step(view: ReplicaView, wanted: Scheduled) -> Step:
    jobs = {job.request.id: job for job in (*view.running, *view.waiting)}
    batch = OpenBatch(view)
    for job in reversed(view.running):
        if job.request.id in wanted.preempted:
            batch.preempt(job)
    for job_id, tokens in wanted.tokens.items():
        batch.add(jobs[job_id], tokens)
        if jobs[job_id].decoding:
            batch.draft(jobs[job_id], wanted.drafts.get(job_id, 0))
    return batch.step()
