"""Compiled once, where an image is built, and read by every process that starts from it.

numba keeps what it compiled only where it may write, and takes a source's date for its version. A
container's file system is read-only, and its dates are whatever the image's builder made of them. So here a
version is the source's content, and a folder that nobody may write to is as good: what is in it is read. What
is not in it is compiled at the start, as without any cache.

In force where `NUMBA_CACHE_LOCATOR_CLASSES` names this class and `NUMBA_CACHE_DIR` the folder; code for
`NUMBA_CPU_NAME=generic` runs on every machine that the image runs on.
"""

import hashlib
from pathlib import Path
from typing import Any

from numba.core.caching import UserProvidedCacheLocator


class ShippedCacheLocator(UserProvidedCacheLocator):  # type: ignore[misc]
    """Where numba looks, and keeps, in a folder that need not be writable."""

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> "ShippedCacheLocator":
        """The locator of a function, whether or not its folder exists."""
        return cls(py_func, py_file)

    def get_source_stamp(self) -> str:
        """The source's version: its content."""
        return hashlib.sha256(Path(self._py_file).read_bytes()).hexdigest()

    def ensure_cache_path(self) -> None:
        """Raise RuntimeError, numba's word for having no cache, where nothing can be kept."""
        try:
            super().ensure_cache_path()
        except OSError as error:
            raise RuntimeError(f"cannot keep compiled code: {error}") from error
