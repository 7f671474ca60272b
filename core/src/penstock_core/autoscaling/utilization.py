"""Utilization of a replica as its planner sees it.

Two resources can run out. Memory: free blocks at the future peak of all admitted requests, over all blocks.
Time: how long the waiting prefills take, over how much longer they could take before one is late. The scarcer
one is the utilization; 1 is full and the maximum.
"""

from math import inf

from penstock_core.forecast.snapshot import Snapshot


def filling(snapshot: Snapshot) -> float:
    """Return the utilization, from 0 for an idle replica to 1 for a full one. Without a snapshot it is 0."""
    return max(_of_memory(snapshot), _of_time(snapshot))


def _of_memory(snapshot: Snapshot) -> float:
    if snapshot.kv_tokens_total == 0:
        return 0.0
    return 1.0 - max(snapshot.kv_tokens_headroom, 0) / snapshot.kv_tokens_total


def _of_time(snapshot: Snapshot) -> float:
    if snapshot.prefill_slack_s == inf or snapshot.prefill_wait_s <= 0.0:
        return 0.0
    if snapshot.prefill_wait_s == inf:
        return 1.0
    return snapshot.prefill_wait_s / (snapshot.prefill_wait_s + snapshot.prefill_slack_s)
