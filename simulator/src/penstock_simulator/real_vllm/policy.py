"""**vllm-real.** The V1 scheduler of the vLLM release named in `requirements.txt`.

Use it to check a baseline or a claim about vLLM against vLLM's code. All requests are admitted, as in vLLM.
Without drafts the policy `vllm` takes identical steps, and with drafts nearly; it needs no installation and
is faster.

Cost: 5 GB of packages (`make vllm-env`), seconds to import, ten times the time of `vllm` per step. It exists
only in simulation. One knob, the engine's: `limits.batch_tokens`.

Two differences from a server: a request with a prompt of one token starts without draft tokens, which vLLM
adds beside decodes, because the simulated engine drafts for decodes only. And the engine decides when answers
end: vLLM receives each end as a stop, in the same step as on a server.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.batch.open_batch import OpenBatch
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.policies.unconditional_admission import admit_all

from penstock_simulator.real_vllm.live_scheduler import LiveScheduler, Scheduled


class NoPromptContent(Exception):
    """The engine has a prefix cache, and vLLM's own scheduler would need prompts' content for its own."""

    def __str__(self) -> str:
        return "policy vllm-real cannot run with a prefix cache; policy vllm can"


@dataclass(frozen=True, slots=True)
class RealVllm:
    """The policy. vLLM must have been loaded (`location.load`)."""

    def start(self) -> LiveScheduler | None:
        """Return None: the scheduler is built for the first view."""
        return None

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Admit all requests."""
        return admit_all(view, new)

    def step(self, view: ReplicaView, memory: LiveScheduler | None) -> tuple[Step, LiveScheduler]:
        """Return vLLM's next step."""
        if view.kv.shared_blocks is not None:
            raise NoPromptContent
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
