"""How many examples a property draws, where the profile's number would be too slow or too few.

A profile of ten times Hypothesis' own number draws ten times as many here, too: `settings(max_examples=…)`
alone would draw the same few under every profile.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import settings

USUAL = 100
"""Examples of a property that does not say how many, under the fixed profile."""


def examples(count: int, **others: Any) -> Callable[[Any], Any]:
    """Return a decorator that sets the number of examples, scaled by the profile."""
    return settings(max_examples=count * settings().max_examples // USUAL, **others)
