"""Warm-up of a policy before the replica is ready.

First calls import modules and initialize libraries: slos-serve takes 0.1 s for its first decision and 0.3 ms
for every other. So before a sidecar is ready, its policy decides about one synthetic request of each tier at
an idle replica, and the verdicts are discarded. A policy that raises here would fail every request, so the
sidecar does not start.
"""

from collections.abc import Iterable
from typing import Any

from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Tier

PROMPT_TOKENS, ANSWER_TOKENS = 500, 200
"""Size of the synthetic requests. Any size has the same effect."""


def warm_up(policy: Policy[Any], idle: ReplicaView, tiers: Iterable[Tier]) -> None:
    """Let the policy decide about one request of each tier. Raises the policy's errors."""
    policy.admit(idle, [_job(tier, idle) for tier in tiers])


def _job(tier: Tier, idle: ReplicaView) -> Job:
    targets = tier.slo.targets(idle.model.prefill_seconds(PROMPT_TOKENS))
    request = Request(
        f"warm-up-{tier.name}", tier.name, idle.now_s, PROMPT_TOKENS, ANSWER_TOKENS, targets, tier.value
    )
    return new_job(request, ANSWER_TOKENS, tier.best_effort)
