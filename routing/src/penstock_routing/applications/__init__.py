"""Applications of a pool: their API keys, tiers, limits and token usage."""
