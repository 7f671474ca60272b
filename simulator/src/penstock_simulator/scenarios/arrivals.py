"""A scenario's requests at a rate: the recorded arrivals with their time stretched, lengths drawn.

Stretching keeps what makes a trace hard, its bursts, in proportion: at half the rate every gap is twice as
long. A rate counts what arrives by itself, a request or a whole session. The seed chooses the sample: with
seed 0 arrivals are the recorded stretch itself, others begin elsewhere in it, and every seed draws its own
lengths.
"""

from collections.abc import Iterator
from heapq import merge
from operator import attrgetter
from random import Random

from penstock_simulator.arrival import Arrival
from penstock_simulator.scenarios.recording import Row
from penstock_simulator.scenarios.scenario import Scenario, Stream


def arrivals(scenario: Scenario, rate_rps: float, seed: int, laps: int = 1) -> Iterator[Arrival]:
    """Its requests in order of arrival. The requests of a session stand together, at the session's time.

    laps: how often the recorded stretch is run through, with new lengths each time. A fleet of four needs
        four times the requests to be under load for as long as one replica.
    """
    samples = [stream.window.rows(seed) for stream in scenario.streams]
    each = min(len(rows) for rows in samples)  # streams have equal shares, and last as long as one another
    lap_s = each * len(samples) / rate_rps
    streams = (
        _requests(
            stream, _laps(_stretched(rows, each, stream.window.seconds, lap_s), laps, lap_s), number, seed
        )
        for number, (stream, rows) in enumerate(zip(scenario.streams, samples, strict=True))
    )
    return merge(*streams, key=attrgetter("arrival_s"))


def _laps(rows: list[Row], laps: int, lap_s: float) -> list[Row]:
    """Rows again and again."""
    return [row._replace(arrival_s=row.arrival_s + lap * lap_s) for lap in range(laps) for row in rows]


def _stretched(rows: list[Row], count: int, seconds: float, span_s: float) -> list[Row]:
    """The first `count` of rows that took `seconds`, laid over `span_s`."""
    end_s = rows[count].arrival_s if count < len(rows) else seconds
    return [row._replace(arrival_s=row.arrival_s / end_s * span_s) for row in rows[:count]]


def _requests(stream: Stream, rows: list[Row], stream_number: int, seed: int) -> Iterator[Arrival]:
    random = Random(f"lengths {stream_number} {seed}")
    for number, (row, asks) in enumerate(zip(rows, stream.asks(rows, random), strict=True)):
        name = f"{stream_number}-{number}"
        session = name if len(asks) > 1 else ""
        for stage, ask in enumerate(asks):
            yield Arrival(
                f"{name}.{stage}" if session else name,
                row.arrival_s,
                ask.tier,
                ask.prompt_tokens,
                ask.output_tokens,
                ask.thinking_tokens,
                session,
                stage,
            )
