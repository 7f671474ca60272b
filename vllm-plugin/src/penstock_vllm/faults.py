"""Counts errors around steps by kind, and logs the first of each type."""

import logging
from enum import StrEnum

log = logging.getLogger("vllm.penstock")


class Fault(StrEnum):
    """Why a step was vLLM's own, or was not recorded correctly."""

    RAISED = "raised"  # the policy raised
    IMPOSSIBLE = "impossible"  # the policy's step is impossible for the engine
    TOO_SLOW = "too_slow"  # the policy exceeded its time limit for a step
    PLUGIN = "plugin"  # the code around the policy raised


class PolicyFaultLog:
    """A log and count of faults. counted: number of errors by kind, since the engine started."""

    def __init__(self) -> None:
        self.counted: dict[str, int] = {}
        self._logged: set[tuple[str, str]] = set()

    def count(self, fault: Fault, error: Exception) -> None:
        """Count an error; log it if it is the first of its kind and type."""
        self.counted[fault] = self.counted.get(fault, 0) + 1
        kind = fault, type(error).__name__
        if kind in self._logged:
            return
        self._logged.add(kind)
        source = "the plug-in" if fault is Fault.PLUGIN else "the policy"
        traced = None if fault is Fault.TOO_SLOW else error
        log.error(
            "penstock: %s failed, vLLM plans instead: %s: %s",
            source,
            kind[1],
            _message(error),
            exc_info=traced,
        )


def _message(error: Exception) -> str:
    try:
        return str(error)[:200]
    except Exception:
        return "without words"
