"""Reads a trace's lines from a plain or gzip file."""

import codecs
import gzip
import zlib
from collections.abc import Generator
from io import BufferedReader
from pathlib import Path

from penstock_cli.traces.request import TraceError

GZIP_MAGIC = b"\x1f\x8b"
LONGEST_LINE_BYTES = 4 * 2**20
"""Longest line. Mooncake's lines grow with their prompts: a million tokens are 20 kB."""


def read_lines(path: Path) -> Generator[str, None, None]:
    """Yield the file's lines without line ends. Raises TraceError with the line's number.

    The file is open until the end, or until the generator is closed.
    """
    number = 1
    try:
        with path.open("rb") as file, _unzipped(file) as lines:
            while line := lines.readline(LONGEST_LINE_BYTES):
                if len(line) == LONGEST_LINE_BYTES:
                    raise TraceError(
                        f"{path}: line {number}, column 1: longer than {LONGEST_LINE_BYTES} bytes"
                    )
                yield (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode().rstrip("\r\n")
                number += 1
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: line {number}, column 1: damaged gzip: {error}") from None
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: line {number}, column {error.start + 1}: not UTF-8 text") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None


def _unzipped(file: BufferedReader) -> BufferedReader | gzip.GzipFile:
    zipped = file.peek().startswith(GZIP_MAGIC)
    return gzip.GzipFile(fileobj=file) if zipped else file
