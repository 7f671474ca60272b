"""A time model that is still unknown: with `auto`, the sidecar measures this engine and writes the model.

The sidecar writes the file beside its telemetry socket, in the one folder that both processes see, and moves
it into place when it is complete. Until then steps are vLLM's own, which is what the sidecar measures.
"""

import logging
from pathlib import Path

from penstock_core.domain.engine_fields import measured_model_file
from penstock_core.timing.time_model import TimeModel

from penstock_vllm.settings import read_model

CHECK_S = 0.5
"""Seconds between two checks for the file."""

log = logging.getLogger("vllm.penstock")


class PendingModel:
    """Checks for the file periodically, and reads it once."""

    def __init__(self, telemetry: Path) -> None:
        self._path = Path(measured_model_file(str(telemetry)))
        self._checked_s, self._logged = float("-inf"), ""

    def check(self, now_s: float) -> TimeModel | None:
        """Return the model once it is there, else None."""
        if now_s - self._checked_s < CHECK_S:
            return None
        self._checked_s = now_s
        try:
            model = read_model(self._path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            if str(error) != self._logged:
                log.error("penstock: %s: %s; steps stay vLLM's own until it is right", self._path, error)
            self._logged = str(error)
            return None
        log.info("penstock: time model measured by the sidecar: %s", self._path)
        return model
