"""What a scenario is."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock_core.domain.replica_view import Limits
from penstock_core.domain.slo import Tier
from penstock_core.timing.speculation import Speculation

from penstock_simulator.scenarios.asks import Source
from penstock_simulator.scenarios.recording import Window


@dataclass(frozen=True, slots=True)
class Stream:
    """One application: when its requests come, and what they ask for."""

    window: Window
    asks: Source


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload with its promises and its engine.

    about: one line for people: what it is, and what is special about it.
    tiers: by name, with their targets.
    streams: those that it consists of, in equal shares of its requests.
    time_model: name of the built-in that its engine is.
    kv_tokens: tokens of KV cache of one replica.
    max_output_tokens: the clients' own bound on an answer, which all of them state.
    speculation: what the engine drafts, with the true acceptance; None without a drafter.
    """

    name: str
    about: str
    tiers: Mapping[str, Tier]
    streams: tuple[Stream, ...]
    time_model: str
    kv_tokens: int
    max_output_tokens: int
    speculation: Speculation | None = None
    limits: Limits = field(default_factory=Limits)
