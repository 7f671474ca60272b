"""What becomes of requests in batches of any size: the tables that the search looks plans up in.

A plan is an order of requests, cut into batches. A request waits for all batches before its own, each as long
as its longest request, and then takes as long as a batch of that size takes (eq. 4, 11, 17). The objective is
`G = n / t`: how many keep their SLO (eq. 6–8), over the sum of everybody's end-to-end latency (eq. 2, 3).

How long a request takes depends on its batch's size alone, and whether it keeps its SLO on its size and its
wait. So two tables with a row a size say everything: `exec_s`, and `latest_s`, the longest wait with which
all targets are kept. An e2e target leaves what remains beside execution, a TTFT target what remains beside
the prefill, and a TPOT target does not mind waiting but rules a size out [annealing, §3.1].

The paper plans for an empty engine and for requests that have just come. Here requests may have waited
already, which counts against their targets and their latency. And others may run: `Beside`. A batch that
joins them takes its decode steps with them, and delays their last tokens; and because it is only a share of
what runs, the next batch need not wait for all of it: places become free one after the other, so its turn is
`b / (b + running)` of its longest request. With nobody running that is one, and the paper's model is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Floats
from penstock_core.compilation.jit import FLOATS, INT, TABLE, record
from penstock_core.policies.annealing.latency import BatchLatency


class Ask(NamedTuple):
    """One request to plan.

    decode_tokens: those after the first. waited_s: since it arrived.
    ttft_s, tpot_s, e2e_s: its targets, counted from arrival; infinite where it has none.
    """

    prompt_tokens: int
    decode_tokens: float
    waited_s: float = 0.0
    ttft_s: float = inf
    tpot_s: float = inf
    e2e_s: float = inf


@dataclass(frozen=True, slots=True)
class Beside:
    """Requests that run and go on while batches join them.

    running: how many. met: how many of them will keep their SLO.
    latency_s: the sum of their end-to-end latencies, by the size of the first batch that joins them (from 1);
    empty where nobody runs.
    """

    running: int = 0
    met: int = 0
    latency_s: tuple[float, ...] = ()


NOBODY = Beside()


class Prospects(NamedTuple):
    """The tables. Row b − 1 is for batches of b; column j for request j.

    exec_s: seconds from its batch's start to its last token.
    latest_s: longest wait from now with which it keeps its SLO; −inf where no wait is short enough.
    base_s: what the sum of latencies has in it whatever the plan, by the size of the first batch.
    base_met: requests beside that keep their SLO whatever the plan.
    turn: share of a batch's longest execution after which the next one starts.
    """

    exec_s: Floats
    latest_s: Floats
    base_s: Floats
    base_met: int
    turn: Floats

    @property
    def requests(self) -> int:
        """How many are to be planned."""
        return len(self.exec_s[0])


TABLES = record(Prospects, TABLE, TABLE, FLOATS, INT, FLOATS)
"""Their type, for functions that are compiled."""


def prospects(latency: BatchLatency, asks: Sequence[Ask], most: int, beside: Beside = NOBODY) -> Prospects:
    """The tables for batches of at most `most`."""
    prompt, decode, waited_s, ttft_s, tpot_s, e2e_s = np.array(asks, dtype=np.float64).reshape(-1, 6).T
    batch = np.arange(1.0, most + 1)[:, None]
    prefill_s = latency.prefill_s(batch, prompt[None, :])
    decode_s = latency.decode_s(batch + beside.running, prompt[None, :], decode[None, :])
    exec_s = prefill_s + decode_s
    left_s = np.minimum(e2e_s - exec_s, ttft_s - prefill_s) - waited_s
    latest_s = np.where(decode_s <= tpot_s * np.maximum(decode, 1.0), left_s, -inf)
    sizes = batch[:, 0]
    base_s = np.full(most, waited_s.sum()) + (np.array(beside.latency_s[:most]) if beside.running else 0.0)
    return Prospects(exec_s, latest_s, base_s, beside.met, sizes / (sizes + beside.running))
