"""The answers of a simulated engine, which depend only on the prompt, so clients can check them."""

from typing import Any

import orjson
from penstock_simulator.http.request_body import ApiEndpoint, CompletionRequest, read_request
from penstock_simulator.http.synthetic_text import synthetic_text

MOST_LEN = 8192


def known_request(body: dict[str, Any]) -> CompletionRequest:
    """A request's body as an engine reads it."""
    endpoint = ApiEndpoint.CHAT if "messages" in body else ApiEndpoint.COMPLETION
    return read_request(orjson.dumps(body), endpoint, body["model"], MOST_LEN)


def known_answer(body: dict[str, Any]) -> str:
    """The answer's whole text, of a request that states its length and ignores the end of text."""
    request = known_request(body)
    start = request.answer
    positions = range(start.position, start.position + (request.answer_tokens or 0))
    return synthetic_text(positions, start.text_seed)
