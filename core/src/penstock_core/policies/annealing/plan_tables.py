"""Tables of latencies and feasible waits for batches of any size, which the search reads.

A plan is an order of requests, divided into batches. A request waits for all earlier batches, each as long as
its longest request, and then takes as long as a batch of its own batch's size takes (eq. 4, 11, 17). The
objective is `G = n / t`: requests that meet their SLO (eq. 6–8), over the sum of all end-to-end latencies
(eq. 2, 3).

The duration of a request depends only on its batch's size, and whether it meets its SLO on the size and its
wait. So two tables with one row per size suffice: `exec_s`, and `latest_s`, the longest wait with which all
targets are met. For an e2e target that is its remainder after execution, for a TTFT target its remainder
after the prefill; a TPOT target is independent of the wait but excludes sizes [annealing, §3.1].

The paper plans for an empty engine and for requests that have just arrived. Here requests may have waited
already, which counts against their targets and their latency, and others may be running (`RunningRequests`).
A batch that joins them shares its decode steps with them and delays their last tokens. Since it is only a
part of the running work, the next batch need not wait for all of it: slots become free one after the other,
so the next batch starts after `b / (b + running)` of its longest request. With no running request that factor
is one, and the paper's model is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Floats
from penstock_core.compilation.jit import FLOATS, INT, TABLE, record
from penstock_core.policies.annealing.latency import BatchLatency


class PlanInput(NamedTuple):
    """One request to plan.

    decode_tokens: those after the first. waited_s: since it arrived.
    ttft_s, tpot_s, e2e_s: its targets, counted from arrival; infinite without one.
    """

    prompt_tokens: int
    decode_tokens: float
    waited_s: float = 0.0
    ttft_s: float = inf
    tpot_s: float = inf
    e2e_s: float = inf


@dataclass(frozen=True, slots=True)
class RunningRequests:
    """Running requests that continue while batches join them.

    count: number of them. met: number of those that will meet their SLO.
    latency_s: the sum of their end-to-end latencies, by the size of the first batch that joins them (from 1);
        empty without running requests.
    """

    count: int = 0
    met: int = 0
    latency_s: tuple[float, ...] = ()


NO_RUNNING_REQUESTS = RunningRequests()


class PlanTables(NamedTuple):
    """The tables. Row b − 1 is for batches of b; column j for request j.

    exec_s: seconds from its batch's start to its last token.
    latest_s: longest wait from now with which it meets its SLO; −inf if none does.
    base_s: part of the sum of latencies that no plan changes, by the size of the first batch.
    base_met: running requests that meet their SLO under every plan.
    next_start_share: share of a batch's longest execution after which the next one starts.
    """

    exec_s: Floats
    latest_s: Floats
    base_s: Floats
    base_met: int
    next_start_share: Floats

    @property
    def requests(self) -> int:
        """Return the number of requests to plan."""
        return len(self.exec_s[0])


PLAN_TABLES_TYPE = record(PlanTables, TABLE, TABLE, FLOATS, INT, FLOATS)
"""numba type of `PlanTables`, for compiled functions."""


def plan_tables(
    latency: BatchLatency,
    inputs: Sequence[PlanInput],
    most: int,
    running: RunningRequests = NO_RUNNING_REQUESTS,
) -> PlanTables:
    """Return the tables for batches of at most `most`."""
    prompt, decode, waited_s, ttft_s, tpot_s, e2e_s = np.array(inputs, dtype=np.float64).reshape(-1, 6).T
    batch = np.arange(1.0, most + 1)[:, None]
    prefill_s = latency.prefill_s(batch, prompt[None, :])
    decode_s = latency.decode_s(batch + running.count, prompt[None, :], decode[None, :])
    exec_s = prefill_s + decode_s
    left_s = np.minimum(e2e_s - exec_s, ttft_s - prefill_s) - waited_s
    latest_s = np.where(decode_s <= tpot_s * np.maximum(decode, 1.0), left_s, -inf)
    sizes = batch[:, 0]
    base_s = np.full(most, waited_s.sum()) + (np.array(running.latency_s[:most]) if running.count else 0.0)
    return PlanTables(exec_s, latest_s, base_s, running.met, sizes / (sizes + running.count))
