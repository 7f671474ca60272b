"""LLVM's pages are given back, and only those that the kernel can read again."""

import subprocess
import sys

from penstock_sidecar.compiler_memory import clean_mappings

SMAPS = """\
1000-2000 r--p 00000000 08:01 7    /site-packages/llvmlite/binding/libllvmlite.so
Size:                  4 kB
Rss:                   4 kB
Anonymous:             0 kB
2000-5000 r-xp 00001000 08:01 7    /site-packages/llvmlite/binding/libllvmlite.so
Rss:                  12 kB
Anonymous:             0 kB
5000-6000 r--p 00004000 08:01 7    /site-packages/llvmlite/binding/libllvmlite.so
Rss:                   4 kB
Anonymous:             4 kB
6000-7000 rw-p 00005000 08:01 7    /site-packages/llvmlite/binding/libllvmlite.so
Rss:                   0 kB
Anonymous:             0 kB
7000-8000 r-xp 00000000 08:01 8    /usr/lib/libc.so.6
Rss:                   4 kB
Anonymous:             0 kB
8000-9000 rw-p 00000000 00:00 0
Rss:                   4 kB
Anonymous:             0 kB
"""


def test_only_unchanged_read_only_pages_of_the_library_are_released() -> None:
    assert list(clean_mappings(SMAPS, "libllvmlite.so")) == [(0x1000, 0x2000), (0x2000, 0x5000)]


def test_the_compiler_works_as_before_and_most_of_it_is_not_resident() -> None:
    """The test runs in its own process, because other tests use this one's compiler."""
    program = """
from pathlib import Path
from numba import njit
from penstock_sidecar.compiler_memory import MAPPINGS, release_compiler_memory

def resident():
    sizes = [text.split("Rss:")[1].split()[0] for text in MAPPINGS.read_text().split("VmFlags:")
             if "libllvmlite.so" in text]
    return sum(int(kib) for kib in sizes)

assert njit(lambda x: x + 1)(1) == 2
before = resident()
release_compiler_memory()
after = resident()
assert after < before / 4, (before, after)
assert njit(lambda x: x + 2)(1) == 3
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
