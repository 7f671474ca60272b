"""Writes an empty file of endpoints, because Envoy does not start without one.

    python -m penstock_picker.first_endpoints FILE

It runs before Envoy and the picker start. An existing file is kept, because a picker has written it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from penstock_runtime.envoy.endpoints import write_endpoints


def main(arguments: Sequence[str]) -> int:
    """Write the file. Return the exit code: 0, 1 if it cannot be written, 2 for other arguments."""
    if len(arguments) != 1:
        print("usage: python -m penstock_picker.first_endpoints FILE", file=sys.stderr)
        return 2
    file = Path(arguments[0])
    try:
        if not file.exists():
            write_endpoints(file, ())
    except OSError as error:
        print(f"{file}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
