"""Which replica is tried first, which next, and the answer when none admits the request."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.verdict import Reason, Rejected
from penstock_core.forecast.snapshot import Snapshot
from penstock_core.routing.attempts import (
    OUT_OF_SERVICE,
    Attempts,
    Backup,
    NextAction,
    NoReplicas,
    ReplicaLost,
    Try,
    Unattainable,
    after_loss,
    after_rejection,
    after_skip,
    attempts_if_all_reject,
    next_action,
    spread_retry_s,
    with_joined,
)
from penstock_core.routing.replica_load import ReplicaLoad, RoutingRequest

LOST, RETURNED = "lost", "returned"
Outcome = Reason | str


def loads(*names: str, **best_effort: int) -> list[ReplicaLoad]:
    return [ReplicaLoad(name, Snapshot(best_effort=best_effort.get(name, 0))) for name in names]


def attempts_with(outcomes: list[Outcome], attempts: Attempts, there: list[ReplicaLoad]) -> list[NextAction]:
    """Return every action for these outcomes of attempts; admitted after the last outcome."""
    moves: list[NextAction] = []
    for outcome in outcomes:
        move = next_action(attempts, there)
        moves.append(move)
        if not isinstance(move, Try):
            return moves
        if isinstance(outcome, Reason):
            attempts = after_rejection(attempts, move, Rejected(outcome, 2.0))
        else:
            attempts = after_loss(attempts, move) if outcome == LOST else after_skip(attempts, move)
    return [*moves, next_action(attempts, there)]


BUSY, FULL, NEVER = Reason.PREFILL_BUDGET, Reason.QUEUE_FULL, Reason.NEVER
DOWN, DRAINING = Reason.ENGINE_DOWN, Reason.DRAINING
A1, B1, B2, C2, C3 = Try("a", 1), Try("b", 1), Try("b", 2), Try("c", 2), Try("c", 3)
BACKUP_B = Try("b", 1, backup=True)
LATER, POINTLESS, NO_REPLICAS = Unattainable(3, 2), Unattainable(3, None), NoReplicas()
REJECT, BEST_EFFORT = Backup.REJECT, Backup.BEST_EFFORT


@pytest.mark.parametrize(
    ("backup", "max_hops", "outcomes", "moves"),
    [
        (REJECT, 3, [], [A1]),
        (REJECT, 3, [BUSY], [A1, B2]),
        (REJECT, 3, [BUSY, BUSY, BUSY], [A1, B2, C3, LATER]),
        (REJECT, 2, [BUSY, BUSY], [A1, B2, Unattainable(2, 2)]),
        (REJECT, 3, [NEVER, NEVER, NEVER], [A1, B2, C3, POINTLESS]),
        (REJECT, 3, [NEVER, FULL, NEVER], [A1, B2, C3, LATER]),
        (REJECT, 3, [LOST], [A1, B1]),
        (REJECT, 1, [RETURNED, LOST], [A1, B1, Try("c", 1)]),
        (REJECT, 3, [LOST, LOST], [A1, B1, ReplicaLost(2, "b")]),
        (REJECT, 3, [LOST, BUSY, LOST], [A1, B1, C2, ReplicaLost(2, "c")]),
        (REJECT, 3, [RETURNED, RETURNED, LOST], [A1, B1, Try("c", 1), NO_REPLICAS]),
        (REJECT, 3, [DOWN, DRAINING, LOST], [A1, B1, Try("c", 1), NO_REPLICAS]),
        (REJECT, 3, [LOST, BUSY, BUSY], [A1, B1, C2, Unattainable(2, 2)]),
        (BEST_EFFORT, 1, [BUSY], [A1, Try("b", 1, backup=True)]),
        (BEST_EFFORT, 1, [BUSY, BUSY], [A1, Try("b", 1, backup=True), Unattainable(1, 2)]),
        (BEST_EFFORT, 1, [BUSY, LOST], [A1, Try("b", 1, backup=True), Try("a", 1, backup=True)]),
        (BEST_EFFORT, 1, [BUSY, DOWN], [A1, Try("b", 1, backup=True), Try("a", 1, backup=True)]),
        (BEST_EFFORT, 1, [NEVER, NEVER], [A1, Try("b", 1, backup=True), Unattainable(1, None)]),
        (BEST_EFFORT, 1, [BUSY, LOST, LOST], [A1, BACKUP_B, Try("a", 1, backup=True), ReplicaLost(2, "a")]),
        (BEST_EFFORT, 3, [DOWN, DOWN, DOWN], [A1, B1, Try("c", 1), NO_REPLICAS]),
    ],
)
def test_replicas_are_tried_in_order_and_then_the_backup(
    backup: Backup, max_hops: int, outcomes: list[Outcome], moves: list[NextAction]
) -> None:
    there = loads("a", "b", "c", a=1, b=0, c=2)
    assert attempts_with(outcomes, Attempts(("a", "b", "c"), max_hops, backup), there) == moves


def test_all_rejections_give_the_order_and_then_two_backups() -> None:
    there = loads("a", "b", "c", a=2, b=1, c=3)
    assert attempts_if_all_reject(Attempts(("c", "a", "b"), 2, Backup.BEST_EFFORT), there) == (
        Try("c", 1),
        Try("a", 2),
        Try("b", 2, backup=True),
        Try("a", 2, backup=True),
    )
    assert attempts_if_all_reject(Attempts(("c", "a", "b"), 2, Backup.REJECT), there) == (
        Try("c", 1),
        Try("a", 2),
    )
    assert attempts_if_all_reject(Attempts(("c",), 2, Backup.BEST_EFFORT), there[2:]) == (
        Try("c", 1),
        Try("c", 1, backup=True),
    )
    assert attempts_if_all_reject(Attempts((), 2, Backup.BEST_EFFORT), []) == ()


def backup_of(request: RoutingRequest, there: list[ReplicaLoad]) -> str:
    attempts = Attempts(("a",), 1, BEST_EFFORT, (Rejected(BUSY, None),), request=request)
    action = next_action(attempts, there)
    assert isinstance(action, Try) and action.backup
    return action.replica


@pytest.mark.parametrize(
    ("best_effort", "chosen"),
    [({"a": 0, "b": 0}, "b"), ({"a": 0, "b": 8}, "b"), ({"a": 0, "b": 10}, "a"), ({"a": 1, "b": 10}, "b")],
)
def test_the_backup_has_the_smallest_product_of_prompt_and_queue(
    best_effort: dict[str, int], chosen: str
) -> None:
    asked = RoutingRequest("chat", 4000, 0, cached_tokens={"b": 900})  # 1000 tokens; 100 to compute at b
    assert backup_of(asked, loads("a", "b", **best_effort)) == chosen


@given(st.integers(1, 8), st.integers(0, 1000), st.sampled_from([{}, {"r0": 0}]))
def test_a_burst_of_best_effort_is_spread_over_equal_replicas(
    replicas: int, number: int, cached_tokens: dict[str, int]
) -> None:
    names = [f"r{replica}" for replica in range(replicas)]
    burst = [
        RoutingRequest("chat", 4000, number + each, cached_tokens=cached_tokens) for each in range(replicas)
    ]
    assert sorted(backup_of(request, loads(*names)) for request in burst) == names


@given(st.integers(0, 1000), st.permutations([0, 1, 2]))
def test_the_fewest_best_effort_requests_come_before_turns(number: int, queued: list[int]) -> None:
    there = loads("a", "b", "c", **dict(zip("abc", queued, strict=True)))
    assert backup_of(RoutingRequest("chat", 4000, number), there) == "abc"[queued.index(0)]


@pytest.mark.parametrize(
    ("request_", "chosen"),
    [
        (RoutingRequest("chat", 4000, 4), "b"),
        (RoutingRequest("chat", 4000, 4, cached_tokens={"a": 0}), "b"),
        (RoutingRequest("chat", 4000, 5, affinity=b"session"), "c"),
    ],
)
def test_equal_backups_are_rotated(request_: RoutingRequest, chosen: str) -> None:
    assert backup_of(request_, loads("a", "b", "c", a=1, b=1, c=1)) == chosen


def test_an_empty_order_finds_no_replicas() -> None:
    assert next_action(Attempts((), 3, BEST_EFFORT), []) == NO_REPLICAS


def test_a_replica_removed_meanwhile_is_skipped() -> None:
    assert next_action(Attempts(("a", "b"), 3, REJECT), loads("b")) == Try("b", 1)


@pytest.mark.parametrize(
    ("earliest_s", "retry_after_s"),
    [
        ([0.2, 5.0], 1),
        ([2.1, 9.0], 3),
        ([None, 4.0], 4),
        ([None, None], 1),
        ([float("inf"), 7.0], 7),
        ([float("nan")], 1),
        ([1e9], 3600),
        ([0.0], 1),
    ],
)
def test_retry_after_is_the_earliest_whole_second(earliest_s: list[float | None], retry_after_s: int) -> None:
    rejections = tuple(Rejected(BUSY, s) for s in earliest_s)
    answer = next_action(Attempts((), 3, REJECT, rejections), [])
    assert answer == Unattainable(len(earliest_s), retry_after_s)


def test_a_request_that_the_retry_budget_does_not_cover_is_not_sent_again() -> None:
    attempts = after_loss(Attempts(("a", "b"), 3, REJECT), A1, affordable=False)
    assert next_action(attempts, loads("a", "b")) == ReplicaLost(1, "a")


def test_a_replica_that_came_into_service_after_the_order_was_made_is_tried_last() -> None:
    attempts = with_joined(Attempts(("a", "b"), 3, REJECT), loads("a", "b"), loads("a", "b", "c"))
    assert attempts.left == ("a", "b", "c")


def test_a_replica_known_before_or_removed_is_not_tried_again() -> None:
    attempts = after_loss(Attempts(("a", "b"), 3, REJECT), A1)
    assert with_joined(attempts, loads("b"), loads("a", "b")) is attempts
    attempts = after_rejection(Attempts(("a",), 3, REJECT), A1, Rejected(BUSY))
    assert with_joined(attempts, loads("a"), loads("a")) is attempts


@given(st.integers(1, 3600), st.floats(0, 1, exclude_max=True))
def test_retries_are_spread_over_half_their_wait_and_a_second(retry_s: int, draw: float) -> None:
    assert retry_s <= spread_retry_s(retry_s, draw) <= min(1.5 * retry_s + 1, 3600)
    assert spread_retry_s(retry_s, 0.0) == retry_s


def test_clients_rejected_together_retry_at_different_times() -> None:
    assert {spread_retry_s(1, draw / 10) for draw in range(10)} == {1, 2}
    assert {spread_retry_s(4, draw / 10) for draw in range(10)} == {4, 5, 6}
    assert (spread_retry_s(100, 0.9999), spread_retry_s(3000, 0.9999)) == (150, 3600)


OUTCOMES = st.sampled_from([LOST, RETURNED, *Reason])
NAMES = ["a", "b", "c", "d"]


@st.composite
def attempt_states(
    draw: st.DrawFn,
) -> tuple[Attempts, Callable[[], list[ReplicaLoad]], Callable[[], Outcome]]:
    order = draw(st.permutations(NAMES[: draw(st.integers(0, 4))]))
    attempts = Attempts(tuple(order), draw(st.integers(1, 5)), draw(st.sampled_from(Backup)))

    def there() -> list[ReplicaLoad]:
        subset = draw(st.sets(st.sampled_from(order))) if order else set()
        return [ReplicaLoad(name, Snapshot(best_effort=draw(st.integers(0, 3)))) for name in sorted(subset)]

    return attempts, there, lambda: draw(OUTCOMES)


@given(attempt_states())
def test_attempts_end_and_repeat_no_replica(
    story: tuple[Attempts, Callable[[], list[ReplicaLoad]], Callable[[], Outcome]],
) -> None:
    attempts, there, outcome_of = story
    tried: set[tuple[str, bool]] = set()
    answers = losses = 0
    while isinstance(move := next_action(attempts, seen := there()), Try):
        assert move.replica in {load.name for load in seen}
        assert (move.replica, move.backup) not in tried
        assert 1 <= move.hop <= attempts.max_hops
        assert not (move.backup and attempts.backup is Backup.REJECT)
        tried.add((move.replica, move.backup))
        outcome = outcome_of()
        if isinstance(outcome, Reason):
            answers += outcome not in OUT_OF_SERVICE and not move.backup
            attempts = after_rejection(attempts, move, Rejected(outcome))
        elif outcome == LOST:
            losses += 1
            attempts = after_loss(attempts, move)
        else:
            attempts = after_skip(attempts, move)
    assert len(tried) <= 2 * len(NAMES)
    assert isinstance(move, ReplicaLost) == (losses > 1)
    assert isinstance(move, Unattainable) == (answers > 0 and losses <= 1)


@given(attempt_states())
def test_all_attempts_at_once_are_those_of_one_rejection_after_the_other_and_of_one_lost_backup(
    story: tuple[Attempts, Callable[[], list[ReplicaLoad]], Callable[[], Outcome]],
) -> None:
    new, there, _ = story
    attempts, seen, tries = new, there(), []
    while isinstance(move := next_action(attempts, seen), Try):
        tries.append(move)
        lost = sum(each.backup for each in tries) == 1
        attempts = after_loss(attempts, move) if lost else after_rejection(attempts, move, Rejected(FULL))
    assert attempts_if_all_reject(new, seen) == tuple(tries)


@given(attempt_states())
def test_replicas_that_return_requests_count_as_no_rejection(
    story: tuple[Attempts, Callable[[], list[ReplicaLoad]], Callable[[], Outcome]],
) -> None:
    attempts, _, _ = story
    there = [ReplicaLoad(name) for name in attempts.left]
    for name in attempts.left:
        move = next_action(attempts, there)
        assert move == Try(name, 1)
        attempts = after_skip(attempts, move)
    assert next_action(attempts, there) == NoReplicas()
