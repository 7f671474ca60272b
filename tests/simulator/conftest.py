"""Engines to test with: a policy that asks for all it may, an engine of a few blocks, one in real time."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from openai import AsyncOpenAI
from patience import eventually
from penstock_core.domain.policy import Policy, Step
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Targets
from penstock_core.domain.ticket import TicketCheck
from penstock_core.domain.verdict import Verdict
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import Term, TimeModel
from penstock_proto.report_socket import ReportSocket
from penstock_proto.sidecar_calls import SidecarCalls
from penstock_runtime.serving import listen, serving
from penstock_simulator.engine.drafter import Drafter
from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.engine.learned_time_model import LearnedTimeModel
from penstock_simulator.engine.measured_speculation import MeasuredSpeculation
from penstock_simulator.engine_timing.ground_truth import ExactTruth
from penstock_simulator.http.api import EngineApi
from penstock_simulator.http.completions import Completions
from penstock_simulator.http.gateway_requests import GatewayRequests
from penstock_simulator.serving.metrics import EngineMetrics
from penstock_simulator.serving.step_loop import StepLoop
from penstock_simulator.serving.step_planner import StepPlanner
from penstock_simulator.serving.step_reports import StepReportSender

MODEL = TimeModel("quick", (Term(1e-6, 0.001),))


class Eager:
    """All running requests, then all that fit, as many tokens as the batch takes."""

    def start(self) -> None:
        return None

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> Sequence[Verdict]:
        raise NotImplementedError

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        room, free, slots = (
            view.limits.batch_tokens,
            view.kv.free_blocks,
            view.limits.running - len(view.running),
        )
        tokens: dict[str, int] = {}
        for job in view.running:
            if room > 0:
                tokens[job.request.id] = min(job.pending_tokens, room)
                room -= tokens[job.request.id]
        for job in view.waiting:
            chunk = min(job.pending_tokens, room)
            if chunk == 0 or slots == 0 or view.kv.blocks_for(chunk) > free:
                break
            tokens[job.request.id] = chunk
            room, free, slots = room - chunk, free - view.kv.blocks_for(chunk), slots - 1
        return Step(tokens), None


@pytest.fixture
def job() -> Callable[..., Job]:
    """A new job: `job("a", prompt_tokens=…, arrival_s=…, best_effort=…)`."""

    def make(
        job_id: str,
        prompt_tokens: int = 10,
        *,
        max_output_tokens: int = 100,
        arrival_s: float = 0.0,
        best_effort: bool = False,
        targets: Targets = Targets(1.0, 0.05),
    ) -> Job:
        request = Request(job_id, "chat", arrival_s, prompt_tokens, max_output_tokens, targets)
        return new_job(request, max_output_tokens, best_effort)

    return make


@dataclass
class RealTime:
    """An engine behind a real socket."""

    loop: StepLoop
    address: tuple[str, int]
    client: AsyncOpenAI

    @property
    def url(self) -> str:
        return "http://{}:{}".format(*self.address)

    async def until(self, holds: Callable[[EngineState], bool]) -> None:
        """Wait for a condition of the engine's state."""
        await eventually(lambda: holds(self.loop.state))


@pytest.fixture
def real_time() -> Callable[..., object]:
    """`async with real_time(kv_tokens=…, policy=…, report_to=…, step_s=…, speculation=…) as engine`.

    ticket_key: of the sidecar whose tickets it requires; None requires none. calls: to a sidecar, which it
    asks about each request.
    """

    @asynccontextmanager
    async def run(
        *,
        kv_tokens: int = 16000,
        policy: Policy[None] | None = None,
        report_to: Path | None = None,
        step_s: float = 0.001,
        drain_s: float = 0.0,
        speculation: Speculation | None = None,
        prefix_caching: bool = False,
        ticket_key: bytes | None = None,
        calls: SidecarCalls | None = None,
    ) -> AsyncIterator[RealTime]:
        model = TimeModel("quick", (Term(1e-6, step_s),))
        report_socket = ReportSocket(report_to, print) if report_to else None
        accepted = Drafter(speculation.acceptance if speculation else 0.0, seed=1).accepted
        limits = Limits(batch_tokens=2048, running=64)
        state = EngineState(kv_tokens, limits, accept=accepted, prefix_caching=prefix_caching)
        metrics = EngineMetrics("tiny", state)
        loop = StepLoop(
            state=state,
            planner=StepPlanner(policy or Eager(), Eager(), state, metrics),
            time_model=LearnedTimeModel(model),
            speculation=MeasuredSpeculation(speculation),
            truth=ExactTruth(model),
            reports=StepReportSender(report_socket, checks_tickets=ticket_key is not None),
            metrics=metrics,
        )
        api = EngineApi(
            Completions(
                loop=loop,
                model="tiny",
                max_model_len=1000,
                max_body_bytes=100_000,
                seed=1,
                tickets=None if ticket_key is None else TicketCheck(),
                ticket_key=lambda: ticket_key or b"",
            )
        )
        listener = listen("127.0.0.1", 0)
        address = listener.getsockname()
        url = f"http://127.0.0.1:{address[1]}/v1"
        stepping = asyncio.create_task(loop.run())
        try:
            async with (
                AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client,
                serving(GatewayRequests(api, calls, 100_000) if calls else api, listener, drain_s),
            ):
                yield RealTime(loop, address, client)
        finally:
            stepping.cancel()
            if report_socket is not None:
                report_socket.close()

    return run
