"""How many tokens a prompt has, before an engine has counted them.

Tokens follow bytes: about four a token for English and code, fewer for other scripts. The rate is learned
from what the engine reports, in the mean, with the usual distance from it. Estimates lean to more tokens by
that distance, because a prompt that turns out longer than planned is late, and one that turns out shorter
leaves time to others. A short prompt is mostly template and teaches little, so its weight grows with its
length.
"""

from dataclasses import dataclass
from math import ceil

BYTES_PER_TOKEN = 4.0
"""Where learning starts."""

MESSAGE_TOKENS = 4
"""What a chat template adds to each message."""

LEARNING_RATE = 0.05
FULL_WEIGHT_TOKENS = 256
"""A prompt of this many tokens or more teaches with full weight."""

LEAST_BYTES_PER_TOKEN = 0.5
"""No tokenizer makes more than two tokens of every byte; a report beyond it counts as this."""

MOST_BYTES_PER_TOKEN = 16.0


@dataclass(frozen=True, slots=True)
class PromptLength:
    """What has been learned of a tokenizer.

    bytes_per_token: in the mean.
    deviation: mean absolute distance from it.
    """

    bytes_per_token: float = BYTES_PER_TOKEN
    deviation: float = 0.0

    def estimate(self, text_bytes: int, messages: int = 0) -> int:
        """Tokens of a prompt with so many bytes of UTF-8 in so many chat messages; at least one."""
        rate = max(self.bytes_per_token - self.deviation, LEAST_BYTES_PER_TOKEN)
        return max(ceil(text_bytes / rate) + MESSAGE_TOKENS * messages, 1)

    def observe(self, text_bytes: int, messages: int, prompt_tokens: int) -> "PromptLength":
        """After a prompt turned out to have `prompt_tokens`. Nothing is learned from one without text."""
        text_tokens = prompt_tokens - MESSAGE_TOKENS * messages
        if text_tokens <= 0 or text_bytes <= 0:
            return self
        seen = min(max(text_bytes / text_tokens, LEAST_BYTES_PER_TOKEN), MOST_BYTES_PER_TOKEN)
        rate = LEARNING_RATE * min(text_tokens / FULL_WEIGHT_TOKENS, 1.0)
        distance = seen - self.bytes_per_token
        return PromptLength(
            self.bytes_per_token + rate * distance,
            self.deviation + rate * (abs(distance) - self.deviation),
        )
