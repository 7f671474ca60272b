"""A client disconnects: the engine aborts its request and frees its KV memory."""

from contextlib import ExitStack
from time import monotonic

from pool_on_cluster.waiting import until

from pool_on_vllm.context import VllmContext
from pool_on_vllm.metrics_page import total
from pool_on_vllm.processes import MODEL
from pool_on_vllm.steps.clients import QUESTION, client_of

STREAMS, TOKENS = 8, 3000
TIMEOUT_S = 30.0


def frees_memory(context: VllmContext) -> str:
    """When clients disconnect, the engines free their KV memory"""
    engines = [replica.engine for replica in context.replicas]
    until(lambda: _idle(context), "the pool is idle", TIMEOUT_S)
    with client_of(context) as client, ExitStack() as streams:
        for _ in range(STREAMS):
            stream = client.chat.completions.create(
                model=MODEL,
                messages=QUESTION,
                max_tokens=TOKENS,
                stream=True,
                extra_body={"ignore_eos": True},
                extra_headers={"x-penstock-tier": "batch"},  # best effort, so that all run at once
            )
            streams.enter_context(stream)
            next(iter(stream))
        until(lambda: _running(engines) == STREAMS, f"{STREAMS} requests run", TIMEOUT_S)
        until(
            lambda: _used(engines) > 0 and _in_sidecars(context) > 0,
            "sidecars report used KV memory",
            TIMEOUT_S,
        )
        used = _used(engines)
        started_s = monotonic()
    until(lambda: _idle(context), "engines and sidecars report free memory", TIMEOUT_S, interval_s=0.02)
    return (
        f"{STREAMS} streams used {used:.1%} of the engines' memory; {monotonic() - started_s:.2f} s after "
        "they were closed, engines and sidecars reported no requests and no used memory"
    )


def _running(engines: list[str]) -> float:
    return sum(total(engine, "vllm:num_requests_running") for engine in engines)


def _used(engines: list[str]) -> float:
    return sum(total(engine, "vllm:kv_cache_usage_perc") for engine in engines)


def _in_sidecars(context: VllmContext) -> float:
    """Return the sum of used memory and requests that the sidecars report."""
    names = ("penstock_replica_kv_used_ratio", "penstock_replica_running", "penstock_replica_open_requests")
    return sum(total(replica.metrics, name) for replica in context.replicas for name in names)


def _idle(context: VllmContext) -> bool:
    engines = [replica.engine for replica in context.replicas]
    waiting = sum(total(engine, "vllm:num_requests_waiting") for engine in engines)
    return _running(engines) == waiting == _used(engines) == _in_sidecars(context) == 0
