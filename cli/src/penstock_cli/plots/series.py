"""The data of figures."""

from dataclasses import dataclass
from typing import NamedTuple


class Spot(NamedTuple):
    """A point in the TTFT–TPOT plane, as shares of the targets: both targets are met up to 1."""

    ttft_share: float
    tpot_share: float


@dataclass(frozen=True, slots=True)
class Curve:
    """One policy in one scenario.

    rates_rps: rates, ascending. attained: share of requests that met every target at each rate.
    """

    scenario: str
    policy: str
    rates_rps: tuple[float, ...]
    attained: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Cloud:
    """Points of one kind in one panel of the plane.

    panel: name of the panel. label: legend entry. path: whether the points are connected.
    """

    panel: str
    label: str
    spots: tuple[Spot, ...]
    path: bool = False
