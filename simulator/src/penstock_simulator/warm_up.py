"""Warm-up of a policy before an engine reports ready.

A policy's first calls are slow: modules are imported, and compiled code is loaded or built. `annealing` takes
0.1 s for its first plan and 0.5 ms for every other. In a live engine the first requests would wait for that.
So the policy first runs a second engine in virtual time, with a few synthetic requests: prefills and decodes,
with an SLO and best effort. The policy's memory of it is discarded. Exceptions are raised, because they
would also fail the first requests.
"""

from typing import Any

from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_view import Limits
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Targets
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel

from penstock_simulator.engine.engine_state import EngineState

STEPS = 16
"""Enough for prefills, decodes and finished requests."""

REQUESTS = 8
"""Requests of the small engine."""
KV_TOKENS = 1 << 14
"""KV tokens of the small engine, more than its requests need."""
PROMPT_TOKENS, ANSWER_TOKENS = 100, 6
"""Size of the first request."""


def warm_up(policy: Policy[Any], limits: Limits, model: TimeModel, speculation: Speculation | None) -> None:
    """Run the policy for a few steps of a small engine. Raises any exception of the policy."""
    state = EngineState(KV_TOKENS, limits)
    memory, now_s = policy.start(), 0.0
    for number in range(STEPS):
        if number < REQUESTS:
            state.add(_job(number, now_s), ANSWER_TOKENS)
        view = state.view(now_s, now_s, model, speculation)
        step, memory = policy.step(view, memory)
        work = state.start(step).shape().work()
        now_s += model.seconds(work)
        state.finish(now_s)


def _job(number: int, now_s: float) -> Job:
    """Return a job of one of two tiers in turn; every fourth is best effort."""
    targets = Targets(ttft_s=1.0, tpot_s=0.05) if number % 2 else Targets(e2e_s=10.0)
    tier = "chat" if number % 2 else "batch"
    request = Request(f"warm-up-{number}", tier, now_s, PROMPT_TOKENS * (1 + number), 50, targets)
    return new_job(request, ANSWER_TOKENS, best_effort=number % 4 == 0)
