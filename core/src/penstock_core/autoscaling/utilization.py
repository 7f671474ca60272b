"""How full a replica is, as its planner sees it: the share that its promises take of what it can promise.

Two things run out. Memory: what is free at the future peak of everything accepted, against all there is. And
time: how long the prefills that wait take, against how much longer they may take without one of them being
late. The one that is shorter says how full the replica is; 1 is full, and nobody is fuller than that.
"""

from math import inf

from penstock_core.forecast.snapshot import Snapshot


def filling(said: Snapshot) -> float:
    """From 0 for an idle replica to 1 for a full one. One that has said nothing is idle."""
    return max(_of_memory(said), _of_time(said))


def _of_memory(said: Snapshot) -> float:
    if said.kv_tokens_total == 0:
        return 0.0
    return 1.0 - max(said.kv_tokens_headroom, 0) / said.kv_tokens_total


def _of_time(said: Snapshot) -> float:
    if said.prefill_slack_s == inf or said.prefill_wait_s <= 0.0:
        return 0.0
    if said.prefill_wait_s == inf:
        return 1.0
    return said.prefill_wait_s / (said.prefill_wait_s + said.prefill_slack_s)
