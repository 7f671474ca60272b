"""Warm-up: the policy's first steps with synthetic requests, before the engine is ready.

First calls are slow: modules are imported, machine code is loaded, or compiled without a cache. In a live
engine that would delay the first request, or exceed the policy's time limit. So the policy first plans for
synthetic requests: waiting, started and decoding ones. The resulting memory is discarded. An error here is
raised, because it would also fail the first requests.
"""

from typing import Any

from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel

REQUESTS = 8
"""Number of requests."""
PROMPT_TOKENS, ANSWER_TOKENS = 100, 20
"""Tokens of a request."""
BLOCKS, BLOCK_TOKENS = 1024, 16
"""Size of the KV cache, which is more than enough."""


def warm_up(policy: Policy[Any], limits: Limits, model: TimeModel, speculation: Speculation | None) -> None:
    """Let the policy plan a few steps of a small engine. Raises its exceptions."""
    memory = policy.start()
    jobs = [_job(number) for number in range(min(REQUESTS, limits.running))]
    begun = [advance(job, PROMPT_TOKENS // 2, 0, 0.0) for job in jobs]
    decodes = [advance(job, PROMPT_TOKENS, 1, 0.1) for job in jobs]
    kv = KvCache(BLOCKS, BLOCKS // 2, BLOCK_TOKENS)
    for now_s, running, waiting in (
        (0.0, [], jobs),
        (0.1, begun, []),
        (0.2, decodes, []),
        (0.3, decodes, jobs),
    ):
        others = [job._replace(request=_renamed(job.request)) for job in waiting]
        view = ReplicaView(now_s, now_s, tuple(running), tuple(others), kv, limits, model, speculation)
        _, memory = policy.step(view, memory)


def _job(number: int) -> Job:
    """Return a job of one of two tiers in turn, sometimes best effort."""
    targets = Targets(ttft_s=1.0, tpot_s=0.05) if number % 2 else Targets(e2e_s=10.0)
    tier = "chat" if number % 2 else "batch"
    request = Request(f"warm-up-{number}", tier, 0.0, PROMPT_TOKENS, 2 * ANSWER_TOKENS, targets)
    return new_job(request, ANSWER_TOKENS, best_effort=number % 4 == 0)


def _renamed(request: Request) -> Request:
    return Request(
        f"{request.id}-waiting", request.tier, 0.0, request.prompt_tokens, 2 * ANSWER_TOKENS, request.targets
    )
