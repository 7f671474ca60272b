"""Releases the memory of LLVM, which a sidecar no longer needs once its policy is warm.

numba loads compiled loops through LLVM even from its cache, which leaves 80 MiB of LLVM's code and constants
resident for as long as the process lives. They are unchanged pages of a file. If they are dropped, the kernel
reads those that are used again from the page cache.
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
    """Drop the resident pages of LLVM that can be read again from its file. Has no effect except on Linux."""
    if not mappings.exists():
        return
    madvise = ctypes.CDLL(None).madvise
    for start, end in clean_mappings(mappings.read_text(), LIBRARY):
        madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def clean_mappings(smaps: str, library: str) -> Iterator[Mapping]:
    """Yield a library's mappings that are not writable and whose pages equal the file's, by smaps.

    Other read-only mappings contain relocated pointers, which would be lost.
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
