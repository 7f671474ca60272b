"""Gives back the memory of LLVM, which a sidecar needs no longer once its policy is warm.

numba reads compiled loops through LLVM even where they are in its cache, and so leaves 80 MiB of LLVM's code
and constants resident for as long as the process lives. They are unchanged pages of a file: without them the
kernel reads what is used again from the page cache.
"""

import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

LIBRARY = "libllvmlite.so"
MAPPINGS = Path("/proc/self/smaps")


class Mapping(NamedTuple):
    """Addresses of a process, in bytes."""

    start: int
    end: int


def release_compiler_memory(mappings: Path = MAPPINGS) -> None:
    """Drop the resident pages of LLVM that can be read again from its file. Does nothing unless on Linux."""
    if not mappings.exists():
        return
    madvise = ctypes.CDLL(None).madvise
    for start, end in clean_mappings(mappings.read_text(), LIBRARY):
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def clean_mappings(smaps: str, library: str) -> Iterator[Mapping]:
    """Yield a library's mappings that are not writable and have no page unlike the file's (smaps).

    Others are left alone: relocated pointers are read-only too, and would be lost.
    """
    candidate: Mapping | None = None
    for line in smaps.splitlines():
        name, *fields = line.split()
        if not name.endswith(":"):
            writable = "w" in fields[0]
            start, end = (int(address, 16) for address in name.split("-"))
            candidate = Mapping(start, end) if line.endswith(f"/{library}") and not writable else None
        elif candidate and name == "Anonymous:" and fields[0] == "0":
            yield candidate
