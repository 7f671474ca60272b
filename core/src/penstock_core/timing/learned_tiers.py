"""Learned state per tier, for a bounded number of tiers.

A pool has few tiers, but a client that reaches an engine directly may name a new one in every request.
"""

from collections.abc import Mapping
from itertools import islice
from typing import TypeVar

Learned = TypeVar("Learned")

MOST_TIERS = 64
"""Most tiers: more than pools have, and few enough for every step report."""


def with_latest(known: Mapping[str, Learned], learned: Mapping[str, Learned]) -> Mapping[str, Learned]:
    """Return the known state with the new one; beyond `MOST_TIERS`, the least recently updated tiers go."""
    latest = {tier: what for tier, what in known.items() if tier not in learned} | dict(learned)
    return dict(islice(latest.items(), max(len(latest) - MOST_TIERS, 0), None))
