"""Rows of a step report, which is sent in columns."""

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from math import isfinite
from typing import NamedTuple

from penstock_core.domain.request import RequestId
from penstock_core.domain.shared_prefixes import SharedPrefixes
from penstock_core.timing.speculation import Speculation
from penstock_proto.telemetry_pb2 import Drafting, StepReport


class Row(NamedTuple):
    """One request in a report.

    cached_tokens: cached tokens of a waiting request. unheld_blocks: those of their blocks that no request
        holds.
    """

    request_id: RequestId
    computed_tokens: int
    generated_tokens: int
    best_effort: bool
    thinking_tokens: int
    cached_tokens: int = 0
    unheld_blocks: int = 0


def is_valid(report: StepReport) -> bool:
    """Return whether a report is valid: durations are finite and not negative, blocks have a size."""
    times_s = (report.next_duration_s, report.prefill_work, report.drafting.acceptance)
    memory = report.block_tokens > 0 and report.kv_blocks_free <= report.kv_blocks_total
    return all(isfinite(time) and time >= 0 for time in times_s) and (memory or not report.kv_blocks_total)


def rows_of(report: StepReport) -> Iterator[Row]:
    """Return a report's requests, in the engine's order."""
    columns = (report.request_ids, report.computed_tokens, report.generated_tokens, report.best_effort)
    cached = (
        _waiting_column(report.cached_tokens, report.running),
        _waiting_column(report.unheld_blocks, report.running),
    )
    return map(Row, *columns, report.thinking_tokens or repeat(0), *cached)


def _waiting_column(column: Sequence[int], running: int) -> Iterator[int]:
    """Return a column for all rows, of which only waiting rows have values."""
    return chain(repeat(0, running), column, repeat(0))


def shared_of(report: StepReport) -> SharedPrefixes | None:
    """Return which requests hold the same leading blocks; None for an engine without a prefix cache.

    Rows that did not fit the datagram are left out. Their neighbours share the minimum of the blocks between.
    """
    if not report.caches_prefixes:
        return None
    names, least = report.request_ids, 0
    ids, common_blocks = list[RequestId](), list[int]()
    for row, common in zip(report.sharing, report.common_blocks, strict=False):
        least = min(least, common)
        if row < len(names):
            ids.append(names[row])
            common_blocks.append(least)
            least = report.kv_blocks_total
    return SharedPrefixes(ids, common_blocks)


def speculation_of(drafting: Drafting) -> Speculation | None:
    """Return the engine's speculation; None if it does not speculate."""
    if not drafting.max_tokens:
        return None
    return Speculation(drafting.max_tokens, drafting.acceptance, dict(drafting.by_tier))


def chunks_of(report: StepReport) -> dict[RequestId, int]:
    """Return the prompt tokens of each listed request in the current iteration."""
    rows = zip(report.prefilling, report.chunk_tokens, strict=False)
    return {report.request_ids[row]: tokens for row, tokens in rows if row < len(report.request_ids)}
