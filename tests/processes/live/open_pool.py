"""Pools that are closed by the fixture that opened them."""

from typing import Any

import pytest
from live.pool import LivePool


class OpenPool:
    """Call it to open a pool."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self.opened: list[LivePool] = []

    def __call__(self, replicas: int = 1, **changes: Any) -> LivePool:
        pool = LivePool(self._folders.mktemp("pool"), replicas, **changes)
        self.opened.append(pool)
        try:
            pool.open()
        except AssertionError as error:
            error.add_note("\n".join(f"--- log of {name}\n{text}" for name, text in pool.logs()))
            raise
        return pool

    def close(self) -> None:
        """Close all of them."""
        for pool in self.opened:
            pool.close()
