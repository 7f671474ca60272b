"""One request for generated text, as read from the client."""

from dataclasses import replace
from typing import NamedTuple

from penstock_core.domain.slo import Slo, Targets, Tier
from penstock_proto import replica_pb2 as wire
from penstock_runtime.prompt_marks import UNMARKED, PromptMarks

NO_TARGETS = Targets()

GENERATES = {
    "/v1/chat/completions": wire.ENDPOINT_CHAT_COMPLETIONS,
    "/v1/completions": wire.ENDPOINT_COMPLETIONS,
}
"""Paths of requests for generated text."""


class GenerationRequest(NamedTuple):
    """The input of routing decisions, and of every replica that the request is sent to.

    id: the client's x-request-id, or a new one.
    body: the client's JSON. If `movable`, it also requests token ids.
    arrival_s: when it was read completely, on the event loop's clock.
    targets: its own TTFT and TPOT targets, which replace its tier's; None for each that it does not set.
    number: one more than the previous request's at this process.
    movable: whether its stream can be continued on another replica.
    marks: marks of its prompt; none if the routing order does not use them.
    session: session named by the client, of which the request is a turn.
    """

    id: str
    endpoint: "wire.Endpoint.ValueType"
    body: bytes
    tier: Tier
    arrival_s: float
    targets: Targets = NO_TARGETS
    stream: bool = False
    number: int = 0
    movable: bool = False
    marks: PromptMarks = UNMARKED
    session: bytes | None = None


def slo_with(slo: Slo, own: Targets) -> Slo:
    """Return a tier's SLO with the request's own targets."""
    if own.ttft_s is not None:
        slo = replace(slo, ttft_s=own.ttft_s, ttft_slowdown=None)
    if own.tpot_s is not None:
        slo = replace(slo, tpot_s=own.tpot_s)
    return slo
