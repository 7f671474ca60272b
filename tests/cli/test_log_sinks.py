"""Log lines of a pool's processes: on the terminal and in a file, each behind its process's name."""

from io import StringIO
from pathlib import Path

from penstock_cli.local.log_sinks import ConsoleSink, FileSink
from rich.console import Console


def test_a_terminal_shows_each_line_after_its_process_name_in_colour() -> None:
    written = StringIO()
    sink = ConsoleSink(Console(file=written, force_terminal=True, color_system="standard", width=20), 10)
    sink.line("engine-r0", "[bold]ready[/bold] " + "x" * 30)
    sink.line("router", "up")
    sink.line("other-r0", "up")
    sink.note("router", "ended")
    assert written.getvalue().splitlines() == [
        "\x1b[35mengine-r0  | [bold]ready[/bold] " + "x" * 30 + "\x1b[0m",
        "\x1b[32mrouter     | up\x1b[0m",
        "other-r0   | up",
        "\x1b[33mrouter     | ended\x1b[0m",
    ]


def test_a_log_file_has_no_colours_and_is_closed() -> None:
    written = StringIO()
    lines = list[str]()
    with FileSink(written) as sink:
        sink.line("engine-r0", "ready")
        sink.note("engine-r0", "ended")
        lines = written.getvalue().splitlines()
    assert [line.split() for line in lines] == [["engine-r0", "|", "ready"], ["engine-r0", "|", "ended"]]
    assert written.closed


def test_a_line_is_written_to_the_file_immediately(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with FileSink(path.open("w")) as sink:
        sink.line("router", "up")
        assert path.read_text() == "router | up\n"
