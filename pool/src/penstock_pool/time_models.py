"""The time model that a pool names: a built-in, or one that `penstock profile` has written.

The latter is a JSON file beside the pool file. It names the model that was measured. A time model of another
model is an error, which is reported when the pool is loaded.
"""

from functools import lru_cache
from pathlib import Path

import orjson
from penstock_core.timing.builtin_models import BUILTINS, time_model
from penstock_core.timing.time_model import TimeModel, from_json

FORMAT = "penstock-time-model/1"
SUFFIX = ".json"
"""Suffix of the name of a measured model."""

MOST_BYTES = 1 << 20
"""Upper limit of a file's bytes. A time model takes less than a thousandth of it."""


class TimeModelError(Exception):
    """A file without a valid time model for this pool. The message is one line without the file's name."""


def read_time_model(path: Path, served: str) -> TimeModel:
    """Return the model in a file, for a pool that serves the model of this name. Raises TimeModelError."""
    measured_with, model = _read(path)
    if measured_with != served:
        raise TimeModelError(
            f'was measured with "{measured_with}", this pool serves "{served}"; measure its engine with '
            "penstock profile"
        )
    return model


@lru_cache(maxsize=4)  # a process has one pool, and calls this for every request
def named_time_model(name: str) -> TimeModel | None:
    """Return a built-in by its name, or a measured one by the path that `load_pool` has set.

    None for `auto`. Raises TimeModelError.
    """
    if name in BUILTINS:
        return time_model(name)
    return _read(Path(name))[1] if name.endswith(SUFFIX) else None


def _read(path: Path) -> tuple[str, TimeModel]:
    """Return the name of the measured model, and the time model."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise TimeModelError(f"cannot be read: {error.strerror}") from None
    if len(text) > MOST_BYTES:
        raise TimeModelError(f"is longer than {MOST_BYTES} bytes; a time model is shorter")
    try:
        page = orjson.loads(text)
        if page["format"] != FORMAT:
            raise TimeModelError(f'has the format "{page["format"]}"; this reads {FORMAT}')
        return str(page["model"]), from_json(page["time_model"])
    except (orjson.JSONDecodeError, LookupError, TypeError, ValueError) as error:
        raise TimeModelError(f"is not a time model ({error}); penstock profile writes one") from None
