"""Marks: chained hashes of a prompt's prefixes as JSON, which show common prefixes without a tokenizer.

A mark identifies a prefix of the prompt: two prompts with a mark in common are equal up to it. Marks are at
the end of each message and every `PIECE_BYTES` within it, so the next turn of a session has all marks of the
previous turn.

The first hash covers all other fields that can change the model's input or the prefixes that a cache shares:
the model, tools, the template's settings, and `cache_salt`. A mark does not reveal the prompt, but a process
that guesses a whole prefix can verify the guess.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import accumulate
from typing import NamedTuple

import msgspec
from msgspec import Raw

PIECE_BYTES = 1024

MOST_MARKS = 8192
"""Most marks of one prompt. The rest of a longer prompt has no marks."""

SALT = b"penstock prompt marks"
TOKEN_IDS = b"token ids"
"""Separates token ids from a text of the same numbers."""

MARK_BYTES = 8


class Mark(NamedTuple):
    """A prefix of a prompt. key: 64 bits. size: its bytes as JSON, or its number of complete token ids."""

    key: int
    size: int


class PromptMarks(NamedTuple):
    """A prompt's marks, the shortest prefix first.

    token_ids: whether sizes are token ids, not bytes.
    """

    marks: tuple[Mark, ...] = ()
    token_ids: bool = False

    @property
    def size(self) -> int:
        """Return the size of the longest prefix; 0 without marks."""
        return self.marks[-1].size if self.marks else 0


UNMARKED = PromptMarks()


class _Body(msgspec.Struct):
    """The fields of a body that affect the model's input, as raw JSON."""

    messages: list[Raw] = []
    prompt: Raw = Raw()
    model: Raw = Raw()
    tools: Raw = Raw()
    tool_choice: Raw = Raw()
    documents: Raw = Raw()
    chat_template: Raw = Raw()
    chat_template_kwargs: Raw = Raw()
    reasoning_effort: Raw = Raw()
    response_format: Raw = Raw()
    add_special_tokens: Raw = Raw()
    truncate_prompt_tokens: Raw = Raw()
    mm_processor_kwargs: Raw = Raw()
    cache_salt: Raw = Raw()


_OTHER_FIELDS = [name for name in _Body.__struct_fields__ if name not in ("messages", "prompt")]
"""Fields that are the same for all messages."""

_body, _prompts = msgspec.json.Decoder(_Body), msgspec.json.Decoder(list[Raw])


def prompt_marks(raw: bytes) -> PromptMarks:
    """Return the marks of a body's prompt; none if it has several prompts, or is invalid.

    A body with both messages and a prompt has none: which of them is used depends on the endpoint.
    """
    try:
        return _marks(_body.decode(raw))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return UNMARKED


def _marks(body: _Body) -> PromptMarks:
    seed = _seed(body)
    if body.messages:
        if bytes(body.prompt) not in (b"", b"null"):
            return UNMARKED
        pieces = [piece for message in body.messages for piece in _pieces(bytes(message))]
        return PromptMarks(_chained(seed, pieces, map(len, pieces)))
    prompt = _only_prompt(bytes(body.prompt))
    within, pieces = prompt[1:-1], _pieces(prompt[1:-1])
    if prompt.startswith(b'"'):
        return PromptMarks(_chained(seed, pieces, map(len, pieces)))
    if not within.strip() or not prompt.startswith(b"[") or b"[" in within or b'"' in within:
        return UNMARKED
    ids = [piece.count(b",") for piece in pieces]  # the last one of a piece may continue in the next piece
    ids[-1] += 1
    return PromptMarks(_chained(sha256(seed + TOKEN_IDS).digest(), pieces, ids), token_ids=True)


def _only_prompt(prompt: bytes) -> bytes:
    """Return the prompt of a list of one."""
    if prompt.startswith(b"[") and prompt[1:].lstrip()[:1] in (b"[", b'"'):
        prompts = _prompts.decode(prompt)
        return bytes(prompts[0]) if len(prompts) == 1 else prompt
    return prompt


def _seed(body: _Body) -> bytes:
    seed = sha256(SALT)
    for name in _OTHER_FIELDS:
        value = bytes(getattr(body, name))
        seed.update(len(value).to_bytes(8, "big") + value)
    return seed.digest()


def _pieces(data: bytes) -> list[bytes]:
    return [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]


def _chained(seed: bytes, pieces: Sequence[bytes], sizes: Iterable[int]) -> tuple[Mark, ...]:
    before, keys = seed, []
    for piece in pieces[:MOST_MARKS]:
        before = sha256(before + piece).digest()
        keys.append(int.from_bytes(before[:MARK_BYTES], "big"))
    return tuple(map(Mark, keys, accumulate(sizes)))
