"""A trace's lines, from a plain or a gzip file, one at a time."""

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from penstock_cli.traces.request import TraceError

GZIP_MAGIC = b"\x1f\x8b"
LONGEST_LINE_CHARACTERS = 4 * 2**20
"""A longer one is no trace. Mooncake's lines grow with their prompts: a million tokens is 20 kB."""


def read_lines(path: Path) -> Iterator[str]:
    """The file's lines without their ends. Raises TraceError, with the number of the line it got to."""
    number = 0
    try:
        with path.open("rb") as file, _text(file) as text:
            while line := text.readline(LONGEST_LINE_CHARACTERS):
                number += 1
                if len(line) == LONGEST_LINE_CHARACTERS:
                    raise TraceError(f"{path}: line {number}, column 1: longer than a trace's line can be")
                yield line.rstrip("\r\n")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"{path}: line {number + 1}, column 1: damaged gzip: {error}") from None
    except UnicodeDecodeError:
        raise TraceError(f"{path}: line {number + 1}, column 1: not UTF-8 text") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None


def _text(file: BinaryIO) -> io.TextIOWrapper:
    zipped = file.read(2) == GZIP_MAGIC
    file.seek(0)
    # gzip's file is a BinaryIO in all but its declared type.
    source = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if zipped else file
    return io.TextIOWrapper(source, encoding="utf-8-sig", newline="\n")
