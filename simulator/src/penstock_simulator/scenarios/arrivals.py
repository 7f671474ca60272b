"""A scenario's requests at a rate: recorded arrivals with time scaled, and drawn lengths.

Scaling keeps bursts in proportion: at half the rate every gap is twice as long. A rate counts a session once.
The seed selects the sample: seed 0 has the recorded window itself, others start at other times of the
recording, and every seed draws its own lengths.
"""

from collections.abc import Iterator
from heapq import merge
from operator import attrgetter
from random import Random

from penstock_simulator.arrival import Arrival
from penstock_simulator.scenarios.recording import RecordedRequest
from penstock_simulator.scenarios.scenario import RequestStream, Scenario


def arrivals(scenario: Scenario, rate_rps: float, seed: int, laps: int = 1) -> Iterator[Arrival]:
    """Yield the scenario's requests in order of arrival.

    All requests of a session have the session's arrival time.
    laps: repetitions of the recorded window, with new lengths each time. A fleet of four needs four times the
        requests to be under load for as long as one replica.
    """
    if scenario.sessions is not None:
        yield from scenario.sessions.arrivals(rate_rps, seed, laps)
        return
    samples = [stream.window.rows(seed) for stream in scenario.streams]
    count = min(len(rows) for rows in samples)  # streams have equal shares and equal durations
    lap_s = count * len(samples) / rate_rps
    streams = (
        _requests(
            stream, _laps(_stretched(rows, count, stream.window.seconds, lap_s), laps, lap_s), number, seed
        )
        for number, (stream, rows) in enumerate(zip(scenario.streams, samples, strict=True))
    )
    yield from merge(*streams, key=attrgetter("arrival_s"))


def _laps(rows: list[RecordedRequest], laps: int, lap_s: float) -> list[RecordedRequest]:
    """Repeat the rows."""
    return [row._replace(arrival_s=row.arrival_s + lap * lap_s) for lap in range(laps) for row in rows]


def _stretched(
    rows: list[RecordedRequest], count: int, seconds: float, span_s: float
) -> list[RecordedRequest]:
    """Return the first `count` of rows recorded over `seconds`, scaled to `span_s`."""
    end_s = rows[count].arrival_s if count < len(rows) else seconds
    return [row._replace(arrival_s=row.arrival_s / end_s * span_s) for row in rows[:count]]


def _requests(
    stream: RequestStream, rows: list[RecordedRequest], stream_number: int, seed: int
) -> Iterator[Arrival]:
    random = Random(f"lengths {stream_number} {seed}")
    for number, (row, requests) in enumerate(zip(rows, stream.requests(rows, random), strict=True)):
        name = f"{stream_number}-{number}"
        session = name if len(requests) > 1 else ""
        for stage, request in enumerate(requests):
            yield Arrival(
                f"{name}.{stage}" if session else name,
                row.arrival_s,
                request.tier,
                request.prompt_tokens,
                request.output_tokens,
                request.thinking_tokens,
                session,
                stage,
            )
