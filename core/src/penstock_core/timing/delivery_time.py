"""Time of a request outside of its engine's iterations, learned from the replica's own requests.

A first token is late by the time that its request takes to reach the engine's scheduler, and by the time that
the token takes to leave the engine's server. With vLLM on an H100, both together took longer than most
prefills (40 ms, docs/gpu.md), and they depend on the server's load. A replica that does not know this time
admits requests whose first tokens will be late. So it is measured on every stream, and a high quantile of the
latest ones is subtracted from the targets of first tokens and whole answers. It is never less than the pool's
own value. Until there are enough streams, it is that of an idle engine, if this was measured.

The state is a value: `delivered` returns the next one.
"""

from dataclasses import dataclass, replace
from math import isfinite

DELIVERY_QUANTILE = 0.95
"""Share of requests that take no longer. A rarer delay is left to the margin of admission."""

LATEST = 128
"""Requests from which it is learned, the latest ones."""

FEWEST = 4
"""Requests before which the value of the start counts."""


@dataclass(frozen=True, slots=True)
class DeliveryTime:
    """The learned time. least_s: the pool's value. samples_s: of the latest requests, the oldest first.

    seconds: the time to subtract from targets.
    """

    least_s: float = 0.0
    samples_s: tuple[float, ...] = ()
    seconds: float = 0.0


def delivery_time(least_s: float, idle_s: float = 0.0) -> DeliveryTime:
    """Return the time before any request. idle_s: that of an idle engine, if it was measured."""
    return DeliveryTime(least_s, (), max(least_s, idle_s))


def delivered(state: DeliveryTime, sample_s: float) -> DeliveryTime:
    """Return the time after a request that took `sample_s` outside of iterations.

    Raises ValueError if this is negative or not finite.
    """
    if not (isfinite(sample_s) and sample_s >= 0.0):
        raise ValueError(f"a request cannot take {sample_s} s outside of iterations")
    samples_s = (*state.samples_s, sample_s)[-LATEST:]
    if len(samples_s) < FEWEST:
        return replace(state, samples_s=samples_s)
    quantile_s = sorted(samples_s)[int(DELIVERY_QUANTILE * (len(samples_s) - 1))]
    return DeliveryTime(state.least_s, samples_s, max(quantile_s, state.least_s))
