"""What one seed is: the pool, its processes, its load, and how its network is."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from fault_simulation.network import Weather
from penstock_pool import Pool, parse_pool

TIERS = [
    {"name": "chat", "slo": {"ttft": "2s", "tpot": "100ms"}},
    {"name": "tight", "slo": {"ttft": "500ms", "tpot": "40ms"}},
    {"name": "batch", "bestEffort": True},
]

KEY = "key"
"""Key of the one application, if there is one."""

MOST_AT_ONCE = 4
"""Its limit of concurrent requests."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """One run.

    pool: as routers and sidecars read it. engine_pool: as engines do; another where they schedule by
        themselves.
    replicas, routers: how many at first. gateway: whether clients come through one beside a picker.
    shares: whether there is a Redis, through which routers share an application's limits and placements.
    per_minute, tokens_per_minute: most requests and tokens of the application in a minute, where limited.
    tight: whether routers hold few bytes over all requests.
    busy: whether clients come in a burst, with long prompts, over a network without long delays.
    families: of prompts that begin alike.
    as_plugin: whether engines report as the plug-in in vLLM does.
    outbox_bytes: that a sidecar holds for a router that reads its session slowly.
    skew: versions of the other side of each session: of sidecars and of routers, -1 earlier, 1 later.
    """

    pool: Pool
    engine_pool: Pool
    replicas: int
    routers: int
    gateway: bool
    shares: bool
    per_minute: int | None
    tokens_per_minute: int | None
    tight: bool
    busy: bool
    families: int
    as_plugin: bool
    skew: tuple[int, int]
    outbox_bytes: int
    weather: Weather


def scenario_of(random: Random) -> Scenario:
    """Draw one."""
    direct = random.random() < 0.3
    own_scheduling = not direct and random.random() < 0.15
    caching = random.random() < 0.3
    policy = random.choice(("vllm", "sarathi", "slos-serve", "slos-serve"))
    busy = random.random() < 0.12
    max_moves, kv_tokens = random.choice((0, 1, 2, 2)), random.choice((2_048, 40_000))
    kv_tokens = 40_000 if busy else kv_tokens
    gateway = random.random() < 0.2
    shares = not gateway and not busy and random.random() < 0.25
    stream_bytes = random.choice((2_048, 256 << 10, 256 << 10))
    tight = not busy and random.random() < 0.15
    per_minute = random.choice((None, None, 3, 6)) if shares else None
    tokens_per_minute = random.choice((None, None, 400, 1_000)) if shares else None
    common: dict[str, Any] = {
        "max_moves": max_moves,
        "kv_tokens": kv_tokens,
        "caching": caching,
        "direct": direct,
    }
    pool = _pool(
        "openai" if own_scheduling else "simulated",
        policy,
        stream_bytes=stream_bytes,
        buffer_bytes=random.choice((1_536, 4_096)) if tight else 256 << 20,
        shares=shares,
        per_minute=per_minute,
        tokens_per_minute=tokens_per_minute,
        **common,
    )
    return Scenario(
        pool=pool,
        engine_pool=_pool("simulated", "vllm", **common) if own_scheduling else pool,
        replicas=random.choice((1, 1, 2) if busy else (1, 2, 3, 3)),
        routers=random.choice((1, 1, 2, 3)),
        gateway=gateway,
        shares=shares,
        per_minute=per_minute,
        tokens_per_minute=tokens_per_minute,
        tight=tight,
        busy=busy,
        families=random.choice((1, 2, 4)) if caching else 0,
        as_plugin=random.random() < 0.4,
        skew=(random.choice((0 if gateway else -1, 0, 0, 0, 1)), random.choice((-1, 0, 0, 0, 1))),
        outbox_bytes=random.choice((64 << 10, 64 << 20)),
        weather=replace(_weather(random), slow_share=0.0) if busy else _weather(random),
    )


def _pool(
    engine: str,
    policy: str,
    *,
    max_moves: int,
    kv_tokens: int,
    caching: bool,
    direct: bool,
    stream_bytes: int = 256 << 10,
    buffer_bytes: int = 256 << 20,
    shares: bool = False,
    per_minute: int | None = None,
    tokens_per_minute: int | None = None,
) -> Pool:
    limits = {
        "concurrentRequests": MOST_AT_ONCE,
        "requestsPerMinute": per_minute,
        "tokensPerMinute": tokens_per_minute,
    }
    tiers = {"tier": "chat", "allow": ["tight", "batch"]}
    application: dict[str, Any] = {"name": "team", **tiers, "keys": {"file": "keys"}}
    application["limits"] = {name: limit for name, limit in limits.items() if limit is not None}
    document = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": "faults"},
        "spec": {
            "model": {"name": "m"},
            "engine": {
                "type": engine,
                "timeModel": "llama-3-8b-a100",
                "maxModelLen": 8192,
                "kvCacheTokens": kv_tokens,
                "prefixCaching": caching,
                "silenceTimeout": "5s",
                "answerPath": "direct" if direct else "sidecar",
            },
            "scheduling": {"policy": policy},
            "tiers": TIERS,
            "routing": {"backup": "best-effort", "maxMoves": max_moves},
            "router": {"streamBufferBytes": stream_bytes, "bufferBytes": buffer_bytes},
            "applications": [application] if shares else [],
        },
    }
    return parse_pool(document, "pool.yaml")


def _weather(random: Random) -> Weather:
    """Draw how the network is. One run in four has none of it."""
    if random.random() < 0.25:
        return Weather()

    def share(most: float) -> float:
        return random.random() * most if random.random() < 0.5 else 0.0

    return Weather(
        delay_s=random.choice((0.0002, 0.0005, 0.005)),
        slow_share=share(0.05),
        cut_share=share(0.5),
        lost=share(0.5),
        doubled=share(0.3),
        late=share(0.3),
        torn=share(0.1),
        kernel_bytes=random.choice((4 << 10, 64 << 10)),
        window_bytes=random.choice((64 << 10, 1 << 20)),
    )
