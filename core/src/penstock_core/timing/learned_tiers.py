"""What is learned of each tier, for a bounded number of tiers.

A pool has few tiers, but whoever reaches an engine past its sidecar may name a new one in every request.
"""

from collections.abc import Mapping
from itertools import islice
from typing import TypeVar

Learned = TypeVar("Learned")

MOST_TIERS = 64
"""Tiers that are told apart: more than pools have, and few enough to name in every step report."""


def with_latest(known: Mapping[str, Learned], learned: Mapping[str, Learned]) -> Mapping[str, Learned]:
    """Return what is known with what was just learned, without the tiers learned of longest ago."""
    latest = {tier: what for tier, what in known.items() if tier not in learned} | dict(learned)
    return dict(islice(latest.items(), max(len(latest) - MOST_TIERS, 0), None))
