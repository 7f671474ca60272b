"""Kubernetes quantities: `1`, `500m`, `40Gi`. The API server rewrites them, so equal ones differ as text."""

import re
from decimal import Decimal

_QUANTITY = re.compile(r"([+-]?[0-9]*\.?[0-9]+)([eE][+-]?[0-9]+|[KMGTPE]i|[numkMGTPE])?", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def quantity(text: str | int | float) -> Decimal | None:
    """Return the value of a quantity; None if it is invalid."""
    parts = _QUANTITY.fullmatch(str(text))
    if parts is None:
        return None
    number, suffix = Decimal(parts[1]), parts[2] or ""
    if suffix in _BINARY:
        return number * Decimal(2) ** _BINARY[suffix]
    if suffix in _DECIMAL:
        return number.scaleb(_DECIMAL[suffix])
    return number.scaleb(int(suffix[1:]))
