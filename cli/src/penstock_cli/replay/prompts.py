"""Generates prompts with a given number of tokens and given shared prefixes.

A prompt consists of blocks, one for each hash id of the trace. Each begins with its number
encoded in three tokens, so two blocks are equal exactly if their numbers are, and an engine's prefix cache
hits as in the trace. The rest is a slice of one seeded sequence of token ids, all of four digits, which is
cheap because the client shares its machine with the server. As text, a token is a word of three digits.
"""

from collections.abc import Iterator, Sequence
from random import Random

from penstock_cli.replay.schedule import MOONCAKE_BLOCK_TOKENS

LOWEST_ID, IDS = 1000, 9000
"""Token ids of four digits: in every vocabulary, and above the special tokens."""

WORDS = 1000
"""Words of three digits."""

MOST_BLOCKS = 4096
"""Unique block numbers per request. A longer prompt has some blocks in common with the next request's."""

_SEQUENCE_TOKENS = 16_384
"""Least length of the sequence that blocks are cut from."""

_ID_BYTES = 5
"""Bytes of one id with its comma."""

_WORD_BYTES = 4
"""Bytes of one word with its space."""


class PromptGenerator:
    """A seeded generator of prompts. block_tokens: tokens per hash id of the trace."""

    def __init__(self, seed: int, block_tokens: int = MOONCAKE_BLOCK_TOKENS) -> None:
        draw = Random(seed)
        self._block_tokens, self._starts = block_tokens, max(_SEQUENCE_TOKENS - block_tokens, block_tokens)
        ids = [LOWEST_ID + draw.randrange(IDS) for _ in range(self._starts + block_tokens)]
        self._ids = b"".join(b"%d," % token for token in ids)
        self._words = b"".join(b"%03d " % (token % WORDS) for token in ids)

    def token_ids(self, tokens: int, blocks: Sequence[int], request_number: int) -> bytes:
        """Return a JSON list of `tokens` token ids.

        blocks: numbers of shared blocks, in order; the rest of the prompt consists of unique blocks.
        request_number: makes the request's other blocks unique.
        """
        parts = [
            self._id_block(number, size) for number, size in self._blocks(tokens, blocks, request_number)
        ]
        return b"[" + b"".join(parts)[:-1] + b"]"

    def text(self, tokens: int, blocks: Sequence[int], request_number: int) -> bytes:
        """Return `tokens` words of three digits, each a token in most tokenizers. Else like `token_ids`."""
        return b"".join(
            [self._word_block(number, size) for number, size in self._blocks(tokens, blocks, request_number)]
        )

    def _blocks(self, tokens: int, blocks: Sequence[int], request_number: int) -> Iterator[tuple[int, int]]:
        """Yield each block's number and tokens. Those of shared blocks are even."""
        for index in range(-(-tokens // self._block_tokens)):
            shared = index < len(blocks)
            number = 2 * blocks[index] if shared else 2 * (request_number * MOST_BLOCKS + index) | 1
            yield number, min(self._block_tokens, tokens - index * self._block_tokens)

    def _id_block(self, number: int, tokens: int) -> bytes:
        head = b"".join(b"%d," % (LOWEST_ID + digit % IDS) for digit in _digits(number, IDS))
        start = number % self._starts
        rest = self._ids[start * _ID_BYTES : (start + tokens) * _ID_BYTES]
        return (head + rest)[: tokens * _ID_BYTES]

    def _word_block(self, number: int, tokens: int) -> bytes:
        head = b"".join(b"%03d " % (digit % WORDS) for digit in _digits(number, WORDS))
        start = number % self._starts
        rest = self._words[start * _WORD_BYTES : (start + tokens) * _WORD_BYTES]
        return (head + rest)[: tokens * _WORD_BYTES]


def _digits(number: int, base: int) -> tuple[int, int, int]:
    return number, number // base, number // base**2
