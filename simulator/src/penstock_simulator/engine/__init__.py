"""The engine without a clock: requests, KV blocks and tokens, and its online measurements."""
