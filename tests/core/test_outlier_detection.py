"""Replicas that do not answer are ejected for a while, and return."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.routing.outlier_detection import (
    CONSECUTIVE,
    FIRST_S,
    LONGEST_S,
    SPREAD,
    ReplicaHealth,
    answered,
    failed,
    panics,
    probe_cancelled,
    sent,
)


def ejected(now_s: float = 0.0, health: ReplicaHealth | None = None, draw: float = 0.0) -> ReplicaHealth:
    """After failures in a row."""
    health = health or ReplicaHealth()
    for _ in range(CONSECUTIVE):
        health = failed(health, now_s, draw)
    return health


def test_failures_in_a_row_eject() -> None:
    health = ReplicaHealth()
    for _ in range(CONSECUTIVE - 1):
        health = failed(health, 0.0, 0.0)
        assert health.takes(0.0)
    health = failed(health, 0.0, 0.0)
    assert not health.takes(0.0)
    assert not health.takes(FIRST_S - 0.001)
    assert health.takes(FIRST_S)


def test_an_answer_between_failures_resets_the_count() -> None:
    health = ReplicaHealth()
    for _ in range(10):
        for _ in range(CONSECUTIVE - 1):
            health = failed(health, 0.0, 0.0)
        health = answered(health, 0.0)
    assert health == ReplicaHealth()


def test_a_healthy_replicas_answers_leave_the_state_unchanged() -> None:
    health = ReplicaHealth()
    assert answered(health, 1.0) is sent(health, 1.0) is probe_cancelled(health) is health


def test_a_half_open_replica_gets_one_request() -> None:
    health = sent(ejected(), FIRST_S)
    assert not health.takes(FIRST_S)
    assert sent(health, FIRST_S) is health


def test_an_answer_to_the_probe_ends_the_ejection() -> None:
    health = answered(sent(ejected(), FIRST_S), FIRST_S + 1)
    assert health.takes(FIRST_S + 1)
    assert health.until_s is None


def test_an_unanswered_probe_doubles_the_ejection_up_to_a_bound() -> None:
    health, now_s, times_s = ejected(), 0.0, []
    for _ in range(30):
        assert health.until_s is not None
        times_s.append(health.until_s - now_s)
        now_s = health.until_s
        health = failed(sent(health, now_s), now_s, 0.0)
    assert times_s[:4] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S, 8 * FIRST_S]
    assert times_s[-1] == pytest.approx(LONGEST_S)


def test_a_probe_whose_client_left_is_followed_by_another() -> None:
    assert probe_cancelled(sent(ejected(), FIRST_S)).takes(FIRST_S)


def test_requests_sent_before_the_ejection_do_not_lengthen_it() -> None:
    health = ejected()
    assert failed(health, 1.0, 0.0) is health
    assert sent(health, 1.0) is health


def test_a_late_answer_ends_an_ejection() -> None:
    assert answered(ejected(), 1.0).takes(1.0)


@pytest.mark.parametrize(("quiet_s", "times"), [(LONGEST_S - 1, 2), (LONGEST_S, 1)])
def test_former_ejections_are_forgotten_after_a_while_in_service(quiet_s: float, times: int) -> None:
    back = answered(ejected(), 10.0)
    health = ejected(10.0 + quiet_s, back)
    assert health.until_s == 10.0 + quiet_s + times * FIRST_S


def test_ejections_of_several_routers_end_at_different_times() -> None:
    ends_s = [ejected(draw=draw).until_s for draw in (0.0, 0.5, 0.999)]
    assert ends_s == [FIRST_S * (1 + SPREAD * draw) for draw in (0.0, 0.5, 0.999)]


EVENTS = st.lists(
    st.tuples(st.sampled_from(["sent", "answered", "failed", "taken back"]), st.floats(0, 30)), max_size=60
)


@given(EVENTS, st.floats(0, 1, exclude_max=True))
def test_every_ejection_ends_and_at_most_one_request_probes(
    events: list[tuple[str, float]], draw: float
) -> None:
    health, now_s = ReplicaHealth(), 0.0
    for event, after_s in events:
        now_s += after_s
        took, before = health.takes(now_s), health
        if event == "sent":
            health = sent(health, now_s)
            assert before.until_s is None or not took or not health.takes(now_s)
        elif event == "answered":
            health = answered(health, now_s)
            assert health.takes(now_s)
        elif event == "failed":
            health = failed(health, now_s, draw)
        else:
            health = probe_cancelled(health)
        assert health.failures < CONSECUTIVE
        if health.until_s is not None:
            assert health.until_s <= now_s + LONGEST_S * (1 + SPREAD)
            assert health.probing or health.takes(health.until_s)


@given(st.integers(0, 50), st.integers(0, 50))
def test_at_most_half_of_the_replicas_are_ejected_and_never_all(taking: int, more: int) -> None:
    connected = taking + more
    used = connected if panics(taking, connected) else taking
    assert 2 * used >= connected
    assert used > 0 or connected == 0
