"""**best-fit.** First the replicas whose own planner would likely take it, there where it costs least."""

from collections.abc import Sequence
from math import inf

from penstock_core.orders.turns import ranked
from penstock_core.replica_load import Asked, ReplicaLoad


def best_fit(loads: Sequence[ReplicaLoad], asked: Asked) -> tuple[str, ...]:
    """Those that fit before those that do not."""
    return ranked(loads, asked, lambda load: _key(load, asked))


def _key(load: ReplicaLoad, asked: Asked) -> tuple[float, ...]:
    wait_s = load.prefill_wait_s + load.prefill_s(asked.prompt_tokens)
    fits = wait_s + load.snapshot.step_s <= asked.ttft_s and load.kv_tokens_headroom > asked.prompt_tokens
    tighter = load.snapshot.tightest_pace_s < inf and asked.tpot_s < load.snapshot.tightest_pace_s
    return not fits, tighter, wait_s
