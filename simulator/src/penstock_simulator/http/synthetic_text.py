"""Synthetic answer text, and the tokenizer of a simulated model.

A token is four bytes of UTF-8, so a text's token count follows from its length. Answers consist of words of
three letters and a space: one word is one token, so an answer has the same token count when it is sent back
as a prompt.
"""

from collections.abc import Sequence

TOKEN_BYTES = 4
MESSAGE_TOKENS = 4
"""Tokens that a chat template adds to each message."""

VOCABULARY = 128256

_LETTERS = (
    "air arc ash bay bed bow box cap car cog dam day dew dip ebb eel elm eye fan fen fin fly fog fox gap gas "
    "hay hub ice ink jar jet key lap lid log mat mix net oak oar orb pen pin pod ray rim rod run sea ski sky "
    "spa sun tap tar tin tub urn vat vow wax web wet"
)
WORDS = tuple(f" {word}" for word in _LETTERS.split())


def synthetic_text(positions: Sequence[int], text_seed: int) -> str:
    """Return the text of the tokens at these positions of an answer. It differs by `text_seed`."""
    step = 1 + text_seed % 7
    return "".join([WORDS[(text_seed + position * step) % len(WORDS)] for position in positions])


def count_text(text: str) -> int:
    """Return the number of tokens of a text."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // TOKEN_BYTES)


def token_ids(text: str) -> list[int]:
    """Return the token ids of a text; equal bytes have equal ids."""
    data = text.encode("utf-8", "surrogatepass")
    return [
        int.from_bytes(data[at : at + TOKEN_BYTES], "big") % VOCABULARY
        for at in range(0, len(data), TOKEN_BYTES)
    ]
