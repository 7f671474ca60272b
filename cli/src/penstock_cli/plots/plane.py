"""The TTFT–TPOT plane: a panel per tier with its targets, as in SOLA's figures.

Both axes are shares of the targets, which may differ by request. Requests left of and below the two lines met
both targets.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from penstock_core.domain.slo import Slo, Tier

from penstock_cli.plots.figure import (
    COLOURS,
    LEGEND_POINTS,
    MARKER_POINTS,
    MARKERS,
    PATH_POINTS,
    SPOT_OPACITY,
    SPOT_POINTS,
    TARGET_POINTS,
)
from penstock_cli.plots.series import Cloud, Spot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOWEST, HIGHEST = 0.01, 100.0
"""Points beyond these shares are drawn at the edge."""

TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)
"""Shares that the axes label."""

MET = 1.0
"""The share at which a target is just met."""


def draw_plane(panels: Sequence["Axes"], clouds: Sequence[Cloud], of: str = "") -> None:
    """Draw one panel per panel name of the clouds, in their order. of: suffix of the axis labels."""
    from matplotlib.ticker import FixedLocator, NullFormatter

    labels = list(dict.fromkeys(cloud.label for cloud in clouds))
    for panel, name in zip(panels, dict.fromkeys(cloud.panel for cloud in clouds), strict=True):
        here = [cloud for cloud in clouds if cloud.panel == name]
        for cloud in here:
            style = labels.index(cloud.label)
            panel.plot(
                [_clamped(spot.ttft_share) for spot in cloud.spots],
                [_clamped(spot.tpot_share) for spot in cloud.spots],
                color=COLOURS[style % len(COLOURS)],
                marker=MARKERS[style % len(MARKERS)],
                markersize=MARKER_POINTS if cloud.path else SPOT_POINTS,
                markeredgewidth=0,
                alpha=None if cloud.path else SPOT_OPACITY,
                linestyle="-" if cloud.path else "",
                linewidth=PATH_POINTS,
                label=cloud.label,
                gid=f"plane-{name}-{cloud.label}",
            )
        panel.axvline(
            MET, color="#444444", linestyle="--", linewidth=TARGET_POINTS, gid=f"ttft-target-{name}"
        )
        panel.axhline(
            MET, color="#444444", linestyle="--", linewidth=TARGET_POINTS, gid=f"tpot-target-{name}"
        )
        panel.set(
            xscale="log", yscale="log", xlabel=f"TTFT{of} / its target", ylabel=f"TPOT{of} / its target"
        )
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(FixedLocator(TICKS))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())
        panel.legend(fontsize=LEGEND_POINTS, frameon=False)


def panel_titles(names: Iterable[str], tiers: dict[str, Tier]) -> list[str]:
    """Return a title per tier, with its targets."""
    return [f"{name}: {_targets(tiers[name].slo)}" for name in names]


def _targets(slo: Slo) -> str:
    words = []
    if slo.ttft_slowdown is not None:
        words.append(f"TTFT {slo.ttft_slowdown:g}× idle")
    elif slo.ttft_s is not None:
        words.append(f"TTFT {slo.ttft_s * 1000:g} ms")
    tpots_s = [one_s for one_s in (slo.tpot_s, slo.answer_tpot_s) if one_s is not None]
    if tpots_s:
        words.append("TPOT " + " / ".join(f"{one_s * 1000:g} ms" for one_s in tpots_s))
    return ", ".join(words) or "no targets"


def spot(slo: Slo, idle_prefill_s: float, ttft_s: float | None, tpot_s: float | None) -> Spot | None:
    """Return a request's point; None if it was not served, or its tier lacks one of the two targets."""
    targets = slo.targets(idle_prefill_s)
    if targets.ttft_s is None or targets.tpot_s is None or ttft_s is None:
        return None
    return Spot(ttft_s / targets.ttft_s, (tpot_s or 0.0) / targets.tpot_s)


def _clamped(share: float) -> float:
    return min(max(share, LOWEST), HIGHEST)
