"""Keys of KV blocks: two full blocks have equal keys exactly if they and everything before them are equal.

A key depends on all tokens before its block, as vLLM's chained hashes do, so a prefix is cached if the key of
its last block is. A salt separates tenants: with different salts no keys are equal, so a fast first token
does not reveal what another tenant has sent.
"""

from collections.abc import Hashable, Sequence
from hashlib import blake2b
from itertools import accumulate, islice

import numpy as np

BlockKey = Hashable

KEY_BYTES = 16
"""Bytes of a block's hash."""


def token_keys(tokens: Sequence[int], block_tokens: int, salt: str = "") -> list[BlockKey]:
    """Return the keys of the full blocks of a sequence of token ids."""
    keys: list[BlockKey] = []
    before = blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES).digest()
    data, size = np.asarray(tokens, np.uint64).tobytes(), block_tokens * np.uint64().itemsize
    for end in range(size, len(data) + 1, size):
        before = blake2b(before + data[end - size : end], digest_size=KEY_BYTES).digest()
        keys.append(before)
    return keys


def recorded_keys(
    hash_ids: Sequence[int], id_tokens: int, tokens: int, block_tokens: int, salt: str = ""
) -> list[BlockKey]:
    """Return the keys of the full blocks of a recorded prompt, of which only the ids of its blocks are known.

    hash_ids: ids of its blocks of `id_tokens` tokens, the last one possibly shorter. In Mooncake's traces an
        id identifies its block and all before it; if not, blocks are equal only if all before them are too.
        tokens: length of the prompt.

    `block_tokens` need not divide `id_tokens`. A block counts as equal if the recorded block that has its
    last token is; blocks beyond the ids have no keys.
    """
    full_blocks = min(tokens, len(hash_ids) * id_tokens) // block_tokens
    ids = [hash_ids[((index + 1) * block_tokens - 1) // id_tokens] for index in range(full_blocks)]
    first = int.from_bytes(blake2b(salt.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
    chained = accumulate(ids, lambda before, id: hash((before, id)), initial=first)  # of 64 bits
    return list(islice(chained, 1, None))
