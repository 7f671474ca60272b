"""Builds request bodies with the trace's token counts.

The trace determines the answer's length, which the pool under test must not use. A simulated engine gets it
in a field that the planner does not read, with a large `max_tokens` as real clients set it. A real engine has
no such field; it gets the length as `max_tokens`, with `ignore_eos`.
"""

from dataclasses import dataclass
from enum import StrEnum

import orjson

from penstock_cli.replay.prompts import PromptGenerator
from penstock_cli.traces import TraceRequest

GENEROUS_MAX_TOKENS = 4096
"""`max_tokens` if the answer's length is hidden from the planner."""
CHAT_FRAME_TOKENS = 4
"""Approximate tokens that a chat template adds to a message."""


class ReplayEndpoint(StrEnum):
    """The API endpoint that a replay uses."""

    COMPLETIONS = "completions"
    CHAT = "chat"

    @property
    def path(self) -> str:
        """Path of its URL."""
        return "/v1/chat/completions" if self is ReplayEndpoint.CHAT else "/v1/completions"


@dataclass(frozen=True, slots=True)
class RequestBodies:
    """Builds request bodies.

    simulated: whether the engine accepts the answer's length in its own field.
    max_model_len: longest prompt and answer together, if the server reports it.
    """

    endpoint: ReplayEndpoint
    model: str
    simulated: bool
    max_model_len: int | None
    prompts: PromptGenerator

    def body(self, request: TraceRequest) -> bytes:
        """Return the request's JSON."""
        head = orjson.dumps(
            {
                "model": self.model,
                "stream": True,
                "stream_options": {"include_usage": True},
                "temperature": 0,
                **self._length(request),
            }
        )
        return head[:-1] + b"," + self._prompt(request) + b"}"

    def _length(self, request: TraceRequest) -> dict[str, object]:
        if not self.simulated:
            return {"max_tokens": request.output_tokens, "ignore_eos": True}
        left = (self.max_model_len or GENEROUS_MAX_TOKENS) - request.prompt_tokens
        xargs = {"simulated_output_tokens": request.output_tokens}
        if request.thinking_tokens:
            xargs["simulated_thinking_tokens"] = request.thinking_tokens
        return {"max_tokens": max(min(GENEROUS_MAX_TOKENS, left), request.output_tokens), "vllm_xargs": xargs}

    def _prompt(self, request: TraceRequest) -> bytes:
        if self.endpoint is ReplayEndpoint.COMPLETIONS:
            return b'"prompt":' + self.prompts.token_ids(
                request.prompt_tokens, request.prefix_blocks, request.number
            )
        tokens = max(request.prompt_tokens - CHAT_FRAME_TOKENS, 1)
        words = self.prompts.text(tokens, request.prefix_blocks, request.number)
        return b'"messages":[{"role":"user","content":"' + words.rstrip() + b'"}]'
