"""The figure of a simulation: every served request in the TTFT–TPOT plane of its tier."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from penstock_simulator.simulation import Fleet, SimulatedOutcome

from penstock_cli.plots.figure import panels, save
from penstock_cli.plots.plane import draw_plane, panel_titles, spot
from penstock_cli.plots.series import Cloud, Spot

MET, MISSED = "every target met", "a target missed"
MOST_SPOTS = 5000
"""Most points of one kind in one tier, which bounds the file's size."""


class RequestPlot:
    """Collects outcomes by tier, and draws them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._spots: dict[tuple[str, str], list[Spot]] = defaultdict(list)

    def observe(self, outcomes: Iterator[SimulatedOutcome]) -> Iterator[SimulatedOutcome]:
        """Yield the same outcomes, and collect them."""
        for outcome in outcomes:
            self._add(outcome)
            yield outcome

    def draw(self, path: Path) -> None:
        """Write the figure: a panel per tier with both targets. Raises Failure."""
        tiers = {name: tier for name, tier in self._fleet.tiers.items() if self._of(name)}
        figure, axes = panels(panel_titles(tiers, tiers) or ["no tier has targets for TTFT and TPOT"])
        draw_plane(axes[: len(tiers)], [cloud for name in tiers for cloud in self._of(name)])
        save(figure, path)

    def _add(self, outcome: SimulatedOutcome) -> None:
        slo = self._fleet.tiers[outcome.tier].slo
        idle_prefill_s = self._fleet.model.prefill_seconds(outcome.prompt_tokens)
        place = spot(slo, idle_prefill_s, outcome.ttft_s, outcome.tpot_s)
        spots = self._spots[outcome.tier, MET if outcome.met else MISSED]
        if place is not None and len(spots) < MOST_SPOTS:
            spots.append(place)

    def _of(self, tier: str) -> list[Cloud]:
        kinds = ((kind, self._spots[tier, kind]) for kind in (MET, MISSED))
        return [Cloud(tier, kind, tuple(spots)) for kind, spots in kinds if spots]
