"""A fleet split by phase: some GPUs compute prompts, the others decode [DistServe].

No policy of one replica can be this, so it is a simulation of its own, of the same parts. A request goes to
the prefill GPU with the fewest prompt tokens before it, which brings out its first token. Its KV then travels
to the decode GPU with the least context, waits for room, and the rest comes out there. Nobody is refused, and
prefill and decode never disturb each other. What that costs: neither can help the other out, and the memory
of the prefill GPUs holds no answers.

In the baseline's favour, KV that waits at a full decode GPU takes no memory of the GPU that it came from. The
token budget (`limits.batch_tokens`) is that of prefill batches, L_m in the paper; decode batches have room
for everybody.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from penstock_core.routing.walk import Try, Walk

from penstock_simulator.arrival import Arrival
from penstock_simulator.simulation.agenda import Agenda
from penstock_simulator.simulation.fleet import Fleet
from penstock_simulator.simulation.journey import Journey, request_of
from penstock_simulator.simulation.kv_transfer import KvTransfer
from penstock_simulator.simulation.outcome import Outcome, Verdict
from penstock_simulator.simulation.sessions import Sessions
from penstock_simulator.simulation.split_gpu import DecodeGpu, PrefillGpu


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many GPUs do which."""

    prefill: int
    decode: int

    @property
    def gpus(self) -> int:
        """All of them. A rate per GPU is the fleet's over this."""
        return self.prefill + self.decode

    def __str__(self) -> str:
        return f"{self.prefill}:{self.decode}"


RATIOS = (Ratio(1, 1), Ratio(2, 1), Ratio(1, 2))
"""Those that SLOs-Serve tried and reported the best of [SLOs-Serve, §6.1]."""


def simulate_distserve(
    fleet: Fleet, ratio: Ratio, arrivals: Iterable[Arrival], seed: int
) -> Iterator[Outcome]:
    """Serve arrivals, given in order of time, and tell what became of each, as they end.

    fleet: its policy, replicas and routing are not used. Raises UnknownTimeModel for an engine of which
    nobody knows how large a token's KV is.
    """
    return _Split(fleet, ratio, arrivals, seed).outcomes()


class _Reaches(NamedTuple):
    """A request, or its KV, arrives at a GPU."""

    gpu: PrefillGpu | DecodeGpu
    journey: Journey


class _Ends(NamedTuple):
    """A GPU's iteration ends."""

    gpu: PrefillGpu | DecodeGpu


class _Split:
    """One run."""

    def __init__(self, fleet: Fleet, ratio: Ratio, arrivals: Iterable[Arrival], seed: int) -> None:
        self._fleet, self._transfer = fleet, KvTransfer(fleet)
        seeds = range(seed * ratio.gpus, (seed + 1) * ratio.gpus)
        self._prefill = [PrefillGpu(f"p{i}", fleet, seeds[i]) for i in range(ratio.prefill)]
        self._decode = [DecodeGpu(f"d{i}", fleet, seeds[ratio.prefill + i]) for i in range(ratio.decode)]
        self._sessions = Sessions()
        self._agenda: Agenda[_Reaches | _Ends] = Agenda()
        self._coming = iter(arrivals)
        self._next = next(self._coming, None)
        self._awake: dict[str, PrefillGpu | DecodeGpu] = {}
        self._ended: list[Outcome] = []

    def outcomes(self) -> Iterator[Outcome]:
        """Everything, moment by moment."""
        while (now_s := self._next_moment_s()) is not None:
            while (event := self._agenda.due(now_s)) is not None:
                self._happens(event, now_s)
            while self._next is not None and self._next.arrival_s <= now_s:
                arrival, self._next = self._next, next(self._coming, None)
                if self._sessions.arrive(arrival):
                    self._send(arrival, now_s)
            self._begin(now_s)
            yield from self._ended
            self._ended.clear()

    def _next_moment_s(self) -> float | None:
        planned_s = self._agenda.next_s
        if self._next is None:
            return planned_s
        return self._next.arrival_s if planned_s is None else min(planned_s, self._next.arrival_s)

    def _happens(self, event: _Reaches | _Ends, now_s: float) -> None:
        gpu = self._awake[event.gpu.name] = event.gpu
        if isinstance(event, _Reaches):
            gpu.take(event.journey)
            return
        for journey in gpu.finish(now_s):
            if isinstance(gpu, PrefillGpu) and journey.arrival.output_tokens > 1:
                self._hand_over(journey, now_s)
            else:
                self._end(journey.served(), now_s)

    def _send(self, arrival: Arrival, now_s: float) -> None:
        """A request sets out for the prefill GPU with the fewest tokens before it."""
        fleet = self._fleet
        tier = fleet.tiers[arrival.tier or fleet.default_tier]
        best_effort = tier.best_effort or self._sessions.best_effort(arrival)
        journey = Journey(
            arrival, request_of(arrival, tier, fleet, now_s), best_effort, 0, Walk((), 1, fleet.backup)
        )
        if arrival.prompt_tokens + arrival.output_tokens > fleet.longest_tokens:
            self._end(journey.turned_away(Verdict.FAILED), now_s)
            return
        gpu = min(self._prefill, key=lambda gpu: gpu.load_tokens)
        gpu.load_tokens += arrival.prompt_tokens
        journey.verdict = Verdict.BEST_EFFORT if best_effort else Verdict.ADMITTED
        journey.tried = Try(gpu.name, 1)
        self._agenda.plan(now_s + fleet.hop_latency_s, _Reaches(gpu, journey))

    def _hand_over(self, journey: Journey, now_s: float) -> None:
        """Its KV sets out for the decode GPU with the least context."""
        gpu = min(self._decode, key=lambda gpu: gpu.load_tokens)
        gpu.load_tokens += journey.arrival.prompt_tokens
        assert journey.tried is not None, "it comes from where it was prefilled"
        journey.tried = journey.tried._replace(replica=f"{journey.tried.replica}+{gpu.name}")
        takes_s = self._transfer.seconds(journey.arrival.prompt_tokens)
        self._agenda.plan(now_s + takes_s, _Reaches(gpu, journey))

    def _begin(self, now_s: float) -> None:
        """GPUs that stand still and have work go on."""
        awake, self._awake = self._awake, {}
        for gpu in awake.values():
            end_s = None if gpu.busy else gpu.begin(now_s)
            if end_s is not None:
                self._agenda.plan(end_s, _Ends(gpu))

    def _end(self, outcome: Outcome, now_s: float) -> None:
        self._ended.append(outcome)
        following = self._sessions.ended(outcome, now_s)
        if following is not None:
            self._send(following, now_s)
