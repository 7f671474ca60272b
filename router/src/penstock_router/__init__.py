"""The OpenAI-compatible front end of a pool: selects a replica, and tries the next one on rejection."""
