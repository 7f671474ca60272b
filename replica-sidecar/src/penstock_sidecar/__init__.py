"""Beside every engine: admits, forwards, returns tokens, reports state, drains."""
