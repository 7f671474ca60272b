"""Compile cache that is filled when an image is built, and read by every process of the image.

By default, numba caches only in writable folders and identifies a source by its modification time. In a
container the file system is read-only, and modification times depend on the image's builder. This locator
identifies a source by its content and also reads from read-only folders. Functions that are not in the cache
are compiled at start.

It is enabled if `NUMBA_CACHE_LOCATOR_CLASSES` names this class and `NUMBA_CACHE_DIR` the folder. Code for
`NUMBA_CPU_NAME=generic` runs on every machine of the image's architecture.
"""

import hashlib
from pathlib import Path
from typing import Any

from numba.core.caching import UserProvidedCacheLocator


class ShippedCacheLocator(UserProvidedCacheLocator):  # type: ignore[misc]
    """Locator of a cache in a folder that may be read-only."""

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> "ShippedCacheLocator":
        """Return the locator of a function, whether or not its folder exists."""
        return cls(py_func, py_file)

    def get_source_stamp(self) -> str:
        """Return the version of the source: a digest of its content."""
        return hashlib.sha256(Path(self._py_file).read_bytes()).hexdigest()

    def ensure_cache_path(self) -> None:
        """Raise RuntimeError if the folder is not writable, from which numba infers that it cannot cache."""
        try:
            super().ensure_cache_path()
        except OSError as error:
            raise RuntimeError(f"cannot keep compiled code: {error}") from error
