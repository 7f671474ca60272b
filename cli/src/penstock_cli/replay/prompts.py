"""Generates prompts with a given number of tokens and given shared prefixes.

A prompt consists of blocks of 512 tokens. Each begins with its number encoded in three tokens, so two blocks
are equal exactly if their numbers are, and an engine's prefix cache hits as in the trace. The rest is a slice
of one seeded sequence of token ids, all of four digits, which is cheap because the client shares its machine
with the server.
"""

from math import ceil
from random import Random

BLOCK_TOKENS = 512
"""Tokens of a block, as in Mooncake's traces."""
LOWEST_ID, IDS = 1000, 9000
"""Token ids of four digits: in every vocabulary, and above the special tokens."""

MOST_BLOCKS = 4096
"""Numbers of blocks that each request has of its own; a longer prompt shares some with the next request."""

_STRETCH_TOKENS = 16_384
"""Of the sequence that blocks are cut from."""

_WIDTH = 5
"""Bytes of one id with its comma."""


class PromptGenerator:
    """A seeded generator of prompts."""

    def __init__(self, seed: int) -> None:
        draw = Random(seed)
        self._stretch = b"".join(b"%d," % (LOWEST_ID + draw.randrange(IDS)) for _ in range(_STRETCH_TOKENS))

    def token_ids(self, tokens: int, blocks: tuple[int, ...], own: int) -> bytes:
        """Return a JSON list of `tokens` token ids.

        blocks: numbers of shared blocks, in order; the rest of the prompt consists of unique blocks.
        own: the request's number, which makes its blocks unique.
        """
        parts = []
        for index in range(-(-tokens // BLOCK_TOKENS)):
            shared = index < len(blocks)
            number = 2 * blocks[index] if shared else 2 * (own * MOST_BLOCKS + index) | 1
            parts.append(self._block(number, min(BLOCK_TOKENS, tokens - index * BLOCK_TOKENS)))
        return b"[" + b"".join(parts)[:-1] + b"]"

    def _block(self, number: int, tokens: int) -> bytes:
        digits = (number, number // IDS, number // IDS**2)
        head = b"".join(b"%d," % (LOWEST_ID + digit % IDS) for digit in digits)
        start = number % (_STRETCH_TOKENS - BLOCK_TOKENS)
        return (head + self._stretch[start * _WIDTH : (start + tokens) * _WIDTH])[: tokens * _WIDTH]

    def text(self, tokens: int, own: int) -> bytes:
        """Return words of three digits, one per token, which is about the count of most tokenizers."""
        start = own % _STRETCH_TOKENS
        repeats = ceil((start + tokens) / _STRETCH_TOKENS)
        ids = (self._stretch * repeats)[start * _WIDTH : (start + tokens) * _WIDTH]
        return b"".join(ids[at + 1 : at + 4] + b" " for at in range(0, len(ids), _WIDTH))
