"""The OpenAI-compatible front of a pool: picks a replica, and tries the next one on rejection."""
