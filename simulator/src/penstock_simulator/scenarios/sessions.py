"""Closed-loop arrivals of recorded sessions.

Sessions start at random times (Poisson, given their number). Each further request is sent after the previous
answer and the recorded think time, so only the starts depend on the rate. The rate counts requests: sessions
start at the rate that gives this many requests on average.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from penstock_simulator.arrival import Arrival
from penstock_simulator.scenarios.session_recording import RecordedSession, session_recording

GOLDEN = 0.6180339887498949
"""Its multiples modulo 1 are evenly spread, so the samples begin at different sessions."""


@dataclass(frozen=True, slots=True)
class RecordedSessions:
    """Sessions of a recording.

    count: number of sessions in a sample. hash_id_tokens: tokens per hash id.
    """

    recording: str
    tier: str
    count: int
    hash_id_tokens: int

    def arrivals(self, rate_rps: float, seed: int, laps: int) -> Iterator[Arrival]:
        """Yield all requests, each at the start of its session. laps: factor on the number of sessions."""
        sessions = [*self._drawn(seed, self.count * laps)]
        random = Random(f"starts {seed}")
        span_s = sum(len(turns) for _, turns in sessions) / rate_rps
        starts_s = sorted(random.random() * span_s for _ in sessions)
        for number, (start_s, (salt, turns)) in enumerate(zip(starts_s, sessions, strict=True)):
            for stage, turn in enumerate(turns):
                yield Arrival(
                    id=f"{number}.{stage}",
                    arrival_s=start_s,
                    tier=self.tier,
                    prompt_tokens=turn.prompt_tokens,
                    output_tokens=turn.output_tokens,
                    session=str(number),
                    stage=stage,
                    think_s=turn.think_s,
                    hash_ids=turn.hash_ids,
                    hash_id_tokens=self.hash_id_tokens,
                    salt=salt,
                )

    def _drawn(self, seed: int, count: int) -> Iterator[tuple[str, RecordedSession]]:
        """Yield consecutive sessions and their salts. Repeated sessions share nothing with the first."""
        recorded = session_recording(self.recording)
        first = int(len(recorded) * (seed * GOLDEN % 1.0))
        for place in range(first, first + count):
            lap, index = divmod(place, len(recorded))
            yield str(lap), recorded[index]
