"""The CSV of --requests: a line per request, written when it ends."""

import csv
from pathlib import Path
from types import TracebackType
from typing import Self

from penstock_cli.failure import Failure
from penstock_cli.replay.outcome import RequestOutcome

COLUMNS = (
    "id",
    "tier",
    "arrival_s",
    "prompt_tokens",
    "output_tokens",
    "verdict",
    "replica",
    "hops",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "met",
)


class RowsFile:
    """An open CSV of requests. Raises Failure if it cannot be written."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("w", newline="", encoding="utf-8")
        except OSError as error:
            raise Failure(f"--requests {path}: {error.strerror}", bad_input=True) from None
        self._rows = csv.writer(self._file)
        self._rows.writerow(COLUMNS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, outcome: RequestOutcome) -> None:
        """Write one line. Times that were not measured are empty."""
        self._rows.writerow(
            (
                outcome.id,
                outcome.tier,
                f"{outcome.arrival_s:.6f}",
                outcome.prompt_tokens,
                outcome.output_tokens,
                outcome.ending.value,
                outcome.replica,
                outcome.hops,
                *(_seconds(value) for value in (outcome.ttft_s, outcome.tpot_s, outcome.e2e_s)),
                str(outcome.met).lower(),
            )
        )


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"
