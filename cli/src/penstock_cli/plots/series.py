"""What figures are drawn from."""

from dataclasses import dataclass
from typing import NamedTuple


class Spot(NamedTuple):
    """A place in the TTFT–TPOT plane, each as a share of its target: within 1 and 1 both are kept."""

    ttft_share: float
    tpot_share: float


@dataclass(frozen=True, slots=True)
class Curve:
    """One policy in one scenario.

    rates_rps: at which it was run, in order. attained: share of requests that kept every target there.
    """

    scenario: str
    policy: str
    rates_rps: tuple[float, ...]
    attained: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Cloud:
    """Requests, or what sums them up, of one kind in one panel of the plane.

    panel: a tier, with its targets. label: whose they are. path: whether one leads to the next.
    """

    panel: str
    label: str
    spots: tuple[Spot, ...]
    path: bool = False
