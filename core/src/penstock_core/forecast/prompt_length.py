"""Estimates the tokens of a prompt before an engine has counted them.

Tokens are proportional to bytes: about four bytes per token for English and code, fewer for other scripts.
The mean ratio and its mean deviation are learned from the engine's reports. Estimates are too high by that
deviation, because a prompt that is longer than planned is late, and a shorter one only leaves time to others.
A short prompt is mostly template, so the weight of a prompt grows with its length.
"""

from dataclasses import dataclass
from math import ceil

BYTES_PER_TOKEN = 4.0
"""Initial ratio."""

MESSAGE_TOKENS = 4
"""Tokens that a chat template adds per message."""

LEARNING_RATE = 0.05
FULL_WEIGHT_TOKENS = 256
"""Tokens from which a prompt has full weight."""

LEAST_BYTES_PER_TOKEN = 0.5
"""Most tokens per byte of any tokenizer; a larger report is limited to this."""

MOST_BYTES_PER_TOKEN = 16.0


@dataclass(frozen=True, slots=True)
class PromptLength:
    """The learned ratio of a tokenizer.

    bytes_per_token: mean.
    deviation: mean absolute deviation from it.
    """

    bytes_per_token: float = BYTES_PER_TOKEN
    deviation: float = 0.0

    def estimate(self, text_bytes: int, messages: int = 0) -> int:
        """Return the estimated tokens of a prompt of UTF-8 bytes in chat messages; at least one."""
        rate = max(self.bytes_per_token - self.deviation, LEAST_BYTES_PER_TOKEN)
        return max(ceil(text_bytes / rate) + MESSAGE_TOKENS * messages, 1)

    def observe(self, text_bytes: int, messages: int, prompt_tokens: int) -> "PromptLength":
        """Return the state after a prompt turned out to have `prompt_tokens`.

        A prompt without text leaves the state unchanged.
        """
        text_tokens = prompt_tokens - MESSAGE_TOKENS * messages
        if text_tokens <= 0 or text_bytes <= 0:
            return self
        measured = min(max(text_bytes / text_tokens, LEAST_BYTES_PER_TOKEN), MOST_BYTES_PER_TOKEN)
        rate = LEARNING_RATE * min(text_tokens / FULL_WEIGHT_TOKENS, 1.0)
        distance = measured - self.bytes_per_token
        return PromptLength(
            self.bytes_per_token + rate * distance,
            self.deviation + rate * (abs(distance) - self.deviation),
        )
