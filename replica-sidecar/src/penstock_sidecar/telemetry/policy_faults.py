"""What goes wrong inside the engine: its reports say how often its policy has failed since it started."""

from penstock_proto.telemetry_pb2 import StepReport
from prometheus_client import Counter

KINDS = ("raised", "impossible", "too_slow", "plugin")


class PolicyFaults:
    """Turns an engine's own counts into a counter that outlives the engine, by kind of fault."""

    def __init__(self, counter: Counter) -> None:
        self._counters = {kind: counter.labels(kind) for kind in KINDS}
        self._instance = ""
        self._seen = dict.fromkeys(KINDS, 0)

    def follow(self, report: StepReport) -> None:
        """A report has come."""
        if report.engine_instance != self._instance:
            self._instance, self._seen = report.engine_instance, dict.fromkeys(KINDS, 0)
        if not report.HasField("policy_faults"):
            return
        for kind, counter in self._counters.items():
            count = getattr(report.policy_faults, kind)
            counter.inc(max(count - self._seen[kind], 0))
            self._seen[kind] = count
