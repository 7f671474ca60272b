"""The option --plot."""

from pathlib import Path
from typing import Annotated

import typer

PlotFile = Annotated[
    Path | None,
    typer.Option("--plot", metavar="OUT.svg|png", help="Write a figure of the results."),
]
