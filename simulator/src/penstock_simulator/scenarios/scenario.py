"""The definition of a scenario."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock_core.domain.replica_view import Limits
from penstock_core.domain.slo import Tier
from penstock_core.timing.speculation import Speculation

from penstock_simulator.scenarios.recording import RecordingWindow
from penstock_simulator.scenarios.request_sources import RequestSource
from penstock_simulator.scenarios.sessions import RecordedSessions


@dataclass(frozen=True, slots=True)
class RequestStream:
    """The requests of one application: arrival times and lengths."""

    window: RecordingWindow
    requests: RequestSource


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload with its SLOs and its engine.

    about: a description in one line.
    tiers: tiers by name.
    streams: its parts, with equal shares of its requests.
    time_model: name of the engine's built-in time model.
    kv_tokens: KV cache tokens of one replica.
    max_output_tokens: `max_tokens` of all requests.
    sessions: recorded sessions instead of streams, whose requests are judged one by one.
    prefix_caching: whether engines cache prefixes of prompts. block_tokens: tokens of a KV block.
    speculation: draft tokens of the engine with their true acceptance rate; None without a drafter.
    """

    name: str
    about: str
    tiers: Mapping[str, Tier]
    streams: tuple[RequestStream, ...]
    time_model: str
    kv_tokens: int
    max_output_tokens: int
    speculation: Speculation | None = None
    limits: Limits = field(default_factory=Limits)
    sessions: RecordedSessions | None = None
    prefix_caching: bool = False
    block_tokens: int = 16
