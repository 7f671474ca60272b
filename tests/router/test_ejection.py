"""One replica that does not answer is left alone for a while, and its probe is one request."""

import pytest
from penstock_core.routing.outlier_detection import CONSECUTIVE, FIRST_S, SPREAD
from penstock_routing.replicas import ejection
from penstock_routing.replicas.ejection import Ejection
from structlog.testing import capture_logs


class Clock:
    """A clock that the test sets."""

    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(ejection, "monotonic", made)
    return made


def ejected(clock: Clock, draw: float = 0.0) -> Ejection:
    """A replica that has just been ejected."""
    made = Ejection("r0", lambda: draw)
    for _ in range(CONSECUTIVE):
        made.failed()
    return made


def test_failures_in_a_row_eject_and_fewer_do_not(clock: Clock) -> None:
    made = Ejection("r0", lambda: 0.0)
    for _ in range(CONSECUTIVE - 1):
        made.failed()
    assert (made.ejected, made.total, made.takes(clock.now_s)) == (False, 0, True)
    made.answered(clock.now_s)
    for _ in range(CONSECUTIVE - 1):
        made.failed()
    assert not made.ejected
    made.failed()
    assert (made.ejected, made.total, made.takes(clock.now_s)) == (True, 1, False)


@pytest.mark.parametrize("draw", [0.0, 0.5])
def test_an_ejection_lasts_as_long_as_its_draw_says(clock: Clock, draw: float) -> None:
    made, lasts_s = ejected(clock, draw), FIRST_S * (1 + SPREAD * draw)
    assert not made.takes(clock.now_s + lasts_s - 0.01)
    assert made.takes(clock.now_s + lasts_s)


def test_a_failure_of_a_request_sent_before_an_ejection_does_not_eject_again(clock: Clock) -> None:
    made = ejected(clock)
    with capture_logs() as output:
        made.failed()
    assert (made.total, output) == (1, [])


def test_a_probe_that_fails_ejects_for_twice_as_long(clock: Clock) -> None:
    made = ejected(clock)
    clock.now_s += FIRST_S
    made.sent(1)
    assert not made.takes(clock.now_s)
    with capture_logs() as output:
        made.failed()
    assert made.total == 2
    assert output == [
        {"event": "replica ejected", "log_level": "warning", "replica": "r0", "for_s": 2 * FIRST_S}
    ]
    made.probe_cancelled(1)  # it is the probe no more
    assert not made.takes(clock.now_s + 2 * FIRST_S - 0.01)


def test_a_probe_that_is_answered_ends_the_ejection(clock: Clock) -> None:
    made = ejected(clock)
    clock.now_s += FIRST_S
    made.sent(1)
    with capture_logs() as output:
        made.answered(clock.now_s)
        made.answered(clock.now_s)
    assert not made.ejected
    assert made.takes(clock.now_s)
    assert [line["event"] for line in output] == ["replica answers again"]


def test_only_a_cancelled_probe_allows_another(clock: Clock) -> None:
    made = ejected(clock)
    made.sent(1)  # still ejected: it is not a probe
    clock.now_s += FIRST_S
    made.sent(2)
    made.sent(3)
    for other in (1, 3):
        made.probe_cancelled(other)
        assert not made.takes(clock.now_s)
    made.probe_cancelled(2)
    assert made.takes(clock.now_s)


def test_an_answer_of_a_replica_in_service_is_not_logged(clock: Clock) -> None:
    made = Ejection("r0", lambda: 0.0)
    made.failed()
    with capture_logs() as output:
        made.answered(clock.now_s)
    assert output == []
