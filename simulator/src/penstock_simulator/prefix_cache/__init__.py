"""Prefix caching as in vLLM V1: KV blocks stay cached after their request, for prompts with the same prefix.

`block_keys` names the content of blocks, `block_pool` owns the blocks and their order of eviction, and
`prefix_cache` holds the blocks of each request. There is no clock and no randomness here. The tests compare
blocks, hits and evictions with vLLM's own KV cache manager after every operation.
"""
