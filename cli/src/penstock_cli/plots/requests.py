"""A simulation as a picture: every served request in the plane of its tier's targets."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from penstock_simulator.simulation import Fleet, SimulatedOutcome

from penstock_cli.plots.figure import panels, save
from penstock_cli.plots.plane import draw_plane, panel_titles, spot
from penstock_cli.plots.series import Cloud, Spot

KEPT, BROKEN = "every target kept", "a target broken"
MOST_SPOTS = 5000
"""Of one kind in one tier. A figure with more says no more, and its file grows."""


class Requests:
    """What passes by, by tier, for a picture of it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._spots: dict[tuple[str, str], list[Spot]] = defaultdict(list)

    def passing(self, outcomes: Iterator[SimulatedOutcome]) -> Iterator[SimulatedOutcome]:
        """The same outcomes, seen."""
        for outcome in outcomes:
            self._see(outcome)
            yield outcome

    def draw(self, path: Path) -> None:
        """Write the picture: a panel for each tier that has both targets. Raises Failure."""
        tiers = {name: tier for name, tier in self._fleet.tiers.items() if self._of(name)}
        figure, axes = panels(panel_titles(tiers, tiers) or ["no tier has targets for TTFT and TPOT"])
        draw_plane(axes[: len(tiers)], [cloud for name in tiers for cloud in self._of(name)])
        save(figure, path)

    def _see(self, outcome: SimulatedOutcome) -> None:
        slo = self._fleet.tiers[outcome.tier].slo
        idle_prefill_s = self._fleet.model.prefill_seconds(outcome.prompt_tokens)
        place = spot(slo, idle_prefill_s, outcome.ttft_s, outcome.tpot_s)
        spots = self._spots[outcome.tier, KEPT if outcome.met else BROKEN]
        if place is not None and len(spots) < MOST_SPOTS:
            spots.append(place)

    def _of(self, tier: str) -> list[Cloud]:
        kinds = ((kind, self._spots[tier, kind]) for kind in (KEPT, BROKEN))
        return [Cloud(tier, kind, tuple(spots)) for kind, spots in kinds if spots]
