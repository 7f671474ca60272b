"""The OpenAI-compatible front of a pool: picks a replica and walks to the next one on rejection."""
