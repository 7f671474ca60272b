"""The `penstock` command with its subcommands.

Exit codes: 0 done, 1 failure, 2 invalid input. Errors that a user can cause are printed as lines to standard
error; a traceback is a defect.
"""

import sys
from collections.abc import Callable, Sequence

import typer
from penstock_pool import PoolError

from penstock_cli.commands.capacity import capacity
from penstock_cli.commands.demo import demo
from penstock_cli.commands.profile import profile_engine
from penstock_cli.commands.replay import replay
from penstock_cli.commands.simulate import simulate
from penstock_cli.commands.up import up
from penstock_cli.commands.validate import validate
from penstock_cli.failure import EXIT_BAD_INPUT, EXIT_FAILURE, Failure
from penstock_cli.traces import TraceError

HELP = """Penstock serves LLM requests, and admits only those whose service-level objectives it can meet.

First steps:

  penstock demo

  penstock validate -f examples/demo-pool.yaml

  penstock up -f examples/demo-pool.yaml

  penstock replay --trace examples/azure-excerpt.csv.gz --url http://127.0.0.1:8080

  penstock simulate -f examples/demo-pool.yaml --trace examples/azure-excerpt.csv.gz

Exit codes: 0 done, 1 failure, 2 invalid input.
"""

TYPER_INTERRUPTED = 130

app = typer.Typer(help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
for command in (demo, validate, up, replay, simulate, capacity):
    app.command()(command)
app.command("profile")(profile_engine)


def main() -> None:
    """Run the command line. Never returns."""
    sys.exit(run(app))


def run(command: Callable[[], object]) -> int:
    """Run a command and return its exit code, with errors printed to standard error."""
    try:
        command()
    except Failure as failure:
        return _print_error(failure.lines, failure.exit_code)
    except PoolError as error:
        return _print_error(error.lines, EXIT_BAD_INPUT)
    except TraceError as error:
        return _print_error([str(error)], EXIT_BAD_INPUT)
    except SystemExit as end:  # how typer ends
        return (
            _print_error(["interrupted"], EXIT_FAILURE)
            if end.code == TYPER_INTERRUPTED
            else int(end.code or 0)
        )
    return 0


def _print_error(lines: Sequence[str], code: int) -> int:
    print(*lines, sep="\n", file=sys.stderr)
    return code
