"""One GPU of a fleet that is split by phase: it computes prompts, or it goes on with what others computed.

Both kinds are the engine that every replica has, under a policy of the core. A prefill GPU serves whole
prompts first come first served, as many at once as its token budget says, and a request leaves it with its
first token. A decode GPU takes requests in the order in which their KV arrives, once it has room for it, and
decodes all it has at every iteration. One that runs out of memory preempts who came last and computes that
one's tokens again by itself.
"""

from collections import deque
from dataclasses import replace

from penstock_core.domain.request import Job, advance, new_job
from penstock_core.policies.vllm import Vllm
from penstock_core.policies.vllm_legacy import VllmLegacy

from penstock_simulator.drafter import Drafter
from penstock_simulator.drafting import Drafting
from penstock_simulator.engine_state import EngineState, no_drafts
from penstock_simulator.simulation.fleet import Fleet
from penstock_simulator.simulation.journey import Journey
from penstock_simulator.simulation.timing import pace_of


class SplitGpu:
    """What both kinds are: journeys by id, an engine, its timing.

    busy: an iteration is under way.
    load_tokens: of prompts that are here or on their way, for whoever spreads requests.
    """

    def __init__(self, name: str, fleet: Fleet, policy: Vllm | VllmLegacy, seed: int) -> None:
        self.name, self._policy = name, policy
        self._pace = pace_of(fleet, seed)
        told = fleet.speculation
        self._drafting = Drafting(told)
        accept = no_drafts if told is None else Drafter(told.acceptance, seed).accepted
        self._engine = EngineState(fleet.kv_tokens, fleet.limits, fleet.block_tokens, accept)
        self._journeys: dict[str, Journey] = {}
        self.busy = False
        self.load_tokens = 0

    def begin(self, now_s: float) -> float | None:
        """Start an iteration, and say when it ends; None where there is nothing to do."""
        if not self._engine.running and not self._engine.waiting:
            return None
        view = self._engine.view(now_s, now_s, self._pace.model, self._drafting.measured)
        iteration = self._engine.start(self._policy.step(view, None)[0])
        self.busy = True
        return self._pace.begin(iteration.shape(), now_s)

    def finish(self, now_s: float) -> list[Journey]:
        """End the iteration. Returns those that leave."""
        outcome = self._engine.finish(now_s)
        self.busy = False
        self._pace.end(now_s)
        self._drafting.observe(outcome.drafted)
        for job_id, tokens in outcome.tokens.items():
            self._journeys[job_id].take(tokens, now_s)
        leaving = [self._journeys.pop(job_id) for job_id in outcome.finished]
        self.load_tokens -= sum(journey.arrival.prompt_tokens for journey in leaving)
        return leaving


class PrefillGpu(SplitGpu):
    """Computes prompts to their first token."""

    def __init__(self, name: str, fleet: Fleet, seed: int) -> None:
        super().__init__(name, replace(fleet, speculation=None), VllmLegacy(), seed)

    def take(self, journey: Journey) -> None:
        """A request joins the queue."""
        job = new_job(journey.request, journey.request.max_output_tokens, journey.best_effort)
        self._engine.add(job, 1)
        self._journeys[job.request.id] = journey


class DecodeGpu(SplitGpu):
    """Goes on with requests whose KV has come."""

    def __init__(self, name: str, fleet: Fleet, seed: int) -> None:
        drafts = fleet.speculation.max_tokens if fleet.speculation else 0
        everybody_tokens = fleet.limits.running * (1 + drafts)
        limits = replace(fleet.limits, batch_tokens=max(fleet.limits.batch_tokens, everybody_tokens))
        super().__init__(name, replace(fleet, limits=limits), Vllm(), seed)
        self._arrived: deque[tuple[Job, Journey]] = deque()

    def take(self, journey: Journey) -> None:
        """Its KV is here, and waits for room."""
        first_token_s = journey.token_times_s[0]
        job = new_job(journey.request, journey.request.max_output_tokens, journey.best_effort)
        self._arrived.append((advance(job, journey.arrival.prompt_tokens, 1, first_token_s), journey))

    def begin(self, now_s: float) -> float | None:
        """Those that have arrived and fit join first, in order; nobody overtakes who was preempted."""
        while self._arrived and not self._engine.waiting:
            job, journey = self._arrived[0]
            if not self._engine.has_room(job.computed_tokens + 1):
                break
            self._arrived.popleft()
            self._engine.receive(job, journey.arrival.output_tokens, journey.arrival.thinking_tokens)
            self._journeys[job.request.id] = journey
        return super().begin(now_s)
