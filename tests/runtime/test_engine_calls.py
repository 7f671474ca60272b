"""Messages between an engine and its sidecar: any split of their bytes gives the same messages."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_proto.engine_calls import (
    DECIDED,
    LONGEST_BYTES,
    BrokenFrame,
    Call,
    FrameReader,
    FromEngine,
    FromSidecar,
    Proceed,
    Progress,
    Reply,
    Report,
    decided_body,
    framed,
)
from penstock_runtime import gateway_headers

ids = st.integers(0, 2**63 - 1)
headers = st.lists(st.tuples(st.binary(max_size=20), st.binary(max_size=20)), max_size=4)
counts = st.none() | st.integers(0, 2**32)
times = st.lists(st.floats(0, 1e9), max_size=5)
calls = st.builds(
    Call,
    id=ids,
    method=st.sampled_from(["GET", "POST"]),
    path=st.text(max_size=20),
    headers=headers,
    body=st.binary(max_size=300),
    read_s=st.floats(0, 1e9),
)
reports = st.builds(
    Report,
    id=ids,
    progress=st.sampled_from(Progress),
    tokens=st.integers(0, 9),
    token_times_s=times,
    cached_tokens=counts,
    body=st.binary(max_size=50),
)


@given(st.lists(calls | reports, max_size=6), st.lists(st.integers(1, 400), max_size=20))
def test_any_split_of_the_bytes_gives_the_same_messages(
    messages: list[FromEngine], lengths: list[int]
) -> None:
    data, reader, read = b"".join(map(framed, messages)), FrameReader[FromEngine](FromEngine), []
    for length in lengths:
        read += reader.feed(data[:length])
        data = data[length:]
    assert read + reader.feed(data) == messages


@given(st.binary(max_size=200))
def test_bytes_are_messages_or_break_the_connection(data: bytes) -> None:
    reader = FrameReader[FromSidecar](FromSidecar)
    with suppress(BrokenFrame):
        assert all(isinstance(message, Proceed | Reply) for message in reader.feed(data))


@pytest.mark.parametrize(
    "data",
    [
        (LONGEST_BYTES + 1).to_bytes(4, "big"),
        b"\x00\x00\x00\x01\xc1",
        framed(Call(1, "GET", "/", [], b"", 0.0)),
    ],
    ids=["too long", "not msgpack", "a message of the engine"],
)
def test_what_no_sidecar_sends_is_refused(data: bytes) -> None:
    with pytest.raises(BrokenFrame):
        FrameReader[FromSidecar](FromSidecar).feed(data)


def test_fields_of_a_newer_peer_are_ignored_and_missing_ones_have_defaults() -> None:
    newer = {"type": "report", "id": 7, "progress": "begun", "unknown": 1}
    encoded = msgspec.msgpack.encode(newer)
    (report,) = FrameReader[FromEngine](FromEngine).feed(len(encoded).to_bytes(4, "big") + encoded)
    assert report == Report(7, Progress.BEGUN)


def test_a_decided_body_is_the_client_s_with_another_end() -> None:
    proceed = Proceed(1, b',"vllm_xargs":{"a":1}}', "r", [])
    assert decided_body(b'{"prompt":"p"} \n', proceed) == b'{"prompt":"p","vllm_xargs":{"a":1}}'


def test_sidecars_and_gateways_use_the_same_header() -> None:
    assert gateway_headers.DECIDED == DECIDED
