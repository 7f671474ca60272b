"""The page of the command line, `docs/cli.md`, written from the commands' own help.

python -m penstock_cli.reference > docs/cli.md
"""

import typer.main
from typer.cli import get_docs_for_click

from penstock_cli.main import app


def page() -> str:
    """Return the page as Markdown."""
    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="penstock")
    text = get_docs_for_click(obj=command, ctx=context, name="penstock", title="Command line")
    return f"{text.strip()}\n"


if __name__ == "__main__":
    print(page(), end="")
