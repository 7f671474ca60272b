"""The figure of the lead: capacities of other policies as shares of slos-serve's, by scenario."""

from pathlib import Path

from capacity_page import versus
from capacity_parts import KNOWN, ONE_SAMPLE, OURS, PARTS
from capacity_rows import CapacityRows
from penstock_cli.capacity.question import Question, SearchConditions
from penstock_cli.capacity.report import capacity_rps
from penstock_cli.plots.figure import COLOURS, panels, save

WIDTH = 0.26
TITLE = "Requests/s per replica at 90 % attainment, of what slos-serve carries; known lengths, exact timing"


def draw_lead(rows: CapacityRows, path: Path) -> None:
    """Write the figure for scenarios in which another tuned policy was searched. Raises Failure."""
    found = versus(PARTS["best"], rows)
    figure, (panel,) = panels([TITLE])
    figure.set_size_inches(9.6, 3.4)
    figure.subplots_adjust(left=0.06, right=0.99, top=0.9, bottom=0.12)
    names = [one.scenario for one in found]
    series = {
        "best other policy, with drafter and tuned": [100 / one.ratio for one in found],
        "vllm, with drafter and tuned": [share(rows, "vllm-spec", name, ONE_SAMPLE) for name in names],
        "vllm, tuned, no drafter (as in the paper)": [share(rows, "vllm", name, KNOWN) for name in names],
    }
    for place, (label, shares) in enumerate(series.items()):
        offsets = [x + (place - 1) * WIDTH for x in range(len(names))]
        bars = panel.bar(offsets, shares, WIDTH * 0.92, label=label, color=COLOURS[place])
        panel.bar_label(bars, fmt="%.0f", fontsize=7)
    panel.axhline(100, color="#444444", linewidth=1.2, label="slos-serve")
    panel.set_xticks(range(len(names)), names)
    panel.grid(visible=False, axis="x")
    panel.set(ylabel="% of slos-serve", ylim=(0, max(100, *(max(s) for s in series.values())) * 1.35))
    panel.legend(fontsize=7, frameon=False, ncols=2, loc="upper left")
    save(figure, path)


def share(rows: CapacityRows, policy: str, scenario: str, conditions: SearchConditions) -> float:
    """Return the policy's capacity in percent of slos-serve's; 0 if it was not searched."""
    theirs, ours = (rows.answer(Question(scenario, name, conditions)) for name in (policy, OURS))
    return 0.0 if theirs is None or ours is None else 100 * capacity_rps(theirs) / capacity_rps(ours)
