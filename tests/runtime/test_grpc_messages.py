"""Messages and statuses of gRPC calls, as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_runtime.grpc.messages import MESSAGE_BYTES, MessageReader, with_prefix
from penstock_runtime.grpc.status import MOST_DETAILS, RpcError, Status, error_of, trailers


@given(st.lists(st.binary(max_size=40), max_size=12), st.data())
def test_any_split_of_the_bytes_gives_the_same_messages(messages: list[bytes], data: st.DataObject) -> None:
    rest, reader, read = b"".join(map(with_prefix, messages)), MessageReader(), list[bytes]()
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        read += reader.feed(rest[:size])
        rest = rest[size:]
    assert read == messages
    assert not reader.incomplete_bytes


def test_a_part_of_a_message_is_incomplete() -> None:
    for size in (1, 4, 5, 7):
        reader = MessageReader()
        assert reader.feed(with_prefix(b"four")[:size]) == []
        assert reader.incomplete_bytes == size


def test_a_message_over_the_bound_is_refused_at_its_prefix() -> None:
    reader = MessageReader()
    with pytest.raises(RpcError, match="resource_exhausted"):
        reader.feed(b"\0" + (MESSAGE_BYTES + 1).to_bytes(4, "big"))
    assert MessageReader().feed(b"\0" + MESSAGE_BYTES.to_bytes(4, "big")) == []
    with pytest.raises(RpcError, match="resource_exhausted"):
        with_prefix(bytes(MESSAGE_BYTES + 1))


def test_a_compressed_message_is_refused() -> None:
    with pytest.raises(RpcError, match="unimplemented"):
        MessageReader().feed(b"\1\0\0\0\1x")


@given(st.sampled_from(list(Status)), st.text(st.characters(codec="utf-8"), max_size=MOST_DETAILS))
def test_a_status_survives_the_wire(status: Status, details: str) -> None:
    fields = trailers(status, details)
    assert all(0x20 <= byte <= 0x7E for _, value in fields for byte in value)
    error = error_of(dict(fields))
    if status is Status.OK:
        assert error is None
    else:
        assert error is not None
        assert (error.status, error.details) == (status, details)


def test_long_details_are_cut() -> None:
    error = error_of(dict(trailers(Status.INTERNAL, "ü" * 5000)))
    assert error is not None and error.details == "ü" * MOST_DETAILS


@pytest.mark.parametrize(
    ("fields", "details"),
    [
        ({}, "an answer without a gRPC status (HTTP status none)"),
        ({b":status": b"502"}, "an answer without a gRPC status (HTTP status 502)"),
        ({b"grpc-status": b"99", b"grpc-message": b"new%20code"}, "new code"),
        ({b"grpc-status": b"five", b"grpc-message": b"%zz%ff"}, "%zz\ufffd"),
    ],
)
def test_an_answer_with_an_unknown_status_is_an_error(fields: dict[bytes, bytes], details: str) -> None:
    error = error_of(fields)
    assert error is not None
    assert (error.status, error.details) == (Status.UNKNOWN, details)
