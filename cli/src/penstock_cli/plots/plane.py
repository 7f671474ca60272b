"""The TTFT–TPOT plane: a panel for each tier, its targets drawn, as in SOLA's figures.

Both axes count in targets, because a target may differ from request to request: what is left of and below
the two lines was promised and kept.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from penstock_core.domain.slo import Slo, Tier

from penstock_cli.plots.figure import COLOURS, MARKERS
from penstock_cli.plots.series import Cloud, Spot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FURTHEST = 100.0
NEAREST = 0.01
"""Beyond and below, spots are drawn at the edge."""

TICKS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def draw_plane(panels: Sequence["Axes"], clouds: Sequence[Cloud], of: str = "") -> None:
    """One panel for each that the clouds name, in their order. of: what a spot is, for the axes."""
    from matplotlib.ticker import FixedLocator, NullFormatter

    labels = list(dict.fromkeys(cloud.label for cloud in clouds))
    for panel, name in zip(panels, dict.fromkeys(cloud.panel for cloud in clouds), strict=True):
        here = [cloud for cloud in clouds if cloud.panel == name]
        for cloud in here:
            style = labels.index(cloud.label)
            panel.plot(
                [_within(spot.ttft_share) for spot in cloud.spots],
                [_within(spot.tpot_share) for spot in cloud.spots],
                color=COLOURS[style % len(COLOURS)],
                marker=MARKERS[style % len(MARKERS)],
                markersize=4 if cloud.path else 2.5,
                markeredgewidth=0,
                alpha=1.0 if cloud.path else 0.6,
                linestyle="-" if cloud.path else "",
                linewidth=1.0,
                label=cloud.label,
                gid=f"plane-{name}-{cloud.label}",
            )
        panel.axvline(1.0, color="#444444", linestyle="--", linewidth=0.9, gid=f"ttft-target-{name}")
        panel.axhline(1.0, color="#444444", linestyle="--", linewidth=0.9, gid=f"tpot-target-{name}")
        panel.set(
            xscale="log", yscale="log", xlabel=f"TTFT{of} / its target", ylabel=f"TPOT{of} / its target"
        )
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(FixedLocator(TICKS))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter(NullFormatter())
        panel.legend(fontsize=7, frameon=False)


def panel_titles(names: Iterable[str], tiers: dict[str, Tier]) -> list[str]:
    """Each tier with its targets in words."""
    return [f"{name}: {_promise(tiers[name].slo)}" for name in names]


def _promise(slo: Slo) -> str:
    words = []
    if slo.ttft_slowdown is not None:
        words.append(f"TTFT {slo.ttft_slowdown:g}× idle")
    elif slo.ttft_s is not None:
        words.append(f"TTFT {slo.ttft_s * 1000:g} ms")
    paces = [pace for pace in (slo.tpot_s, slo.answer_tpot_s) if pace is not None]
    if paces:
        words.append("TPOT " + " / ".join(f"{pace * 1000:g} ms" for pace in paces))
    return ", ".join(words) or "no targets"


def spot(slo: Slo, idle_prefill_s: float, ttft_s: float | None, tpot_s: float | None) -> Spot | None:
    """Where a request lies; None where it has no place: unserved, or a tier without both targets."""
    targets = slo.targets(idle_prefill_s)
    if targets.ttft_s is None or targets.tpot_s is None or ttft_s is None:
        return None
    return Spot(ttft_s / targets.ttft_s, (tpot_s or 0.0) / targets.tpot_s)


def _within(share: float) -> float:
    return min(max(share, NEAREST), FURTHEST)
