"""Every request of a replay in flight is an open file: the limit is raised as far as it may be."""

import resource

import pytest
from penstock_cli.failure import Failure
from penstock_cli.replay.run import _allow_sockets

ANY = resource.RLIM_INFINITY


def limits_after(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int) -> tuple[int, int]:
    """Return the soft and hard limits of open files for this many requests in flight."""
    limits = (soft, hard)

    def changed(which: int, to: tuple[int, int]) -> None:
        nonlocal limits
        limits = to

    monkeypatch.setattr(resource, "getrlimit", lambda which: limits)
    monkeypatch.setattr(resource, "setrlimit", changed)
    _allow_sockets(wanted)
    return limits


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "after"),
    [
        (256, 4096, 1000, 1100),
        (256, 600, 550, 600),
        (256, ANY, 500, 600),
        (600, 4096, 500, 600),
        (601, 4096, 500, 601),
        (ANY, ANY, 500, ANY),
        (256, 500, 500, 500),
        (256, 1000, 5000, 1000),
    ],
)
def test_the_limit_is_raised_to_the_needed_number_and_never_lowered(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int, after: int
) -> None:
    assert limits_after(monkeypatch, soft, hard, wanted) == (after, hard)


@pytest.mark.parametrize(("hard", "wanted"), [(499, 500), (999, 5000)])
def test_too_few_open_files_are_reported_before_the_replay(
    monkeypatch: pytest.MonkeyPatch, hard: int, wanted: int
) -> None:
    expected = rf"^at most {hard} files may be open \(ulimit -n\); --max-inflight {wanted} needs more$"
    with pytest.raises(Failure, match=expected):
        limits_after(monkeypatch, 256, hard, wanted)
