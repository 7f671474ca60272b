"""What a simulated model says, and how it counts what it is told.

A token is four bytes of UTF-8, so that a text's count follows from its length. Answers are made of words of
three letters and a space: one word is one token, and an answer read back counts what it cost.
"""

from collections.abc import Sequence

TOKEN_BYTES = 4
MESSAGE_TOKENS = 4
"""What a chat template adds to each message."""

VOCABULARY = 128256

_LETTERS = (
    "air arc ash bay bed bow box cap car cog dam day dew dip ebb eel elm eye fan fen fin fly fog fox gap gas "
    "hay hub ice ink jar jet key lap lid log mat mix net oak oar orb pen pin pod ray rim rod run sea ski sky "
    "spa sun tap tar tin tub urn vat vow wax web wet"
)
WORDS = tuple(f" {word}" for word in _LETTERS.split())


def say(places: Sequence[int], start: int) -> str:
    """The words at these places of an answer. Answers with different `start` say different things."""
    return "".join([WORDS[(start + place * (1 + start % 7)) % len(WORDS)] for place in places])


def count_text(text: str) -> int:
    """Tokens of a text."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // TOKEN_BYTES)


def token_ids(text: str) -> list[int]:
    """The text's tokens as numbers, the same for the same four bytes."""
    data = text.encode("utf-8", "surrogatepass")
    return [
        int.from_bytes(data[at : at + TOKEN_BYTES], "big") % VOCABULARY
        for at in range(0, len(data), TOKEN_BYTES)
    ]
