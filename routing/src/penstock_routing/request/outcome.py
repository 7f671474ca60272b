"""The outcome of one request, and whether it met its tier's targets.

Times are measured by the router when bytes are written to the client. An answer that is not streamed is
written at once: its token times are those at which the engine generated them, as reported by the replica. If
the engine sends no reports, they are unknown, and the answer is judged by its end-to-end latency alone.

One event may contain several tokens. Replicas report the number if they know it; tokens that only the final
count reveals are distributed over the events. A thinking model's first token is its first thinking token.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate

from penstock_core.domain.judgement import exceeds, judge
from penstock_core.domain.slo import Slo, Targets, Tier
from penstock_core.timing.time_model import TimeModel
from penstock_proto import replica_pb2 as wire

from penstock_routing.request.generation_request import slo_with


class Ending(StrEnum):
    """How a request ended."""

    ANSWERED = "answered"  # whole
    REJECTED = "rejected"  # no replica could meet its SLO, or there was none
    INVALID = "invalid"  # the engine or the replica found it invalid
    FAILED = "failed"  # a fault behind the router
    CLIENT_GONE = "client_gone"
    CLIENT_SLOW = "client_slow"


@dataclass(slots=True)
class Outcome:
    """Filled in while the request is served.

    verdict: admitted, best-effort or rejected; `none` until there is one. reason: of a rejection.
    decided: whether there has been a verdict.
    hops: replicas that answered, with the one that took it.
    moves: times that its stream was continued on another replica, or was to be.
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


@dataclass(frozen=True, slots=True)
class Measured:
    """Durations as the client saw them; None where there were too few tokens.

    tpot_s: of the thinking or of the answer, where each has a target of its own: the worse of the two.
    tpot_met: whether that is within its target.
    """

    ttft_s: float | None
    tpot_s: float | None
    e2e_s: float
    tpot_met: bool = True


def measured(outcome: Outcome) -> Measured:
    """Return the durations of an answered request, its TPOT as its tier judges it."""
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
    """Return when the engine produced an answer's tokens; empty where it does not report."""
    gaps_us = outcome.finished.token_gaps_us if outcome.finished else ()
    return list(accumulate((gap_us / 1e6 for gap_us in gaps_us), initial=outcome.arrival_s))[1:]


def _per_token(times_s: list[float], tokens: int) -> list[float]:
    """Return a time for each token, where there were more of them than events."""
    events = len(times_s)
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
    """Return the request's targets; None where a slowdown cannot be converted to seconds."""
    slo = slo_of(outcome)
    if slo.ttft_slowdown is None:
        return slo.targets(0.0)
    if model is None or outcome.finished is None or not outcome.finished.prompt_tokens:
        return None
    return slo.targets(model.prefill_seconds(outcome.finished.prompt_tokens))


def slo_of(outcome: Outcome) -> Slo:
    """Return the tier's SLO with the request's own targets in place."""
    return slo_with(outcome.tier.slo, outcome.own_targets)
