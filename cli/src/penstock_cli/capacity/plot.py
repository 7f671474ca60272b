"""The figure of a search: attainment over rate by scenario, and each tier's path in the TTFT–TPOT plane."""

from collections.abc import Sequence
from pathlib import Path

from penstock_simulator.scenarios import scenario

from penstock_cli.capacity.report import capacity_rps
from penstock_cli.capacity.search import CapacityResult
from penstock_cli.capacity.setting import ORACLE
from penstock_cli.capacity.sweep import Sweep
from penstock_cli.plots.attainment import draw_attainment, draw_bound
from penstock_cli.plots.figure import panels, save
from penstock_cli.plots.plane import draw_plane, panel_titles
from penstock_cli.plots.series import Cloud

SEPARATOR = " · "


def draw(answers: Sequence[CapacityResult], sweeps: Sequence[Sweep | None], path: Path) -> None:
    """Write the figure to `path`. Raises Failure."""
    drawn = [one for one in sweeps if one is not None]
    scenarios = list(dict.fromkeys(one.curve.scenario for one in drawn))
    clouds = [
        Cloud(f"{name}{SEPARATOR}{tier}", one.curve.policy, spots, path=True)
        for name in scenarios
        for tier in scenario(name).tiers
        for one in drawn
        if one.curve.scenario == name
        for spots in (one.paths.get(tier, ()),)
    ]
    tiers = {
        f"{name}{SEPARATOR}{tier.name}": tier for name in scenarios for tier in scenario(name).tiers.values()
    }
    figure, axes = panels([*scenarios, *panel_titles(tiers, tiers)])
    curves = [one.curve for name in scenarios for one in drawn if one.curve.scenario == name]
    conditions = next(iter(answers)).question.conditions  # all answers have the same
    draw_attainment(axes[: len(scenarios)], curves, conditions.attainment)
    for answer in answers:
        name = answer.question.scenario
        if answer.question.policy == ORACLE and name in scenarios:
            draw_bound(axes[scenarios.index(name)], name, capacity_rps(answer))
    draw_plane(axes[len(scenarios) :], clouds, of=", 90 % within")
    save(figure, path)
