"""GPUs of a disaggregated fleet: one kind prefills, the other decodes.

Both run the same engine as a replica, under a policy of core. A prefill GPU computes whole prompts first
come, first served, as many in a batch as its token budget allows, and a request leaves it with its first
token. A decode GPU takes requests in the order in which their KV arrives, when it has memory for them, and
decodes all of them in every iteration. If it runs out of memory, it preempts the request started last and
recomputes its KV itself.
"""

from collections import deque
from dataclasses import replace

from penstock_core.domain.request import Job, advance, new_job
from penstock_core.policies.vllm import Vllm
from penstock_core.policies.vllm_legacy import VllmLegacy

from penstock_simulator.engine.drafter import Drafter
from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.engine.generation import no_drafts
from penstock_simulator.engine.measured_speculation import MeasuredSpeculation
from penstock_simulator.simulation.fleet import Fleet
from penstock_simulator.simulation.iteration_timer import iteration_timer
from penstock_simulator.simulation.simulated_request import SimulatedRequest


class PhaseGpu:
    """Base of both kinds: requests by id, an engine and its timing.

    busy: whether an iteration is running.
    load_tokens: prompt tokens of requests at this GPU or sent to it, for load balancing.
    """

    def __init__(self, name: str, fleet: Fleet, policy: Vllm | VllmLegacy, seed: int) -> None:
        self.name, self._policy = name, policy
        self._timer = iteration_timer(fleet, seed)
        speculation = fleet.speculation
        self._speculation = MeasuredSpeculation(speculation)
        accept = no_drafts if speculation is None else Drafter(speculation.acceptance, seed).accepted
        self._engine = EngineState(fleet.kv_tokens, fleet.limits, fleet.block_tokens, accept)
        self._requests: dict[str, SimulatedRequest] = {}
        self.busy = False
        self.load_tokens = 0

    def begin(self, now_s: float) -> float | None:
        """Start an iteration and return its end time; None if there is no request."""
        if not self._engine.running and not self._engine.waiting:
            return None
        view = self._engine.view(now_s, now_s, self._timer.model, self._speculation.measured)
        iteration = self._engine.start(self._policy.step(view, None)[0])
        self.busy = True
        return self._timer.begin(iteration.shape(), now_s)

    def finish(self, now_s: float) -> list[SimulatedRequest]:
        """End the iteration. Returns the requests that leave this GPU."""
        outcome = self._engine.finish(now_s)
        self.busy = False
        self._timer.end(now_s)
        self._speculation.observe(outcome.drafted)
        for job_id, tokens in outcome.tokens.items():
            self._requests[job_id].take(tokens, now_s)
        leaving = [self._requests.pop(job_id) for job_id in outcome.finished]
        self.load_tokens -= sum(simulated.arrival.prompt_tokens for simulated in leaving)
        return leaving


class PrefillGpu(PhaseGpu):
    """Computes prompts and their first tokens."""

    def __init__(self, name: str, fleet: Fleet, seed: int) -> None:
        super().__init__(name, replace(fleet, speculation=None), VllmLegacy(), seed)

    def take(self, simulated: SimulatedRequest) -> None:
        """Queue a request."""
        job = new_job(simulated.request, simulated.request.max_output_tokens, simulated.best_effort)
        self._engine.add(job, 1)
        self._requests[job.request.id] = simulated


class DecodeGpu(PhaseGpu):
    """Decodes requests whose KV a prefill GPU computed."""

    def __init__(self, name: str, fleet: Fleet, seed: int) -> None:
        drafts = fleet.speculation.max_tokens if fleet.speculation else 0
        all_tokens = fleet.limits.running * (1 + drafts)
        limits = replace(fleet.limits, batch_tokens=max(fleet.limits.batch_tokens, all_tokens))
        super().__init__(name, replace(fleet, limits=limits), Vllm(), seed)
        self._arrived: deque[tuple[Job, SimulatedRequest]] = deque()

    def take(self, simulated: SimulatedRequest) -> None:
        """Queue a request whose KV has arrived."""
        first_token_s = simulated.token_times_s[0]
        job = new_job(simulated.request, simulated.request.max_output_tokens, simulated.best_effort)
        self._arrived.append((advance(job, simulated.arrival.prompt_tokens, 1, first_token_s), simulated))

    def begin(self, now_s: float) -> float | None:
        """Add arrived requests that fit, in order but after preempted ones, and start an iteration."""
        while self._arrived and not self._engine.waiting:
            job, simulated = self._arrived[0]
            if not self._engine.has_room(job.computed_tokens + 1):
                break
            self._arrived.popleft()
            self._engine.receive(job, simulated.arrival.output_tokens, simulated.arrival.thinking_tokens)
            self._requests[job.request.id] = simulated
        return super().begin(now_s)
