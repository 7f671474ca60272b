"""A pool behind Envoy with `answerPath: direct`: Envoy sends requests to vLLM, which asks its sidecar."""

import json

from pool_on_cluster.waiting import until

from pool_on_vllm import pools
from pool_on_vllm.context import VllmContext
from pool_on_vllm.metrics_page import fetch, total
from pool_on_vllm.processes import LocalPool
from pool_on_vllm.steps.startup import start

ANSWERS = 4
"""Answers that the steps with the official client request."""


def start_pool(context: VllmContext) -> str:
    """Two replicas start behind Envoy, whose endpoints are vLLM's own ports"""
    file, log = pools.direct(context), context.file("up-behind-envoy.log")
    started = start(context, LocalPool(file, context.model, 2, log, gateway="envoy"))
    engines = {replica.engine.removeprefix("http://") for replica in context.replicas}
    until(lambda: _endpoints(context) == engines, "Envoy's endpoints are the engines")
    return started


def counted(context: VllmContext) -> str:
    """Sidecars have counted and judged what engines have answered"""

    def answered() -> float:
        return _total(context, "direct_answers_total", outcome="whole")

    until(lambda: answered() == ANSWERS, f"{ANSWERS} answers are counted")
    met, judged = (_total(context, f"http_slo_{name}_total") for name in ("met", "judged"))
    output = f"{answered():.0f} answers, none through a sidecar; {met:.0f} of {judged:.0f} met their SLO"
    assert met == judged == ANSWERS, output
    return output


def _endpoints(context: VllmContext) -> set[str]:
    page = fetch(f"{context.pool.router.admin_url}/ready")
    return set() if page is None else set(json.loads(page)["endpoints"].values())


def _total(context: VllmContext, name: str, **labels: str) -> float:
    return sum(total(replica.metrics, f"penstock_replica_{name}", **labels) for replica in context.replicas)
