"""Whole events of a stream, for any split of its bytes."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_proto.sse import EVENT_BYTES
from penstock_runtime.engine.whole_events import WholeEvents

EVENTS = [
    b'data: {"text":"a\\n\\n"}\n\n',
    b"data: b\r\n\r\n",
    b": c\n\r\n",
    b"data: d\r\n\n",
    b"data: [DONE]\n\n",
]
STREAM = b"".join(EVENTS)
ENDS = set(accumulate(map(len, EVENTS)))


def test_a_stream_is_split_into_its_events() -> None:
    whole = WholeEvents()
    ends = {at for at in range(1, len(STREAM) + 1) if whole.feed(STREAM[at - 1 : at])}
    assert ends == ENDS


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_events_are_forwarded_as_soon_as_they_are_whole(cuts: list[int]) -> None:
    whole, passed, fed = WholeEvents(), b"", 0
    for cut in sorted({*cuts, len(STREAM)}):
        passed += whole.feed(STREAM[fed:cut])
        fed = cut
        assert passed == STREAM[: max((end for end in ENDS if end <= cut), default=0)]


@pytest.mark.parametrize("rest", [b"", b"x" * 10])
def test_an_event_over_the_bound_is_forwarded_in_parts(rest: bytes) -> None:
    whole = WholeEvents()
    assert whole.feed(b"data: a\n\n" + rest) == b"data: a\n\n"
    most = b"x" * (EVENT_BYTES - len(rest))
    assert whole.feed(most) == b""
    assert whole.feed(b"x") == rest + most + b"x"
    assert whole.feed(b"rest\n\n") == b"rest\n\n"
