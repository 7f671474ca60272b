"""The events that a simulated engine streams for a request, without an engine."""

from collections.abc import Sequence

from penstock_proto import replica_pb2 as wire
from penstock_simulator.engine.iteration import Finish
from penstock_simulator.http.request_body import ApiEndpoint, read_request
from penstock_simulator.http.responses import EventWriter, ResponseHead, usage_of

CONTEXT_TOKENS = 4096


def events_of(
    endpoint: "wire.Endpoint.ValueType",
    body: bytes,
    *,
    engine: str,
    model: str = "test/model",
    sizes: Sequence[int] = (1,),
) -> list[bytes]:
    """The stream, in pieces as the engine writes them.

    engine: in the ids. sizes: tokens of each piece, in turns.
    """
    chat = endpoint == wire.ENDPOINT_CHAT_COMPLETIONS
    kind = ApiEndpoint.CHAT if chat else ApiEndpoint.COMPLETION
    request = read_request(body, kind, model, CONTEXT_TOKENS)
    assert request.answer_tokens is not None, "say how long the answer is"
    head = ResponseHead(kind, f"of-{engine}", model, len(engine), request.answer, request.prompt_ids)
    writer = EventWriter(head, request.thinking_tokens)
    written, at = list[bytes](), 0
    while True:
        positions = range(at, min(at + sizes[len(written) % len(sizes)], request.answer_tokens))
        at = positions.stop
        if at == request.answer_tokens:
            reason = Finish.LENGTH if at == request.max_tokens else Finish.STOP
            usage = usage_of(request.prompt_tokens, at) if request.include_usage else None
            return [*written, writer.end(positions, reason, usage)]
        written.append(writer.tokens(positions))
