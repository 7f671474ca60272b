"""One generating request, as read from the client."""

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
"""Paths of generating requests."""


class GenerationRequest(NamedTuple):
    """The input of routing decisions, and of every replica that the request is sent to.

    id: the client's x-request-id, or a new one.
    body: the client's JSON; unchanged except for what `movable` says.
    arrival_s: when it had been read, on the event loop's clock.
    targets: its own TTFT and TPOT, in place of its tier's; None where it brought none.
    turn: one more than that of the request before it.
    movable: whether its body asks for what a continuation on another replica needs.
    marks: of its prompt; none where no replica can be compared by them.
    session: that the client says it is a turn of.
    """

    id: str
    endpoint: "wire.Endpoint.ValueType"
    body: bytes
    tier: Tier
    arrival_s: float
    targets: Targets = NO_TARGETS
    stream: bool = False
    turn: int = 0
    movable: bool = False
    marks: PromptMarks = UNMARKED
    session: bytes | None = None


def slo_with(slo: Slo, own: Targets) -> Slo:
    """Return a tier's SLO with the request's own targets in place."""
    if own.ttft_s is not None:
        slo = replace(slo, ttft_s=own.ttft_s, ttft_slowdown=None)
    if own.tpot_s is not None:
        slo = replace(slo, tpot_s=own.tpot_s)
    return slo
