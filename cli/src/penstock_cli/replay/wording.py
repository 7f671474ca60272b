"""The body of each request: the trace's token counts in the API's words.

How long an answer gets is the trace's to say, and must not help the pool that is being measured. A simulated
engine is told in a field that the planner does not read, beside a generous `max_tokens`, as a real client
would set it. A real engine has no such field: there `max_tokens` is the length, with `ignore_eos`.
"""

from dataclasses import dataclass
from enum import StrEnum

import orjson

from penstock_cli.replay.prompts import Prompts
from penstock_cli.traces import TraceRequest

GENEROUS_MAX_TOKENS = 4096
CHAT_FRAME_TOKENS = 4
"""What a chat template adds to a message, roughly."""


class Endpoint(StrEnum):
    """Which of the API's endpoints a replay uses."""

    COMPLETIONS = "completions"
    CHAT = "chat"

    @property
    def path(self) -> str:
        """Of its URL."""
        return "/v1/chat/completions" if self is Endpoint.CHAT else "/v1/completions"


@dataclass(frozen=True, slots=True)
class Wording:
    """How bodies are written.

    simulated: the engine takes the answer's length in its own field.
    max_model_len: longest prompt and answer together, where the server tells.
    """

    endpoint: Endpoint
    model: str
    simulated: bool
    max_model_len: int | None
    prompts: Prompts

    def body(self, request: TraceRequest, own: int) -> bytes:
        """The request's JSON. own: its number in the replay."""
        head = orjson.dumps(
            {
                "model": self.model,
                "stream": True,
                "stream_options": {"include_usage": True},
                "temperature": 0,
                **self._length(request),
            }
        )
        return head[:-1] + b"," + self._prompt(request, own) + b"}"

    def _length(self, request: TraceRequest) -> dict[str, object]:
        if not self.simulated:
            return {"max_tokens": request.output_tokens, "ignore_eos": True}
        left = (self.max_model_len or GENEROUS_MAX_TOKENS) - request.prompt_tokens
        told = {"simulated_output_tokens": request.output_tokens}
        if request.thinking_tokens:
            told["simulated_thinking_tokens"] = request.thinking_tokens
        return {"max_tokens": max(min(GENEROUS_MAX_TOKENS, left), request.output_tokens), "vllm_xargs": told}

    def _prompt(self, request: TraceRequest, own: int) -> bytes:
        if self.endpoint is Endpoint.COMPLETIONS:
            return b'"prompt":' + self.prompts.token_ids(request.prompt_tokens, request.prefix_blocks, own)
        words = self.prompts.text(max(request.prompt_tokens - CHAT_FRAME_TOKENS, 1), own)
        return b'"messages":[{"role":"user","content":"' + words.rstrip() + b'"}]'
