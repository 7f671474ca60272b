"""Settings of a simulated fleet: identical replicas and the routers before them.

Decisions see only what real replicas and routers know: the time model, predicted lengths, stale snapshots,
the measured acceptance rate. The ground truth (`truth`, true lengths, `speculation.acceptance`) is visible
only through its effects.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from penstock_core.domain.policy import Knobs
from penstock_core.domain.replica_view import Limits
from penstock_core.domain.slo import Tier
from penstock_core.routing.attempts import Backup
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel

from penstock_simulator.engine_timing.disturbance import Disturbance
from penstock_simulator.engine_timing.ground_truth import TruthKind


class LengthKnowledge(StrEnum):
    """The answer lengths that a replica plans with."""

    PREDICTED = "predicted"  # a prediction learned online from the answers that this replica has finished
    KNOWN = "known"  # the true length


@dataclass(frozen=True, slots=True)
class Fleet:
    """Replicas and routers.

    policy, knobs: every replica's policy.
    model: the time model that planning starts from. Under an exact ground truth it stays unchanged; under a
        measured one every replica corrects it online.
    kv_tokens: KV cache tokens of one replica.
    tiers: tiers by name. default_tier: tier of requests that have none.
    truth: kind of ground truth. truth_model: the built-in time model whose kernel tables are used; "" for
        that of `model`. disturbance: disturbance of every replica's ground truth.
    max_waiting: most best-effort requests of a replica, and most requests that wait at one.
    max_model_len: longest prompt and answer together that an engine serves; None for its KV memory.
    max_output_tokens: `max_tokens` of requests whose true answer is not longer.
    speculation: draft tokens of engines and their true acceptance rate, which planning starts from and then
        measures; None without a drafter.
    order, max_hops, backup: how routers choose replicas; the order is one of `ROUTING_RULES`.
    routers: number of routers; requests go to them in turn.
    hop_latency_s: network latency of each hop.
    snapshot_age_s: delay until routers see what a replica publishes, at each iteration and each verdict.
    placement_delay_s: delay until a router sees other routers' placements; infinite if they do not share
        them.
    prefix_caching: whether engines cache prefixes of prompts.
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
    disturbance: Disturbance = field(default_factory=Disturbance)
    lengths: LengthKnowledge = LengthKnowledge.PREDICTED
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
    placement_delay_s: float = inf
    prefix_caching: bool = False

    @property
    def longest_tokens(self) -> int:
        """Longest prompt and answer together that a replica serves, in tokens."""
        memory_tokens = self.kv_tokens // self.block_tokens * self.block_tokens
        return memory_tokens if self.max_model_len is None else min(memory_tokens, self.max_model_len)
