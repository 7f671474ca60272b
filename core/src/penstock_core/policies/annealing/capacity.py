"""How many newcomers have room beside what runs: in memory, and in everybody's time.

Newcomers cost others. Their prefill holds up the decodes that run, and a larger batch makes each of their
steps longer. A plan only weighs those that wait, so what runs is looked at first: a place is free only if
everybody who would keep their SLO without newcomers keeps it beside them.

In memory a newcomer has room if the future peak of what runs and of it fits the KV cache (`kv_forecast`), so
preemption is left to predictions that fail.
"""

from collections.abc import Sequence
from itertools import compress
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Floats
from penstock_core.domain.replica_view import KvCache
from penstock_core.domain.request import Job
from penstock_core.forecast.kv_forecast import first_fit
from penstock_core.policies.annealing.latency import BatchLatency
from penstock_core.policies.annealing.plan_tables import NOBODY, Ask, Beside


def fitting(kv: KvCache, running: Sequence[Job], newcomers: Sequence[Job]) -> list[Job]:
    """Those of the newcomers that fit into memory, each beside what runs and those before it that fit."""
    return list(compress(newcomers, first_fit(kv, running, newcomers)))


class Room(NamedTuple):
    """How many may join what runs without making it late, and what their plan has to know of it."""

    places: int
    beside: Beside


def room(
    latency: BatchLatency, running: Sequence[Job], asks: Sequence[Ask], prompt_tokens: float, most: int
) -> Room:
    """Of at most `most`. asks: of those running, in their order. prompt_tokens: of a usual newcomer."""
    if not running or most < 1:
        return Room(most, NOBODY)
    context, decode, waited_s, ttft_s, tpot_s, e2e_s = np.array(asks, dtype=np.float64).T
    prefilling = np.array([not job.decoding for job in running])
    newcomers = np.arange(most + 1.0)[:, None]
    prefill_s = _held_up_s(latency, prompt_tokens, newcomers) + prefilling * latency.prefill_s(1.0, context)
    decode_s = latency.decode_s(newcomers + len(running), context[None, :], decode[None, :])
    latency_s = waited_s + prefill_s + decode_s
    in_time = (latency_s <= e2e_s) & (waited_s + prefill_s <= ttft_s)
    in_time &= decode_s <= tpot_s * np.maximum(decode, 1.0)
    met = in_time.sum(axis=1)
    places = int((met[1:] == met[0]).sum())
    return Room(places, Beside(len(running), int(met[0]), tuple(latency_s.sum(axis=1)[1:].tolist())))


def _held_up_s(latency: BatchLatency, prompt_tokens: float, newcomers: Floats) -> Floats:
    """How long the prefill of so many newcomers holds up the decodes."""
    prefill_s = latency.prefill_s(newcomers, np.full_like(newcomers, prompt_tokens))
    return np.where(newcomers > 0, prefill_s, 0.0)
