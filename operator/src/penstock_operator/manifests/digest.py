"""Digest of a JSON value, independent of the order of its keys."""

import json
from hashlib import sha256
from typing import Any


def digest(value: Any) -> str:
    """Return the digest of a JSON value: sixteen hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()[:16]
