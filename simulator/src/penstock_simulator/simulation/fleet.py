"""What is simulated: replicas that are all alike, the routers before them, and what each is told.

Two things are kept apart that a flattering simulator would mix. What replicas and routers believe (`model`,
predicted lengths, stale snapshots, a measured acceptance) is all that their decisions see. What is true
(`truth`, the arrivals' own lengths, `speculation.acceptance`) only ever shows in what happens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from penstock_core.domain.policy import Knobs
from penstock_core.domain.replica_view import Limits
from penstock_core.domain.slo import Tier
from penstock_core.routing.walk import Backup
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel

from penstock_simulator.truth import TruthKind


class Lengths(StrEnum):
    """What a replica knows of an answer's length before it has ended."""

    PREDICTED = "predicted"  # learned online from the answers that this replica has finished
    KNOWN = "known"  # the truth


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas and routers.

    policy, knobs: what every replica decides by.
    model: the time model that planning starts from. Under an exact truth it is the truth, and stays as it is;
        under a measured one every replica corrects it by what it measures.
    kv_tokens: of one replica's cache.
    tiers: by name; `default_tier` is that of requests that name none.
    truth: what iterations really take. truth_model: the built-in whose kernels they run; "" for `model`'s.
    max_waiting: most best-effort requests that a replica holds, and most that it holds beside those that run.
    max_model_len: longest prompt and answer together that an engine takes; None for all of its memory.
    max_output_tokens: the clients' own bound on answers, unless one is longer.
    speculation: what engines can draft, and their true acceptance. Planning starts from that figure, and goes
        by what it measures; None: no drafter.
    order, max_hops, backup: as routers walk.
    routers: requests are dealt to them in turn, and each counts its own.
    hop_latency_s: from a router to a replica, and from one replica's refusal to the next.
    snapshot_age_s: how much later routers see what a replica publishes, at each iteration and each verdict.
    placements_heard_s: how much later they hear what others have sent where; infinite: they share nothing.
    """

    policy: str
    model: TimeModel
    kv_tokens: int
    tiers: Mapping[str, Tier]
    default_tier: str
    replicas: int = 1
    knobs: Knobs = field(default_factory=Knobs)
    limits: Limits = field(default_factory=Limits)
    block_tokens: int = 16
    truth: TruthKind = TruthKind.MEASURED
    truth_model: str = ""
    lengths: Lengths = Lengths.PREDICTED
    max_waiting: int = 1_000_000
    max_model_len: int | None = None
    max_output_tokens: int = 4096
    speculation: Speculation | None = None
    order: str = "round-robin"
    max_hops: int = 3
    backup: Backup = Backup.BEST_EFFORT
    routers: int = 1
    hop_latency_s: float = 0.001
    snapshot_age_s: float = 0.005
    placements_heard_s: float = inf

    @property
    def longest_tokens(self) -> int:
        """Longest prompt and answer together that a replica serves."""
        memory_tokens = self.kv_tokens // self.block_tokens * self.block_tokens
        return memory_tokens if self.max_model_len is None else min(memory_tokens, self.max_model_len)
