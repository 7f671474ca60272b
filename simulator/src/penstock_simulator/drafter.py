"""How many drafted tokens the model accepts, on an engine whose model is simulated."""

import random


class Drafter:
    """Each draft is accepted with the same chance, and the first that is not ends it [SLOs-Serve, §3.2.3]."""

    def __init__(self, acceptance: float, seed: int) -> None:
        self._acceptance = acceptance
        self._random = random.Random(f"drafter {seed}")

    def accepted(self, drafts: int) -> int:
        """Accepted ones of `drafts`."""
        for place in range(drafts):
            if self._random.random() >= self._acceptance:
                return place
        return drafts
