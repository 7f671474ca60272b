"""Eligibility of streams for a continuation on another replica, by the fields of their request.

A continuation is a new request whose prompt ends with the tokens that the client has received. The engine
continues it like the original unless a feature depends on where the answer began: a grammar would restart, a
penalty would count the answer's first part as prompt, and seeded sampling would start again. The table in
docs/reliability.md has the same rows.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from penstock_proto import replica_pb2 as wire

Fields = Mapping[str, Any]
"""The parsed body of a request."""


def why_fixed(endpoint: "wire.Endpoint.ValueType", body: Fields) -> str | None:
    """Return why a stream of this request cannot be continued on another replica; None if it can."""
    return next((why for applies, why in _RULES if applies(body)), None) or _why_by_prompt(endpoint, body)


def _any_of(*names: str) -> Callable[[Fields], bool]:
    return lambda body: any(body.get(name) not in (None, False, [], {}, "") for name in names)


def _several(body: Fields) -> bool:
    return any(body.get(name) not in (None, 1) for name in ("n", "best_of"))


def _logprobs(body: Fields) -> bool:
    values = (body.get(name) for name in ("logprobs", "top_logprobs", "prompt_logprobs"))
    return any(value is not None and value is not False for value in values)


def _tools(body: Fields) -> bool:
    return bool(body.get("tools") or body.get("functions")) and body.get("tool_choice") != "none"


def _structured(body: Fields) -> bool:
    wanted = body.get("response_format")
    plain = wanted is None or (isinstance(wanted, dict) and wanted.get("type") == "text")
    return not plain or _any_of("structured_outputs", "structural_tag", *_guided(body))(body)


def _guided(body: Fields) -> Iterator[str]:
    return (name for name in body if name.startswith("guided_"))


def _penalised(body: Fields) -> bool:
    return any(body.get(name) not in (None, 0) for name in ("presence_penalty", "frequency_penalty"))


def _seeded(body: Fields) -> bool:
    return body.get("seed") is not None and body.get("temperature") != 0


_RULES: tuple[tuple[Callable[[Fields], bool], str], ...] = (
    (_several, "it asks for several answers"),
    (_structured, "its output is structured"),
    (_tools, "it may call tools"),
    (_logprobs, "it asks for log probabilities"),
    (_penalised, "it has a presence or frequency penalty"),
    (_seeded, "it has a seed and a temperature above 0"),
    (_any_of("stop"), "it has stop strings"),
    (_any_of("echo", "suffix"), "its answer contains its prompt"),
    (_any_of("use_beam_search"), "it is a beam search"),
    (
        _any_of("prompt_embeds", "kv_transfer_params", "logits_processors"),
        "its prompt has inputs other than tokens",
    ),
)


def _why_by_prompt(endpoint: "wire.Endpoint.ValueType", body: Fields) -> str | None:
    if endpoint == wire.ENDPOINT_CHAT_COMPLETIONS:
        return (
            None
            if all(map(_only_text, body.get("messages") or ()))
            else "its messages contain more than text"
        )
    prompt = body.get("prompt")
    several = isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)
    return "it has several prompts" if several else None


def _only_text(message: Any) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return True
    return all(isinstance(part, str) or part.get("type", "text") == "text" for part in content)
