"""Figures and their files: SVG or PNG by the suffix, with reproducible bytes."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from penstock_cli.failure import Failure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SUFFIXES = (".svg", ".png")
PANEL_INCHES = (4.2, 3.4)
"""Width and height of a panel with its share of the margins."""

LEFT_INCHES, RIGHT_INCHES, BOTTOM_INCHES, TOP_INCHES = 0.7, 0.175, 0.7, 0.41
"""Margins around all panels."""

GAP_INCHES = 0.85
"""Space between two panels."""

DOTS_PER_INCH = 150
"""Resolution of a PNG."""

MOST_IN_A_ROW = 3
"""Most panels in a row."""

TITLE_POINTS, LEGEND_POINTS = 10, 7
"""Sizes of text."""

CURVE_POINTS, PATH_POINTS, TARGET_POINTS, BOUND_POINTS, GRID_POINTS = 1.4, 1.0, 0.9, 1.2, 0.6
"""Widths of lines."""

MARKER_POINTS, SPOT_POINTS = 4, 2.5
"""Sizes of markers: on a line, and of a single request."""

SPOT_OPACITY = 0.6
"""Opacity of a single request, so that overlapping ones are darker."""

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000")
"""Okabe and Ito's palette, which is safe for colour blindness."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def check_suffix(path: Path | None) -> None:
    """Check the suffix of a figure's file. Raises Failure."""
    if path is not None and path.suffix.lower() not in SUFFIXES:
        raise Failure(f"--plot {path}: the suffix must be {' or '.join(SUFFIXES)}", bad_input=True)


def panels(titles: Sequence[str]) -> tuple["Figure", list["Axes"]]:
    """Return an empty figure with a panel per title, up to three in a row."""
    from matplotlib.figure import Figure

    columns = min(len(titles), MOST_IN_A_ROW)
    rows = -(-len(titles) // columns)
    width, height = PANEL_INCHES
    figure = Figure(figsize=(width * columns, height * rows))
    figure.subplots_adjust(
        left=LEFT_INCHES / (width * columns),
        right=1 - RIGHT_INCHES / (width * columns),
        bottom=BOTTOM_INCHES / (height * rows),
        top=1 - TOP_INCHES / (height * rows),
        wspace=GAP_INCHES / (width - GAP_INCHES),
        hspace=GAP_INCHES / (height - GAP_INCHES),
    )
    axes = [figure.add_subplot(rows, columns, place) for place in range(1, len(titles) + 1)]
    for panel, title in zip(axes, titles, strict=True):
        panel.set_title(title, fontsize=TITLE_POINTS, loc="left")
        panel.grid(color="#dddddd", linewidth=GRID_POINTS)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: "Figure", path: Path) -> None:
    """Write the figure. Raises Failure."""
    import matplotlib as mpl

    svg = path.suffix.lower() == ".svg"
    try:
        with mpl.rc_context({"svg.hashsalt": "penstock", "svg.fonttype": "none"}):
            figure.savefig(path, dpi=DOTS_PER_INCH, metadata={"Date": None} if svg else None)
    except OSError as error:
        raise Failure(f"--plot {path}: {error.strerror}") from None
