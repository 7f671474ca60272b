"""Which batches are tried, in which order, and which are taken."""

from dataclasses import replace

import pytest
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job, Request, advance, new_job
from penstock_core.domain.slo import Targets
from penstock_core.policies.slos_serve.batching_rules import (
    SHORTER,
    all_peaks_fit,
    engines_way,
    modes,
    ordinary_s,
    way,
)
from penstock_core.policies.slos_serve.overload_margin import RESERVE
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork, chunk_work

OPT = time_model("slos-serve-opt-6.7b-a100")
FAST = time_model("llama-3-8b-h100")


def decode(name: str, pace_s: float | None) -> Job:
    request = Request(name, "tier", 0.0, 300, 4096, Targets(1.0, pace_s))
    return advance(new_job(request, 50, False), 300, 1, 0.0)


def prompt(tokens: int, ttft_s: float) -> Job:
    return new_job(Request("p", "tier", 0.0, tokens, 4096, Targets(ttft_s, 0.1)), 50, False)


def replica(blocks: int = 10_000, speculation: Speculation | None = None) -> ReplicaView:
    return ReplicaView(0.0, 0.0, (), (), KvCache(blocks, blocks, 16), Limits(), OPT, speculation)


TIGHT, LOOSE = decode("tight", 0.05), decode("loose", 0.1)


def test_an_ordinary_batch_is_four_shortest_ones_and_not_below_60_ms() -> None:
    assert ordinary_s(replica()) == 4 * OPT.prefill_seconds(1) > 0.060
    assert ordinary_s(replace(replica(), model=FAST)) == 0.060


def test_longer_batches_come_later_and_skipping_last() -> None:
    base_s = ordinary_s(replica())
    assert [mode[::2] for mode in modes(replica(), [TIGHT, LOOSE], [])] == [
        (base_s, False),
        (2 * base_s, False),
        (4 * base_s, False),
        (base_s, True),
    ]


def test_each_length_is_tried_with_drafts_and_then_without() -> None:
    drafting = [
        bool(mode.drafting) for mode in modes(replica(10_000, Speculation(5, 0.7)), [TIGHT, LOOSE], [])
    ]
    assert drafting == [True, False] * 4


def test_nobody_is_skipped_where_paces_are_alike_or_memory_is_short() -> None:
    assert not any(mode.skips for mode in modes(replica(), [TIGHT, decode("close", 0.09)], []))
    assert not any(mode.skips for mode in modes(replica(), [decode("free", None)], []))
    assert not any(mode.skips for mode in modes(replica(30), [TIGHT, LOOSE], []))


def test_all_peaks_fit_counts_answers_to_their_end() -> None:
    assert all_peaks_fit(replica(22), [TIGHT], [])
    assert not all_peaks_fit(replica(21), [TIGHT], [])
    assert not all_peaks_fit(replica(40), [TIGHT], [prompt(300, 1.0)])


def test_the_first_way_that_keeps_everything_is_taken() -> None:
    base_s = ordinary_s(replica())
    just_s = OPT.prefill_seconds(3000) + 0.001
    assert way(replica(), [], [prompt(3000, 3.0)]).mode.longest_s == base_s
    assert way(replica(), [], [prompt(3000, just_s)]).mode.longest_s == 4 * base_s
    assert way(replica(10_000, Speculation(5, 0.7)), [TIGHT], [prompt(900, 3.0)]).mode.drafting


def test_where_nothing_keeps_everything_the_last_way_is_told() -> None:
    crowd = [prompt(3000, 0.24), prompt(3000, 0.25)]
    told = way(replica(), [], crowd)
    assert not told.course.keeps
    assert told.mode.longest_s == 4 * ordinary_s(replica())


def test_the_engine_goes_by_shorter_batches_where_longer_ones_miss_a_deadline() -> None:
    """A decode 60 ms ahead of its pace. Batches that use that up leave but short ones until the deadline."""
    view = replace(replica(), model=time_model("llama-3-8b-a100"))
    ahead = advance(decode("ahead", 0.02), 1, 1, 0.0)._replace(due_s=0.08)
    hurried = prompt(2400, 0.25)
    assert not way(view, [ahead], [hurried]).course.keeps
    gone = engines_way(view, [ahead], [hurried])
    assert gone.course.keeps
    assert gone.mode.longest_s == pytest.approx(SHORTER[-1] * ordinary_s(view))


def beside_refused(view: ReplicaView, count: int) -> ReplicaView:
    refused = [prompt(100, 1.0)._replace(best_effort=True) for _ in range(count)]
    return replace(view, waiting=tuple(refused))


def test_ways_have_a_reserve_while_more_were_refused_than_have_a_promise_or_ask_for_one() -> None:
    asked = ([TIGHT], [prompt(900, 3.0)])
    assert [way(beside_refused(replica(), count), *asked).mode.reserve for count in (0, 2, 3)] == [
        0,
        0,
        RESERVE,
    ]
    assert all(mode.reserve == 0.1 for mode in modes(replica(), [TIGHT, LOOSE], [], 0.1))


def test_what_was_promised_without_the_reserve_the_engine_keeps_without_it() -> None:
    """A long answer 0.4 s ahead, and a prompt that takes nearly all of that and is due then."""
    ahead = decode("ahead", 0.1)._replace(due_s=0.4, output_tokens=5000)
    hurried = prompt(4700, OPT.seconds(BatchWork(4701, 301, chunk_work(4700, 0))) + 0.005)
    overloaded = beside_refused(replica(), 3)
    assert way(replica(), [ahead], [hurried]).course.keeps
    assert not way(overloaded, [ahead], [hurried]).course.keeps
    gone = engines_way(overloaded, [ahead], [hurried])
    assert gone.course.keeps
    assert gone.mode.reserve == 0.0


def test_where_nothing_keeps_everything_the_engine_lets_no_decode_wait() -> None:
    crowd = [prompt(3000, 0.24), prompt(3000, 0.25)]
    assert way(replica(), [TIGHT, LOOSE], crowd).mode.skips
    assert not engines_way(replica(), [TIGHT, LOOSE], crowd).mode.skips


def test_the_engine_goes_as_admission_foresees_wherever_that_keeps_everything() -> None:
    prompts = [prompt(900, 3.0)]
    assert engines_way(replica(), [TIGHT], prompts)[:2] == way(replica(), [TIGHT], prompts)[:2]
    late = [prompt(3000, 0.24), prompt(3000, 0.25)]
    assert engines_way(replica(), [LOOSE], late)[:2] == way(replica(), [LOOSE], late)[:2]
