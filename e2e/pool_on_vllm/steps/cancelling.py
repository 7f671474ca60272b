"""A client that disconnects: the engine stops its request and frees its memory."""

from contextlib import ExitStack
from time import monotonic

from pool_on_cluster.waiting import until

from pool_on_vllm.figures import total
from pool_on_vllm.servers import MODEL
from pool_on_vllm.steps.clients import QUESTION, client_of
from pool_on_vllm.world import World

STREAMS, TOKENS = 8, 3000
PATIENCE_S = 30.0


def frees_the_engine(world: World) -> str:
    """Clients that go away free the engine's KV memory"""
    engines = [replica.engine for replica in world.replicas]
    until(lambda: _idle(world), "the pool is idle", PATIENCE_S)
    with client_of(world) as client, ExitStack() as streams:
        for _ in range(STREAMS):
            stream = client.chat.completions.create(
                model=MODEL,
                messages=QUESTION,
                max_tokens=TOKENS,
                stream=True,
                extra_body={"ignore_eos": True},
                extra_headers={"x-penstock-tier": "batch"},  # no request waits among admitted ones
            )
            streams.enter_context(stream)
            next(iter(stream))
        until(lambda: _running(engines) == STREAMS, f"{STREAMS} requests run", PATIENCE_S)
        until(lambda: _used(engines) > 0 and _seen(world) > 0, "memory is taken, and seen", PATIENCE_S)
        used = _used(engines)
        began_s = monotonic()
    until(lambda: _idle(world), "engines and sidecars have all memory back", PATIENCE_S, every_s=0.02)
    return (
        f"{STREAMS} streams took {used:.1%} of the engines' memory; {monotonic() - began_s:.2f} s after they "
        "were closed nothing ran, and neither engines nor sidecars counted any memory as taken"
    )


def _running(engines: list[str]) -> float:
    return sum(total(engine, "vllm:num_requests_running") for engine in engines)


def _used(engines: list[str]) -> float:
    return sum(total(engine, "vllm:kv_cache_usage_perc") for engine in engines)


def _seen(world: World) -> float:
    """What the sidecars count as taken, or as carried."""
    names = ("penstock_replica_kv_used_ratio", "penstock_replica_running", "penstock_replica_open_requests")
    return sum(total(replica.metrics, name) for replica in world.replicas for name in names)


def _idle(world: World) -> bool:
    engines = [replica.engine for replica in world.replicas]
    waiting = sum(total(engine, "vllm:num_requests_waiting") for engine in engines)
    return _running(engines) == waiting == _used(engines) == _seen(world) == 0
