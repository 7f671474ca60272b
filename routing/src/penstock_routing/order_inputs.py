"""Inputs of routing orders, from a request."""

from collections.abc import Callable
from math import inf

from penstock_core.routing.replica_load import RoutingRequest, estimated_tokens
from penstock_core.timing.time_model import TimeModel
from penstock_runtime.clock import monotonic
from penstock_runtime.prompt_marks import MARK_BYTES

from penstock_routing.replicas.cached_prefixes import CachedPrefixes
from penstock_routing.request.generation_request import GenerationRequest, slo_with
from penstock_routing.settings import Settings


def routing_request(
    request: GenerationRequest,
    time_model: Callable[[], TimeModel | None],
    settings: Settings,
    prefixes: CachedPrefixes,
) -> RoutingRequest:
    """Return the input of a routing order. Without a time model, a slowdown target sets no bound."""
    slo, body_bytes = slo_with(request.tier.slo, request.targets), len(request.body)
    ttft_s = slo.ttft_s
    if slo.ttft_slowdown is not None and (model := time_model()) is not None:
        ttft_s = slo.ttft_slowdown * model.prefill_seconds(estimated_tokens(body_bytes))
    return RoutingRequest(
        request.tier.name,
        body_bytes,
        request.number,
        ttft_s=ttft_s or inf,
        tpot_s=slo.tpot_s or inf,
        now_s=monotonic(),
        cached_tokens=prefixes.cached_tokens(request.marks),
        affinity=_affinity(request, prefixes) if settings.prefix_affinity else None,
    )


def wants_marks(settings: Settings, prefixes: CachedPrefixes) -> bool:
    """Return whether the routing order uses a prompt's marks."""
    return settings.prefix_affinity or (settings.compares_caches and prefixes.known)


def _affinity(request: GenerationRequest, prefixes: CachedPrefixes) -> bytes | None:
    """Return a key that requests with a common prefix share.

    It is the session if the client names one. Else, if no replica reports cached prefixes, it is the key of
    the prompt's beginning: the first message, or its first kilobyte.
    """
    if request.session is not None:
        return request.session
    if prefixes.known or not request.marks.marks:
        return None
    return request.marks.marks[0].key.to_bytes(MARK_BYTES, "big")
