"""The outcome of one request, and whether it met its tier's targets.

The router measures times when it writes bytes to the client. An answer that is not streamed is written at
once, so its token times are those at which the engine generated them, as reported by the replica. If the
engine sends no reports, they are unknown, and the answer is judged by its end-to-end latency alone.

One event may contain several tokens. Replicas report the number if they know it; tokens that are only in the
final count are distributed over the events. A thinking model's first token is its first thinking token.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate

from penstock_core.domain.judgement import exceeds, judge
from penstock_core.domain.slo import Slo, Targets, Tier
from penstock_core.timing.time_model import TimeModel
from penstock_proto import replica_pb2 as wire

from penstock_routing.request.generation_request import slo_with

MOST_TIMES = 2**18
"""Most token times of one request that follow from a replica's counts. A count may be wrong, and each time
takes memory and time on the event loop: 2 MiB and 25 ms for all of them."""


class Ending(StrEnum):
    """How a request ended."""

    ANSWERED = "answered"  # completely
    REJECTED = "rejected"  # no replica could meet its SLO, or no replica was in service
    INVALID = "invalid"  # the engine or the replica rejected it as invalid
    FAILED = "failed"  # a replica or engine failed
    CLIENT_GONE = "client_gone"
    CLIENT_SLOW = "client_slow"


@dataclass(slots=True)
class Outcome:
    """The outcome of a request, filled in while it is served.

    verdict: admitted, best-effort or rejected; `none` until there is one. reason: reason of a rejection.
    decided: whether the first verdict was counted.
    hops: replicas that answered, including the one that accepted it.
    moves: attempts to continue its stream on another replica.
    token_times_s: when each token was written, on the event loop's clock.
    """

    tier: Tier
    own_targets: Targets
    arrival_s: float
    stream: bool
    verdict: str = "none"
    reason: str = ""
    decided: bool = False
    hops: int = 0
    failovers: int = 0
    moves: int = 0
    ending: Ending = Ending.FAILED
    ended_s: float = 0.0
    token_times_s: list[float] = field(default_factory=list)
    finished: wire.Finished | None = None


def add_times(times_s: list[float], tokens: int, now_s: float) -> None:
    """Add the time of several tokens that were written at once, up to `MOST_TIMES`."""
    times_s.extend([now_s] * min(tokens, MOST_TIMES - len(times_s)))


@dataclass(frozen=True, slots=True)
class Measured:
    """Durations as the client observes them; None with too few tokens.

    tpot_s: TPOT; if thinking and answer have separate targets, the worse of the two.
    tpot_met: whether it is within its target.
    """

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float
    tpot_met: bool = True


def measured(outcome: Outcome) -> Measured:
    """Return the durations of an answered request, with TPOT as its tier judges it."""
    e2e_s = outcome.ended_s - outcome.arrival_s
    finished, targets = outcome.finished or wire.Finished(), slo_of(outcome).targets(0.0)
    times_s = (
        _per_token(outcome.token_times_s, finished.completion_tokens)
        if outcome.stream
        else _reported_times(outcome)
    )
    if not times_s:
        return Measured(None, None, e2e_s)
    judged = judge(targets, outcome.arrival_s, times_s, finished.thinking_tokens)
    return Measured(judged.ttft_s, judged.tpot_s, e2e_s, "tpot" not in judged.broken)


def _reported_times(outcome: Outcome) -> list[float]:
    """Return when the engine generated an answer's tokens; empty if it does not report."""
    gaps_us = outcome.finished.token_gaps_us if outcome.finished else ()
    return list(accumulate((gap_us / 1e6 for gap_us in gaps_us), initial=outcome.arrival_s))[1:]


def _per_token(times_s: list[float], tokens: int) -> list[float]:
    """Return a time for each token, also if there were more tokens than events."""
    events, tokens = len(times_s), min(tokens, MOST_TIMES)
    return [times_s[at * events // tokens] for at in range(tokens)] if 0 < events < tokens else times_s


def missed_targets(targets: Targets, durations: Measured) -> list[str]:
    """Return the targets that were not met."""
    met = {
        "ttft": not exceeds(durations.ttft_s, targets.ttft_s),
        "tpot": durations.tpot_met,
        "e2e": not exceeds(durations.e2e_s, targets.e2e_s),
    }
    return [name for name, is_met in met.items() if not is_met]


def targets_of(outcome: Outcome, model: TimeModel | None) -> Targets | None:
    """Return the request's targets; None if a slowdown cannot be converted to seconds."""
    slo = slo_of(outcome)
    if slo.ttft_slowdown is None:
        return slo.targets(0.0)
    if model is None or outcome.finished is None or not outcome.finished.prompt_tokens:
        return None
    return slo.targets(model.prefill_seconds(outcome.finished.prompt_tokens))


def slo_of(outcome: Outcome) -> Slo:
    """Return the tier's SLO with the request's own targets."""
    return slo_with(outcome.tier.slo, outcome.own_targets)
