"""The flag that commands draw by."""

from pathlib import Path
from typing import Annotated

import typer

PlotFile = Annotated[
    Path | None,
    typer.Option(
        "--plot", metavar="OUT.svg|png", help="Draw what was found, by its targets.", show_default=False
    ),
]
