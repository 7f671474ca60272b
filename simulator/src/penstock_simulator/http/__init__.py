"""The engine's HTTP surface: OpenAI's completion endpoints and vLLM's own, with synthetic text."""
