"""A frame that is too long is found at its header, however the bytes are split."""

import pytest
from h2.exceptions import FrameTooLargeError
from hypothesis import given
from hypothesis import strategies as st
from penstock_runtime.grpc.frame_lengths import HEADER_BYTES, PREFACE_BYTES, FrameLengths

from examples import examples

MOST_BYTES = 40


def frame(length: int) -> bytes:
    return length.to_bytes(3, "big") + bytes(HEADER_BYTES - 3 + length)


@examples(200)
@given(
    st.lists(st.integers(0, MOST_BYTES), max_size=6),
    st.integers(MOST_BYTES + 1, 2**24 - 1),
    st.booleans(),
    st.data(),
)
def test_only_a_frame_that_is_too_long_is_refused_and_by_its_length(
    lengths: list[int], too_long: int, client: bool, data: st.DataObject
) -> None:
    preface = bytes(PREFACE_BYTES if client else 0)
    sent = preface + b"".join(map(frame, lengths)) + too_long.to_bytes(3, "big")
    found = FrameLengths(len(preface), MOST_BYTES)
    at = 0
    while at < len(sent) - 1:
        size = data.draw(st.integers(1, len(sent) - 1 - at))
        found.check(sent[at : at + size])
        at += size
    with pytest.raises(FrameTooLargeError, match=f"^a frame of {too_long} bytes, over 40$"):
        found.check(sent[at:])
