"""Destinations of the log lines of a pool's processes."""

from types import TracebackType
from typing import Self, TextIO

from rich.console import Console
from rich.text import Text

STYLES = {"engine": "magenta", "sidecar": "cyan", "router": "green", "picker": "blue", "envoy": "green"}


class ConsoleSink:
    """The terminal, with the process name before each line."""

    def __init__(self, console: Console, width: int) -> None:
        self._console, self._width = console, width

    def line(self, name: str, text: str) -> None:
        """Write one log line."""
        style = STYLES.get(name.partition("-")[0], "")
        self._console.print(Text(f"{name:<{self._width}} | ", style) + Text(text), soft_wrap=True)

    def note(self, name: str, text: str) -> None:
        """Write an event of a process."""
        self._console.print(Text(f"{name:<{self._width}} | {text}", "yellow"), soft_wrap=True)


class FileSink:
    """A file, in the same format."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def line(self, name: str, text: str) -> None:
        """Write one line."""
        print(f"{name} | {text}", file=self._file, flush=True)

    note = line
