"""Which ways of forming batches are tried, and the first that keeps every promise.

Short batches answer arrivals sooner, since a batch under way cannot be interrupted; long ones waste less on
their fixed cost. Decodes that draft free memory sooner; those that do not leave more of a batch to prompts.
So the first choice is a batch of which the fixed cost is a quarter, with the fastest drafting, and the other
ways are for when that would break a promise. Admission counts on them, so the engine must be ready for each.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.policies.slos_serve.batch_plan import Course, Mode, Outset, course
from penstock_core.policies.slos_serve.overload_margin import RESERVE, in_reserve
from penstock_core.policies.slos_serve.speculation_length import NO_DRAFTS, fastest
from penstock_core.timing.batch_length import ORDINARY_BATCH_S
from penstock_core.timing.time_model import BatchWork

ORDINARY_STEPS = 4.0
"""How many times the shortest batch an ordinary one may last: its fixed cost is then a quarter."""

LONGER = (1.0, 2.0, 4.0)
"""Longer batches tried where ordinary ones do not do, as multiples."""

SHORTER = (0.9, 0.75)
"""Shorter ones, likewise, by which the engine keeps promises that somebody's leaving has upset."""


class Way(NamedTuple):
    """A mode, and what comes by it from there."""

    mode: Mode
    course: Course
    outset: Outset


def ordinary_s(view: ReplicaView) -> float:
    """Longest batch that arrivals may have to wait for."""
    return max(ORDINARY_BATCH_S, ORDINARY_STEPS * view.model.seconds(BatchWork(1)))


def modes(
    view: ReplicaView, decodes: Sequence[Job], prompts: Sequence[Job], reserve: float = 0.0
) -> Iterator[Mode]:
    """Modes with this reserve, in the order of preference."""
    drafting = fastest(view.speculation, view.model, [*decodes, *prompts])
    base_s = ordinary_s(view)
    draftings = (drafting, NO_DRAFTS) if drafting else (NO_DRAFTS,)
    for factor in LONGER:
        for drafts in draftings:
            yield Mode(base_s * factor, drafts, reserve=reserve)
    if _loose(decodes, prompts) and all_peaks_fit(view, decodes, prompts):
        for drafts in draftings:
            yield Mode(base_s, drafts, skips=True, reserve=reserve)


def way(view: ReplicaView, decodes: Sequence[Job], prompts: Sequence[Job]) -> Way:
    """The first way that keeps every promise; where none does, the last one tried."""
    reserve = in_reserve(view, len(decodes) + len(prompts))
    return _first(Outset.of(view, decodes, prompts), modes(view, decodes, prompts, reserve))


def engines_way(view: ReplicaView, decodes: Sequence[Job], prompts: Sequence[Job]) -> Way:
    """The way that the engine goes: as `way`, or one on which admission would not count now.

    That is one without the reserve where there is to be one, as promises may be older than it, and with it
    where there need be none; and then one of shorter batches. Where none keeps every promise no decode waits:
    that would break many to keep the one of a prompt.
    """
    foreseen = way(view, decodes, prompts)
    if _keeps(foreseen):
        return foreseen
    base_s = ordinary_s(view)
    otherwise = modes(view, decodes, prompts, RESERVE - foreseen.mode.reserve)
    other = _first(foreseen.outset, [*otherwise, *[Mode(base_s * factor) for factor in SHORTER]])
    if _keeps(other):
        return other
    return _first(foreseen.outset, [Mode(base_s * LONGER[-1])]) if foreseen.mode.skips else foreseen


def _first(outset: Outset, tried: Iterable[Mode]) -> Way:
    last: Way | None = None
    for mode in tried:
        last = Way(mode, course(outset, mode), outset)
        if _keeps(last):
            return last
    assert last is not None, "there is always a mode"
    return last


def _keeps(foreseen: Way) -> bool:
    return foreseen.course.keeps and foreseen.course.steady


def all_peaks_fit(view: ReplicaView, decodes: Sequence[Job], prompts: Sequence[Job]) -> bool:
    """Whether every job could hold its last token at the same time: only then may decodes wait."""
    blocks_for = view.kv.blocks_for
    peaks = [
        blocks_for(job.request.prompt_tokens + job.generated_tokens + job.output_tokens_left)
        for job in (*decodes, *prompts)
    ]
    return sum(peaks) <= view.kv.total_blocks


def _loose(decodes: Sequence[Job], prompts: Sequence[Job]) -> bool:
    """Whether some decode has a pace at which it can skip every other batch of the tightest."""
    paces_s = [job.pace_s for job in (*decodes, *prompts) if job.pace_s is not None]
    return bool(paces_s) and max(paces_s) >= 2 * min(paces_s)
