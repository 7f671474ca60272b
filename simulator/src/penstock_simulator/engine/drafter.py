"""Random acceptance of draft tokens, in place of a model."""

import random


class Drafter:
    """Accepts each draft token with the same probability, up to the first rejection [SLOs-Serve, §3.2.3]."""

    def __init__(self, acceptance: float, seed: int) -> None:
        self._acceptance = acceptance
        self._random = random.Random(f"drafter {seed}")

    def accepted(self, drafts: int) -> int:
        """Return how many of `drafts` draft tokens are accepted."""
        for place in range(drafts):
            if self._random.random() >= self._acceptance:
                return place
        return drafts
