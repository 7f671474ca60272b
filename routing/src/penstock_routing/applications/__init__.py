"""Clients of a pool and what they may use: API keys, tiers, limits, token usage."""
