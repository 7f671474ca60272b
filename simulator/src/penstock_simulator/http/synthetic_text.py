"""Synthetic answer text, and the tokenizer of a simulated model.

A token is four bytes of UTF-8, so a text's token count follows from its length. Answers consist of words of
three letters and a space: one word is one token, so an answer has the same token count when it is sent back
as a prompt.

As in a model at temperature 0, an answer follows from its prompt: a hash of the prompt's end chooses the
first word and the step to each next one. Generated tokens have ids that no text has, so a prompt of token ids
that ends with generated ones is continued where they end, with the same words.
"""

import zlib
from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

TOKEN_BYTES = 4
"""Length of a token's text, with its space."""
MESSAGE_TOKENS = 4
"""Tokens that a chat template adds to each message."""

VOCABULARY = 128256
"""Token ids, as many as Llama 3 has."""

_LETTERS = (
    "air arc ash bay bed bow box cap car cog dam day dew dip ebb eel elm eye fan fen fin fly fog fox gap gas "
    "hay hub ice ink jar jet key lap lid log mat mix net oak oar orb pen pin pod ray rim rod run sea ski sky "
    "spa sun tap tar tin tub urn vat vow wax web wet"
)
WORDS = tuple(f" {word}" for word in _LETTERS.split())

FIRST_ANSWER_ID = VOCABULARY - len(WORDS)
"""Ids from here on are those of generated words."""

HASHED_TOKENS = 16
"""Tokens at the end of a prompt that choose its answer."""


class AnswerStart(NamedTuple):
    """The beginning of an answer.

    text_seed: selects its words.
    position: position of its first token, which is the number of generated tokens at the prompt's end.
    """

    text_seed: int
    position: int


def synthetic_text(positions: Sequence[int], text_seed: int) -> str:
    """Return the text of the tokens at these positions of an answer. It differs by `text_seed`."""
    return "".join([WORDS[at] for at in _words(positions, text_seed)])


def answer_ids(positions: Sequence[int], text_seed: int) -> list[int]:
    """Return the ids of the tokens at these positions of an answer."""
    return [FIRST_ANSWER_ID + at for at in _words(positions, text_seed)]


def _words(positions: Sequence[int], text_seed: int) -> Iterable[int]:
    step, words = 1 + text_seed % 7, len(WORDS)
    return ((text_seed + position * step) % words for position in positions)


def answer_start(prompt: Sequence[int]) -> AnswerStart:
    """Return the beginning of the answer to a prompt. prompt: its token ids, or the last of them."""
    end = len(prompt)
    while end and FIRST_ANSWER_ID <= prompt[end - 1] < VOCABULARY:
        end -= 1
    hashed = array("Q", [token & 0xFFFFFFFF for token in prompt[max(end - HASHED_TOKENS, 0) : end]])
    return AnswerStart(zlib.crc32(hashed.tobytes()) & 0xFFFF, len(prompt) - end)


def count_text(text: str) -> int:
    """Return the number of tokens of a text."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // TOKEN_BYTES)


def token_ids(text: str) -> list[int]:
    """Return the token ids of a text; equal bytes have equal ids."""
    return _ids(text.encode("utf-8", "surrogatepass"))


def last_token_ids(text: str) -> list[int]:
    """Return the token ids at the end of a text, at least as many as choose an answer."""
    data = text.encode("utf-8", "surrogatepass")
    return _ids(data[max(count_text(text) - HASHED_TOKENS, 0) * TOKEN_BYTES :])


def _ids(data: bytes) -> list[int]:
    whole, rest = len(data) // TOKEN_BYTES, len(data) % TOKEN_BYTES
    ids: list[int] = (np.frombuffer(data, ">u4", whole) % FIRST_ANSWER_ID).tolist()
    return [*ids, int.from_bytes(data[-rest:], "big") % FIRST_ANSWER_ID] if rest else ids
