"""A grammar that allows every token, for requests with a structured output."""

from collections.abc import Sequence


class Anything:
    """As much of vLLM's StructuredOutputGrammar as its scheduler asks for."""

    def accept_tokens(self, request_id: str, tokens: Sequence[int]) -> bool:
        return True

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        return tokens

    def is_terminated(self) -> bool:
        return False
