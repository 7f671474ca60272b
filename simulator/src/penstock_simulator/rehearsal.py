"""A policy's first steps, taken before anybody waits for them.

First calls are slow: modules are read, machine code is loaded, or compiled where none was kept; the search of
`annealing` takes 0.1 s to its first plan and 0.5 ms to every other. In a live engine that would be a late
iteration for whoever comes first. So before it says that it is ready, an engine has the policy run a second
one in virtual time, with a few requests that do not exist: prefills and decodes, with a promise and without.
What a policy remembers of it is thrown away. One that fails here would fail its first clients, so it raises.
"""

from typing import Any

from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_view import Limits
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Targets
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel

from penstock_simulator.engine_state import EngineState

STEPS = 16
"""Enough for prefills, decodes and ends."""

REQUESTS = 8
KV_TOKENS = 1 << 14
PROMPT_TOKENS, ANSWER_TOKENS = 100, 6


def rehearse(policy: Policy[Any], limits: Limits, model: TimeModel, speculation: Speculation | None) -> None:
    """Run the policy through a few steps of a small engine. Raises what it raises."""
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
    """Of two tiers in turn, one of them best effort now and then."""
    targets = Targets(ttft_s=1.0, tpot_s=0.05) if number % 2 else Targets(e2e_s=10.0)
    tier = "chat" if number % 2 else "batch"
    request = Request(f"rehearsed-{number}", tier, now_s, PROMPT_TOKENS * (1 + number), 50, targets)
    return new_job(request, ANSWER_TOKENS, best_effort=number % 4 == 0)
