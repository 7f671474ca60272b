"""Counts and measurements of a replay by tier, in a few bytes per request."""

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil

from penstock_core.timing.time_model import BatchWork, TimeModel, chunk_work

from penstock_cli.replay.outcome import RequestEnding, RequestOutcome


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """Return the percentile at `share` of sorted values; None if there are none."""
    return ordered[max(ceil(share * len(ordered)) - 1, 0)] if ordered else None


def _doubles() -> "array[float]":
    return array("d")


@dataclass(slots=True)
class TierTally:
    """One tier, or all of them.

    with_targets: requests that have a target. Only they are met, promoted and admitted here.
    prompt_tokens, cached_tokens: counted only for requests whose engine reported its cached tokens.
    """

    requests: int = 0
    with_targets: int = 0
    met: int = 0
    promoted: int = 0
    admitted: int = 0
    admitted_met: int = 0
    hops: int = 0
    endings: Counter[RequestEnding] = field(default_factory=Counter)
    ttft_s: "array[float]" = field(default_factory=_doubles)
    tpot_s: "array[float]" = field(default_factory=_doubles)
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def add(self, outcome: RequestOutcome, *, targeted: bool) -> None:
        """Count one request that has ended. targeted: whether it has a target."""
        self.requests += 1
        self.hops += outcome.hops
        self.endings[outcome.ending] += 1
        if targeted:
            self.with_targets += 1
            self.met += outcome.met
            self.promoted += outcome.met and outcome.ending is RequestEnding.BEST_EFFORT
            self.admitted += outcome.ending is RequestEnding.ADMITTED
            self.admitted_met += outcome.met and outcome.ending is RequestEnding.ADMITTED
        if outcome.ttft_s is not None:
            self.ttft_s.append(outcome.ttft_s)
        if outcome.tpot_s is not None:
            self.tpot_s.append(outcome.tpot_s)
        if outcome.cached_tokens is not None:
            self.prompt_tokens += outcome.prompt_tokens
            self.cached_tokens += outcome.cached_tokens

    @property
    def attainment(self) -> float | None:
        """Share of requests that met every target: the admitted ones and the promoted ones."""
        return self.met / self.with_targets if self.with_targets else None

    @property
    def attained_admitted(self) -> float | None:
        """Share of requests that were admitted at once and met every target."""
        return self.admitted_met / self.with_targets if self.with_targets else None

    @property
    def attained_promoted(self) -> float | None:
        """Share of requests that were answered "best effort" and still met every target."""
        return self.promoted / self.with_targets if self.with_targets else None

    @property
    def admitted_attainment(self) -> float | None:
        """Share of admitted requests that met every target."""
        return self.admitted_met / self.admitted if self.admitted else None

    @property
    def cached_share(self) -> float | None:
        """Share of the prompts' tokens that were found in prefix caches; None if no engine reported it."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    @property
    def mean_hops(self) -> float | None:
        """Mean number of replicas that decided about a request."""
        return self.hops / self.requests if self.requests else None


@dataclass(slots=True)
class ReplayTally:
    """A replay's tiers, its failures by reason, and the client's own delays.

    without_targets: tiers that set no target. Their requests are counted by tier and not in `all`.
    time_model: time model of the engines, which determines `saved_prefill_s`; None if unknown.
    requests: number of requests of all tiers. last_arrival_s: when the last of them was to be sent.
    first_turns, later_turns: requests of all tiers; a request without a session is a first turn.
    saved_prefill_s: prefill time on idle engines that cached prefixes saved.
    """

    without_targets: frozenset[str] = frozenset()
    time_model: TimeModel | None = None
    requests: int = 0
    last_arrival_s: float = 0.0
    all: TierTally = field(default_factory=TierTally)
    tiers: dict[str, TierTally] = field(default_factory=dict)
    first_turns: TierTally = field(default_factory=TierTally)
    later_turns: TierTally = field(default_factory=TierTally)
    saved_prefill_s: float = 0.0
    reasons: Counter[str] = field(default_factory=Counter)
    late_s: "array[float]" = field(default_factory=_doubles)

    def add(self, outcome: RequestOutcome, late_s: float) -> None:
        """Count one request. late_s: seconds from its planned arrival until it was sent."""
        self.requests += 1
        self.last_arrival_s = max(self.last_arrival_s, outcome.arrival_s)
        targeted = outcome.tier not in self.without_targets
        if targeted:
            self.all.add(outcome, targeted=True)
        self.tiers.setdefault(outcome.tier, TierTally()).add(outcome, targeted=targeted)
        (self.later_turns if outcome.turn else self.first_turns).add(outcome, targeted=targeted)
        if self.time_model is not None and outcome.cached_tokens:
            self.saved_prefill_s += _saved_s(self.time_model, outcome.prompt_tokens, outcome.cached_tokens)
        self.late_s.append(late_s)
        if outcome.ending is RequestEnding.FAILED:
            self.reasons[outcome.reason] += 1

    @property
    def cached_share(self) -> float | None:
        """Share of all prompt tokens that were found in prefix caches; None if no engine reported it."""
        cached = self.first_turns.cached_tokens + self.later_turns.cached_tokens
        prompts = self.first_turns.prompt_tokens + self.later_turns.prompt_tokens
        return cached / prompts if prompts else None


def _saved_s(model: TimeModel, prompt_tokens: int, cached_tokens: int) -> float:
    """Return the time by which a cached prefix shortens a prompt's prefill on an idle replica."""
    rest = max(prompt_tokens - cached_tokens, 1)
    rest_s = model.seconds(BatchWork(rest, 0, chunk_work(rest, cached_tokens)))
    return max(model.prefill_seconds(prompt_tokens) - rest_s, 0.0)
