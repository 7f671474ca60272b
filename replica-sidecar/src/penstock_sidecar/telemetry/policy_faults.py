"""Policy failures inside the engine, which reports count since the engine's start."""

from penstock_proto.telemetry_pb2 import StepReport
from prometheus_client import Counter

KINDS = ("raised", "impossible", "too_slow", "plugin")


class PolicyFaults:
    """Adds an engine's counts to counters that survive its restarts, by kind of fault."""

    def __init__(self, counter: Counter) -> None:
        self._counters = {kind: counter.labels(kind) for kind in KINDS}
        self._instance = ""
        self._counted: dict[str, int] = {}

    def add(self, report: StepReport) -> None:
        """Add the new failures in a report."""
        if report.engine_instance != self._instance:
            self._instance, self._counted = report.engine_instance, {}
        if not report.HasField("policy_faults"):
            return
        for kind, counter in self._counters.items():
            count = getattr(report.policy_faults, kind)
            counter.inc(max(count - self._counted.get(kind, 0), 0))
            self._counted[kind] = count
