"""Attainment over rate: a panel per scenario, a line per policy, as in SLOs-Serve's Figure 9."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock_cli.plots.figure import (
    BOUND_POINTS,
    COLOURS,
    CURVE_POINTS,
    LEGEND_POINTS,
    MARKER_POINTS,
    MARKERS,
    TARGET_POINTS,
)
from penstock_cli.plots.series import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_attainment(panels: Sequence["Axes"], curves: Sequence[Curve], target: float) -> None:
    """Draw one panel per scenario, in the order of the curves. target: attainment that defines capacity."""
    scenarios = list(dict.fromkeys(curve.scenario for curve in curves))
    policies = list(dict.fromkeys(curve.policy for curve in curves))
    for panel, scenario in zip(panels, scenarios, strict=True):
        for curve in (curve for curve in curves if curve.scenario == scenario):
            style = policies.index(curve.policy)
            panel.plot(
                curve.rates_rps,
                [100 * share for share in curve.attained],
                color=COLOURS[style % len(COLOURS)],
                marker=MARKERS[style % len(MARKERS)],
                markersize=MARKER_POINTS,
                linewidth=CURVE_POINTS,
                label=curve.policy,
                gid=f"attainment-{scenario}-{curve.policy}",
            )
        panel.axhline(
            100 * target, color="#444444", linestyle="--", linewidth=TARGET_POINTS, gid=f"target-{scenario}"
        )
        panel.set(xlabel="requests/s per replica", ylabel="attained, %", ylim=(0, 103))
        panel.set_xlim(left=0)
        panel.legend(fontsize=LEGEND_POINTS, frameon=False)


def draw_bound(panel: "Axes", scenario: str, rate_rps: float) -> None:
    """Draw the upper bound on the rate of any policy."""
    panel.axvline(
        rate_rps,
        color="#444444",
        linestyle=":",
        linewidth=BOUND_POINTS,
        label="bound",
        gid=f"bound-{scenario}",
    )
    panel.legend(fontsize=LEGEND_POINTS, frameon=False)
