"""New requests for which a replica has capacity, in memory and in time.

New requests slow others down: their prefill delays the running decodes, and a larger batch makes each step
longer. A plan only weighs waiting requests, so running ones are examined first: a place is free only if every
running request that would meet its SLO without new requests meets it beside them.

A new request fits in memory if the future peak of the running requests and of it fits the KV cache
(`kv_forecast`), so preemption is only needed if predictions fail.
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
from penstock_core.policies.annealing.plan_tables import NO_RUNNING_REQUESTS, PlanInput, RunningRequests


def fitting(kv: KvCache, running: Sequence[Job], candidates: Sequence[Job]) -> list[Job]:
    """Return the new requests that fit into memory, each beside running ones and earlier ones that fit."""
    return list(compress(candidates, first_fit(kv, running, candidates)))


class Room(NamedTuple):
    """How many requests may join the running ones without making them late, and the plan's inputs."""

    places: int
    running: RunningRequests


def room(
    latency: BatchLatency,
    running: Sequence[Job],
    inputs: Sequence[PlanInput],
    prompt_tokens: float,
    most: int,
) -> Room:
    """Return the room for at most `most`.

    inputs: those of the running requests, in order. prompt_tokens: length of a typical prompt.
    """
    if not running or most < 1:
        return Room(most, NO_RUNNING_REQUESTS)
    context, decode, waited_s, ttft_s, tpot_s, e2e_s = np.array(inputs, dtype=np.float64).T
    prefilling = np.array([not job.decoding for job in running])
    candidates = np.arange(most + 1.0)[:, None]
    own_prefill_s = prefilling * latency.prefill_s(1.0, context)
    prefill_s = _prefill_delay_s(latency, prompt_tokens, candidates) + own_prefill_s
    decode_s = latency.decode_s(candidates + len(running), context[None, :], decode[None, :])
    latency_s = waited_s + prefill_s + decode_s
    in_time = (latency_s <= e2e_s) & (waited_s + prefill_s <= ttft_s)
    in_time &= decode_s <= tpot_s * np.maximum(decode, 1.0)
    met = in_time.sum(axis=1)
    places = int((met[1:] == met[0]).sum())
    return Room(places, RunningRequests(len(running), int(met[0]), tuple(latency_s.sum(axis=1)[1:].tolist())))


def _prefill_delay_s(latency: BatchLatency, prompt_tokens: float, candidates: Floats) -> Floats:
    """Return the seconds for which the prefill of this many new requests delays the decodes."""
    prefill_s = latency.prefill_s(candidates, np.full_like(candidates, prompt_tokens))
    return np.where(candidates > 0, prefill_s, 0.0)
