"""Keeps vLLM's scheduler synchronised with a simulated engine.

vLLM's scheduler holds the requests itself and expects events: added requests, finished requests, and at the
end of each step the generated tokens. These are derived from the engine's next view. A request that only the
engine has was added; one that only vLLM has was finished or aborted; the number of generated tokens is the
difference of two counts.

vLLM mutates its state, so unlike other policies' memory this one belongs to one engine from its first step to
its last.
"""

from typing import Any, NamedTuple

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId

from penstock_simulator.real_vllm.scheduler import build_scheduler, longest_tokens, shape_of

TOKEN_ID = 7
"""The id of every token. The scheduler does not read them."""


class SchedulersDiverged(Exception):
    """vLLM and the engine run different requests, which is a defect of this package."""


class Scheduled(NamedTuple):
    """vLLM's plan for the next iteration.

    tokens: pending tokens to compute by request, running ones first, in vLLM's order.
    drafts: draft tokens to verify by request.
    preempted: running requests to preempt.
    """

    tokens: dict[RequestId, int]
    drafts: dict[RequestId, int]
    preempted: set[RequestId]


class LiveScheduler:
    """vLLM's scheduler, and its last step, whose results have not been reported yet.

    scheduler: vLLM's own object.
    """

    def __init__(self, view: ReplicaView) -> None:
        shape = shape_of(view)
        self.scheduler = build_scheduler(shape)
        from vllm.sampling_params import SamplingParams

        self._drafts = shape.drafts
        self._sampling = SamplingParams(max_tokens=longest_tokens(shape), ignore_eos=True)
        self._last_step: Any = None

    def follow(self, view: ReplicaView) -> None:
        """Report what has happened in the engine since the last step to vLLM. Raises SchedulersDiverged."""
        jobs = {job.request.id: job for job in (*view.running, *view.waiting)}
        self._remove_ended(jobs)
        if self._last_step is not None:
            self._finish_step(jobs)
        for job in view.waiting:
            if job.request.id not in self.scheduler.requests:
                self._add(job)
        ours = [job.request.id for job in view.running]
        theirs = [request.request_id for request in self.scheduler.running]
        if ours != theirs:
            raise SchedulersDiverged(f"the engine runs {ours}, vLLM {theirs}")

    def schedule(self) -> Scheduled:
        """Return vLLM's next step."""
        output = self.scheduler.schedule()
        self._last_step = output if output.num_scheduled_tokens else None
        drafts = {job_id: len(tokens) for job_id, tokens in output.scheduled_spec_decode_tokens.items()}
        tokens = {
            job_id: count - drafts.get(job_id, 0) for job_id, count in output.num_scheduled_tokens.items()
        }
        return Scheduled(tokens, drafts, output.preempted_req_ids)

    def _remove_ended(self, jobs: dict[RequestId, Job]) -> None:
        from vllm.v1.request import RequestStatus

        gone = [job_id for job_id in self.scheduler.requests if job_id not in jobs]
        if gone:
            self.scheduler.finish_requests(gone, RequestStatus.FINISHED_STOPPED)

    def _add(self, job: Job) -> None:
        from vllm.v1.request import Request

        new = job.request
        prompt = [TOKEN_ID] * new.prompt_tokens
        self.scheduler.add_request(Request(new.id, prompt, self._sampling, None, arrival_time=new.arrival_s))

    def _finish_step(self, jobs: dict[RequestId, Job]) -> None:
        """Report sampled tokens, then the drafts for the next step, as vLLM's engine core does."""
        from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

        step, requests = self._last_step, self.scheduler.requests
        computed = [job_id for job_id in step.num_scheduled_tokens if job_id in requests]
        sampled = [
            [TOKEN_ID] * (jobs[job_id].generated_tokens - requests[job_id].num_output_tokens)
            for job_id in computed
        ]
        self.scheduler.update_from_output(
            step,
            ModelRunnerOutput(
                req_ids=computed,
                req_id_to_index={job_id: i for i, job_id in enumerate(computed)},
                sampled_token_ids=sampled,
            ),
        )
        if self._drafts:
            drafted = [[TOKEN_ID] * self._drafts for _ in computed]
            self.scheduler.update_draft_token_ids(DraftTokenIds(computed, drafted))
