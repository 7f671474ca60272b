"""Whether a report is valid input for planning."""

import pytest
from penstock_proto.telemetry_pb2 import Drafting, StepReport
from penstock_sidecar.mirror.report_rows import is_valid, shared_of

NAN, INFINITE = float("nan"), float("inf")


@pytest.mark.parametrize(
    "report",
    [
        StepReport(),
        StepReport(next_duration_s=0.02, prefill_work=5.0, drafting=Drafting(acceptance=0.7)),
        StepReport(kv_blocks_total=10, kv_blocks_free=10, block_tokens=1),
        StepReport(kv_blocks_total=1, kv_blocks_free=0, block_tokens=16),
        StepReport(kv_blocks_free=5),  # an engine that does not report its memory
    ],
    ids=str,
)
def test_a_report_of_times_and_blocks_is_valid(report: StepReport) -> None:
    assert is_valid(report)


@pytest.mark.parametrize("wrong", [NAN, INFINITE, -INFINITE, -0.001])
def test_a_report_with_invalid_times_is_invalid(wrong: float) -> None:
    assert not is_valid(StepReport(next_duration_s=wrong))
    assert not is_valid(StepReport(prefill_work=wrong))
    assert not is_valid(StepReport(drafting=Drafting(acceptance=wrong)))


@pytest.mark.parametrize(("free", "block_tokens"), [(0, 0), (11, 16), (11, 0)])
def test_a_report_with_invalid_memory_is_invalid(free: int, block_tokens: int) -> None:
    memory = StepReport(kv_blocks_total=10, kv_blocks_free=free, block_tokens=block_tokens)
    assert not is_valid(memory)
    memory.next_duration_s = 0.02
    assert not is_valid(memory)


def test_blocks_shared_with_rows_outside_the_datagram_are_those_of_their_neighbours() -> None:
    report = StepReport(caches_prefixes=True, kv_blocks_total=100, request_ids=["a", "b", "c"])
    report.sharing.extend([1, 5, 0, 4, 2])
    report.common_blocks.extend([9, 7, 3, 2, 8])
    assert shared_of(report) == (["b", "a", "c"], [0, 3, 2])


def test_without_reports_of_sharing_every_request_is_counted_whole() -> None:
    assert shared_of(StepReport(caches_prefixes=True)) == ([], [])
    assert shared_of(StepReport()) is None
