"""Disaggregated serving: some GPUs prefill, the others decode [DistServe].

This cannot be a policy of one replica, so it is a separate simulation built from the same parts. A request
goes to the prefill GPU with the fewest queued prompt tokens, which generates its first token. Its KV is then
transferred to the decode GPU with the least context, waits there for memory, and the remaining tokens are
generated there. All requests are admitted, and prefill and decode do not interfere. In return, neither kind
of GPU can do the other's work, and the memory of prefill GPUs holds no answers.

In the baseline's favour, KV that waits at a full decode GPU occupies no memory of its prefill GPU. The token
budget (`limits.batch_tokens`) is that of prefill batches, L_m in the paper; decode batches have no limit.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from penstock_core.routing.attempts import Attempts, Try

from penstock_simulator.arrival import Arrival
from penstock_simulator.simulation.disaggregated.kv_transfer import KvTransfer
from penstock_simulator.simulation.disaggregated.phase_gpu import DecodeGpu, PrefillGpu
from penstock_simulator.simulation.event_queue import EventQueue
from penstock_simulator.simulation.fleet import Fleet
from penstock_simulator.simulation.outcome import FirstVerdict, SimulatedOutcome
from penstock_simulator.simulation.sessions import Sessions
from penstock_simulator.simulation.simulated_request import SimulatedRequest, request_of


@dataclass(frozen=True, slots=True)
class Ratio:
    """Numbers of prefill GPUs and decode GPUs."""

    prefill: int
    decode: int

    @property
    def gpus(self) -> int:
        """Number of GPUs, by which a rate per GPU is computed."""
        return self.prefill + self.decode

    def __str__(self) -> str:
        return f"{self.prefill}:{self.decode}"


RATIOS = (Ratio(1, 1), Ratio(2, 1), Ratio(1, 2))
"""The ratios of which SLOs-Serve reports the best [SLOs-Serve, §6.1]."""


def simulate_distserve(
    fleet: Fleet, ratio: Ratio, arrivals: Iterable[Arrival], seed: int
) -> Iterator[SimulatedOutcome]:
    """Serve arrivals, which are sorted by time, and yield each outcome when its request ends.

    fleet: its policy, replicas and routing are ignored. Raises UnknownTimeModel if the size of a token's KV
    is unknown for its engine.
    """
    return _SplitFleet(fleet, ratio, arrivals, seed).outcomes()


class _ReachesGpu(NamedTuple):
    """A request or its KV arrives at a GPU."""

    gpu: PrefillGpu | DecodeGpu
    simulated: SimulatedRequest


class _GpuIterationEnds(NamedTuple):
    """A GPU's iteration ends."""

    gpu: PrefillGpu | DecodeGpu


class _SplitFleet:
    """One simulation run."""

    def __init__(self, fleet: Fleet, ratio: Ratio, arrivals: Iterable[Arrival], seed: int) -> None:
        self._fleet, self._transfer = fleet, KvTransfer(fleet)
        seeds = range(seed * ratio.gpus, (seed + 1) * ratio.gpus)
        self._prefill = [PrefillGpu(f"p{i}", fleet, seeds[i]) for i in range(ratio.prefill)]
        self._decode = [DecodeGpu(f"d{i}", fleet, seeds[ratio.prefill + i]) for i in range(ratio.decode)]
        self._sessions = Sessions()
        self._events: EventQueue[_ReachesGpu | _GpuIterationEnds] = EventQueue()
        self._arrivals = iter(arrivals)
        self._next_arrival = next(self._arrivals, None)
        self._to_start: dict[str, PrefillGpu | DecodeGpu] = {}
        self._ended: list[SimulatedOutcome] = []

    @property
    def _next_arrival_s(self) -> float | None:
        return None if self._next_arrival is None else self._next_arrival.arrival_s

    def outcomes(self) -> Iterator[SimulatedOutcome]:
        """Run to the end, and yield outcomes."""
        while (now_s := self._events.next_before_s(self._next_arrival_s)) is not None:
            while (event := self._events.pop_due(now_s)) is not None:
                self._process(event, now_s)
            while self._next_arrival is not None and self._next_arrival.arrival_s <= now_s:
                arrival, self._next_arrival = self._next_arrival, next(self._arrivals, None)
                if self._sessions.arrive(arrival, now_s) is not None:
                    self._send(arrival, now_s)
            self._start_iterations(now_s)
            yield from self._ended
            self._ended.clear()

    def _process(self, event: _ReachesGpu | _GpuIterationEnds, now_s: float) -> None:
        gpu = self._to_start[event.gpu.name] = event.gpu
        if isinstance(event, _ReachesGpu):
            gpu.take(event.simulated)
            return
        for simulated in gpu.finish(now_s):
            if isinstance(gpu, PrefillGpu) and simulated.arrival.output_tokens > 1:
                self._hand_over(simulated, now_s)
            else:
                self._end(simulated.served_outcome(), now_s)

    def _send(self, arrival: Arrival, now_s: float) -> None:
        """Send a request to the prefill GPU with the fewest queued prompt tokens."""
        fleet = self._fleet
        tier = fleet.tiers[arrival.tier or fleet.default_tier]
        best_effort = tier.best_effort or self._sessions.best_effort(arrival)
        simulated = SimulatedRequest(
            arrival, request_of(arrival, tier, fleet, now_s), best_effort, 0, Attempts((), 1, fleet.backup)
        )
        if arrival.prompt_tokens + arrival.output_tokens > fleet.longest_tokens:
            self._end(simulated.unserved_outcome(FirstVerdict.FAILED), now_s)
            return
        gpu = min(self._prefill, key=lambda gpu: gpu.load_tokens)
        gpu.load_tokens += arrival.prompt_tokens
        simulated.verdict = FirstVerdict.BEST_EFFORT if best_effort else FirstVerdict.ADMITTED
        simulated.tried = Try(gpu.name, 1)
        self._events.schedule(now_s + fleet.hop_latency_s, _ReachesGpu(gpu, simulated))

    def _hand_over(self, simulated: SimulatedRequest, now_s: float) -> None:
        """Transfer its KV to the decode GPU with the least context."""
        gpu = min(self._decode, key=lambda gpu: gpu.load_tokens)
        gpu.load_tokens += simulated.arrival.prompt_tokens
        assert simulated.tried is not None, "it was sent to a prefill GPU"
        simulated.tried = simulated.tried._replace(replica=f"{simulated.tried.replica}+{gpu.name}")
        transfer_s = self._transfer.seconds(simulated.arrival.prompt_tokens)
        self._events.schedule(now_s + transfer_s, _ReachesGpu(gpu, simulated))

    def _start_iterations(self, now_s: float) -> None:
        """Start the next iteration of idle GPUs."""
        to_start, self._to_start = self._to_start, {}
        for gpu in to_start.values():
            end_s = None if gpu.busy else gpu.begin(now_s)
            if end_s is not None:
                self._events.schedule(end_s, _GpuIterationEnds(gpu))

    def _end(self, outcome: SimulatedOutcome, now_s: float) -> None:
        self._ended.append(outcome)
        following = self._sessions.ended(outcome, now_s)
        if following is not None:
            self._send(following, now_s)
