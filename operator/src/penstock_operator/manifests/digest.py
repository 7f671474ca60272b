"""A short name for a value: equal values have equal ones, whatever the order of their keys."""

import json
from hashlib import sha256
from typing import Any


def digest(value: Any) -> str:
    """Of a JSON value; sixteen hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()[:16]
