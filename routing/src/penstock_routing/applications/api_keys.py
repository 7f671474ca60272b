"""Finds the application that an API key belongs to.

Only SHA-256 digests of keys are stored, and a key is looked up by its digest. So the time of a lookup reveals
nothing about the keys, and no log or memory dump contains one. The table is replaced as a whole, so a request
sees either the old keys or the new ones.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256

from penstock_pool import Application


class Keys:
    """The keys of one pool's applications.

    applications: all applications, in the pool's order. keys: the initial keys, with their applications.
    """

    def __init__(self, applications: Iterable[Application], keys: Mapping[str, Application]) -> None:
        self._applications = tuple(applications)
        self._digests: dict[str, frozenset[bytes]] = {
            each.name: frozenset(_digest(key) for key, owner in keys.items() if owner.name == each.name)
            for each in self._applications
        }
        self._owners = self._table()

    @property
    def required(self) -> bool:
        """Whether requests need a key, as they do in a pool with applications."""
        return bool(self._applications)

    def application(self, key: str | None) -> Application | None:
        """Return the application that the key belongs to."""
        return None if key is None else self._owners.get(_digest(key))

    def replace(self, application: str, keys: Iterable[str]) -> bool:
        """Replace all keys of the application. Return whether they changed."""
        digests = frozenset(map(_digest, keys))
        if digests == self._digests[application]:
            return False
        self._digests[application] = digests
        self._owners = self._table()
        return True

    def _table(self) -> dict[bytes, Application]:
        """Return applications by digest. A key of two of them belongs to the first in the pool."""
        return {digest: each for each in reversed(self._applications) for digest in self._digests[each.name]}


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
