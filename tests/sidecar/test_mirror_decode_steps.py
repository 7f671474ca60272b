"""Steps that only decode are recorded and applied together: views are the same as if each had been."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.replica_view import KvCache, Limits
from penstock_core.domain.request import Request, new_job
from penstock_core.domain.slo import Judge, Targets
from penstock_core.timing.time_model import Term, TimeModel
from penstock_proto.telemetry_pb2 import StepReport
from penstock_sidecar.mirror.decode_steps import MOST_STEPS, DecodeRows
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror

MODEL = TimeModel("test", (Term(0.0001, 0.01),))
KEYS = ("a", "b", "c")
JUDGES = (Judge.MEAN, Judge.WINDOW, Judge.MAX)


def mirror() -> ReplicaMirror:
    """One with three requests, each judged in another way."""
    made = ReplicaMirror(KvCache(1000, 1000, 16), Limits(), lambda job: 10_000)
    for key, judge in zip(KEYS, JUDGES, strict=True):
        targets = Targets(1.0, 0.1, 30.0, judge)
        job = new_job(Request(key, "chat", 0.0, 20, 500, targets), 50, best_effort=key == "c")
        made.accept(job, 0.0, timed=key != "b")
    return made


def report(rows: dict[str, tuple[int, int]], **more: Any) -> StepReport:
    """A report of running requests: tokens computed and generated of each."""
    return StepReport(
        kv_blocks_total=1000,
        kv_blocks_free=900,
        block_tokens=16,
        running=len(rows),
        request_ids=list(rows),
        computed_tokens=[computed for computed, _ in rows.values()],
        generated_tokens=[generated for _, generated in rows.values()],
        best_effort=[key == "c" for key in rows],
        **more,
    )


def planned_view(at: ReplicaMirror, now_s: float) -> object:
    """All that can be asked of a mirror."""
    signs = [at.signs(key, shows_output=False) for key in KEYS]
    times = [at.token_times_s(key, 5, now_s) for key in KEYS]
    return at.view(now_s, MODEL), at.snapshot(now_s, MODEL), signs, times


step = st.sampled_from(["decode", "decode", "decode", "decode", "chunk", "join", "leave", "twice", "forget"])


@given(st.lists(st.tuples(step, st.sampled_from(KEYS), st.booleans()), max_size=40))
def test_the_view_is_the_same_whether_steps_were_applied_one_by_one_or_together(steps: Any) -> None:
    eager, lazy = mirror(), mirror()
    rows: dict[str, tuple[int, int]] = {"a": (20, 1)}
    left = set(KEYS)
    for number, (what, key, looks) in enumerate(steps):
        now_s = 0.05 * number
        if what == "join" and key in left:
            rows.setdefault(key, (20, 1))
        elif what == "leave":
            rows.pop(key, None)
        elif what == "forget":
            eager.forget(key)
            lazy.forget(key)
        more: dict[str, Any] = {"next_duration_s": 0.05}
        by = 2 if what == "twice" else 1
        if what == "chunk" and rows:
            more |= {"prefilling": [0], "chunk_tokens": [4]}
        else:
            rows = {each: (computed + by, generated + by) for each, (computed, generated) in rows.items()}
        for each in (eager, lazy):
            each.apply(report(rows, **more), now_s)
        seen = planned_view(eager, now_s)
        if looks:
            assert planned_view(lazy, now_s) == seen
    end_s = 0.05 * max(len(steps) - 1, 0)  # a snapshot is as of the last change
    assert planned_view(lazy, end_s) == planned_view(eager, end_s)


def test_many_unread_steps_are_finally_applied() -> None:
    unwatched = mirror()
    for number in range(3 * MOST_STEPS):
        unwatched.apply(report({"a": (20 + number, 1 + number)}, next_duration_s=0.05), 0.05 * number)
        assert len(unwatched._decode_ends_s) <= MOST_STEPS
    (job,) = unwatched.view(9.6, MODEL).running
    assert job.generated_tokens == 3 * MOST_STEPS


def test_tokens_read_between_steps_are_those_reported_so_far() -> None:
    watched = mirror()
    for number in range(5):
        watched.apply(report({"a": (20 + number, 1 + number)}, next_duration_s=0.05), float(number))
    assert watched.token_times_s("a", 5, 9.0) == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize(
    "more",
    [{"waiting": 1}, {"prefilling": [0], "chunk_tokens": [1]}, {"thinking_tokens": [3]}],
    ids=["a request waits", "a prompt is computed", "thinking is over"],
)
def test_a_step_with_other_changes_is_not_a_decode_step(more: dict[str, Any]) -> None:
    assert DecodeRows.of(report({"a": (20, 1)})) is not None
    assert DecodeRows.of(report({"a": (20, 1)}, **more)) is None


def test_an_empty_report_and_one_of_a_prefill_are_not_decode_steps() -> None:
    assert DecodeRows.of(report({})) is None
    assert DecodeRows.of(report({"a": (20, 1), "b": (10, 0)})) is None
