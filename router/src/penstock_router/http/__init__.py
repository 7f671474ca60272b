"""The OpenAI-compatible HTTP API, from a request's first byte to its answer's last, and the admin port."""
