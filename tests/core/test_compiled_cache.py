"""Compiled code in an image is used from a read-only folder, and never for a changed source."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from numba import config
from penstock_core.compilation.cache import ShippedCacheLocator

SOURCE = """
from penstock_core.compilation.jit import FLOAT, compiled

@compiled(FLOAT, FLOAT)
def twice(number):
    return 2 * number
"""
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import loops
print(loops.twice(4.0), sum(loops.twice.stats.cache_hits.values()))
"""


def run(folder: Path, cache: Path) -> tuple[float, int]:
    """Return the compiled function's result in a new process, and its number of cache hits."""
    environment = os.environ | {
        "NUMBA_DISABLE_JIT": "0",
        "NUMBA_CACHE_DIR": str(cache),
        "NUMBA_CACHE_LOCATOR_CLASSES": "penstock_core.compilation.cache.ShippedCacheLocator",
    }
    command = [sys.executable, "-B", "-c", PROGRAM, str(folder)]
    printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    result, hits = printed.split()
    return float(result), int(hits)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "src" / "loops.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    return path


def locator(source: Path) -> ShippedCacheLocator:
    return ShippedCacheLocator.from_function(test_a_changed_source_is_another_version, str(source))


def test_compiled_code_is_reused_after_its_source_was_touched(source: Path, tmp_path: Path) -> None:
    assert run(source.parent, tmp_path / "cache") == (8.0, 0)
    os.utime(source, (0, 0))
    assert run(source.parent, tmp_path / "cache") == (8.0, 1)


def test_without_a_writable_cache_code_is_still_compiled(source: Path) -> None:
    assert run(source.parent, Path("/proc/none")) == (8.0, 0)


def test_a_changed_source_is_another_version(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(source.parent))
    before = locator(source).get_source_stamp()
    source.write_text(SOURCE.replace("2 *", "3 *"))
    assert locator(source).get_source_stamp() != before


def test_an_unwritable_folder_is_not_used_as_the_cache(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", "/proc/none")
    with pytest.raises(RuntimeError, match="cannot keep compiled code"):
        locator(source).ensure_cache_path()
    monkeypatch.setattr(config, "CACHE_DIR", str(source.parent / "cache"))
    locator(source).ensure_cache_path()
    assert (source.parent / "cache").is_dir()
