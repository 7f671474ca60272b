"""An engine's reports, taken as they are made."""

from typing import Any

from penstock_proto.telemetry_pb2 import StepReport
from penstock_vllm.reports import Boundary, BoundaryRecorder, Reports, UniformBoundary
from virtual.engine import Engine


class Wire:
    """Takes reports as the socket does: as bytes."""

    lost = 0

    def __init__(self) -> None:
        self.reports: list[StepReport] = []

    def send(self, report: StepReport) -> bool:
        self.reports.append(StepReport.FromString(report.SerializeToString()))
        return True

    def close(self) -> None:
        pass


class AtOnce:
    """A queue that reports each item immediately."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports

    def qsize(self) -> int:
        return 0

    def put(self, item: Boundary | UniformBoundary) -> None:
        self._reports.send(item)


def wired(engine: Engine) -> Wire:
    """The engine's reports, from here on."""
    wire: Any = Wire()
    reports = Reports(wire)
    engine.scheduler._boundaries.recorder = BoundaryRecorder(reports, AtOnce(reports))
    return wire  # type: ignore[no-any-return]
