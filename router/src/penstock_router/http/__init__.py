"""The OpenAI-compatible HTTP API and the admin port."""
