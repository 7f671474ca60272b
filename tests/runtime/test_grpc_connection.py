"""Both ends of a gRPC connection, without sockets: order, windows, ends, pings and bounds."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from google.protobuf.wrappers_pb2 import BytesValue, Int32Value
from grpc_by_hand import METHOD, Cable, Pair
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, ResponseReceived, StreamReset, TrailersReceived
from hypothesis import given
from hypothesis import strategies as st
from loop_time import freeze, skip, thaw, turns
from penstock_runtime.grpc.bounds import GrpcBounds
from penstock_runtime.grpc.call import GrpcCall
from penstock_runtime.grpc.client import headers_of
from penstock_runtime.grpc.connection import GrpcConnection
from penstock_runtime.grpc.server import Handler, unary
from penstock_runtime.grpc.status import RpcError, Status

from examples import examples


@dataclass
class Served:
    """What a server has received, and how its calls ended."""

    received: list[bytes] = field(default_factory=list)
    calls: list[GrpcCall] = field(default_factory=list)
    cancelled: int = 0

    async def handle(self, call: GrpcCall) -> None:
        """Serve a call."""
        self.calls.append(call)
        try:
            await call.receive(BytesValue, lambda message: self.received.append(message.value))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise

    async def take_one_by_one(self, call: GrpcCall) -> None:
        """Serve a call, and let others run between two messages."""
        while (message := await call.next(BytesValue)) is not None:
            self.received.append(message.value)
            await asyncio.sleep(0)


def value(data: bytes) -> BytesValue:
    return BytesValue(value=data)


async def write_all(call: GrpcCall, messages: list[bytes]) -> None:
    for message in messages:
        await call.write(value(message))


def received_by(call: GrpcCall) -> tuple[list[bytes], "asyncio.Task[None]"]:
    """Receive a call's messages in the background."""
    messages: list[bytes] = []
    task = asyncio.ensure_future(call.receive(BytesValue, lambda message: messages.append(message.value)))
    return messages, task


MESSAGES = st.lists(st.binary(max_size=300), max_size=8)
SIZES = st.tuples(st.integers(16, 400), st.integers(30, 500))
"""Bytes of a call's window, and those that are carried at once."""


@examples(60)
@given(MESSAGES, MESSAGES, SIZES, st.lists(st.booleans(), max_size=8), st.booleans())
def test_all_messages_arrive_in_order_whatever_the_windows(
    up: list[bytes], down: list[bytes], sizes: tuple[int, int], pauses: list[bool], one_by_one: bool
) -> None:
    asyncio.run(_exchange(up, down, sizes, pauses, one_by_one=one_by_one))


async def _exchange(
    up: list[bytes], down: list[bytes], sizes: tuple[int, int], pauses: list[bool], *, one_by_one: bool
) -> None:
    window_bytes, chunk = sizes
    served = Served()

    async def handle(call: GrpcCall) -> None:
        writing = asyncio.create_task(write_all(call, down))
        await (served.take_one_by_one if one_by_one else served.handle)(call)
        await writing

    pair = Pair({METHOD: handle}, GrpcBounds(window_bytes=window_bytes))
    await pair.settle()
    call = pair.open()
    messages, receiving = received_by(call)
    writing = asyncio.create_task(write_all(call, up))
    for paused in pauses:
        await turns()
        for end in (pair.near, pair.far):
            (end.pause_writing if paused else end.resume_writing)()
        pair.carry(chunk)
    for end in (pair.near, pair.far):
        end.resume_writing()
    await pair.settle(chunk)
    await writing
    call.finish_sending()
    await pair.settle(chunk)
    await receiving
    assert (served.received, messages) == (up, down)
    pair.lose()


async def test_a_server_that_takes_nothing_gets_no_more_than_a_window() -> None:
    waits = asyncio.Event()
    served = Served()

    async def handle(call: GrpcCall) -> None:
        await waits.wait()
        await served.handle(call)

    pair = Pair({METHOD: handle}, GrpcBounds(window_bytes=1000))
    await pair.settle()
    call = pair.open()
    messages = [bytes(100)] * 50
    writing = asyncio.create_task(write_all(call, messages))
    await pair.settle()
    assert not writing.done()
    waits.set()
    await pair.settle()
    await writing
    assert served.received == messages
    pair.lose()


async def test_a_call_that_is_reset_raises_where_its_next_message_is_awaited() -> None:
    async def handle(call: GrpcCall) -> None:
        await call.write(value(b"1"))
        raise RpcError(Status.DATA_LOSS, "no more")

    pair = Pair({METHOD: handle})
    call = pair.open()
    first = asyncio.ensure_future(call.next(BytesValue))
    await pair.settle()
    assert await first == value(b"1")
    with pytest.raises(RpcError, match="data_loss: no more"):
        await call.next(BytesValue)
    pair.lose()


async def test_a_writer_waits_while_the_socket_is_full() -> None:
    served = Served()
    pair = Pair({METHOD: served.handle})
    call = pair.open()
    pair.near.pause_writing()
    writing = asyncio.create_task(call.write(value(b"x")))
    await pair.settle()
    assert not writing.done() and served.received == []
    pair.near.resume_writing()
    await pair.settle()
    await writing
    assert served.received == [b"x"]
    pair.lose()


async def raises(call: GrpcCall) -> None:
    raise RpcError(Status.FAILED_PRECONDITION, "50 % of ü")


async def breaks(call: GrpcCall) -> None:
    raise ValueError("secret")


async def returns(call: GrpcCall) -> None:
    return


@pytest.mark.parametrize(
    ("handler", "status", "details"),
    [(raises, Status.FAILED_PRECONDITION, "50 % of ü"), (breaks, Status.UNKNOWN, "the handler failed")],
)
async def test_a_handlers_error_ends_its_call_with_a_status(
    handler: Handler, status: Status, details: str
) -> None:
    served = Served()
    pair = Pair({METHOD: served.handle, "/other": handler})
    other, call = pair.open(), pair.open("/other")
    _, receiving = received_by(call)
    await pair.settle()
    with pytest.raises(RpcError) as failed:
        await receiving
    assert (failed.value.status, failed.value.details) == (status, details)
    with pytest.raises(RpcError) as failed:
        await call.write(value(b"late"))
    assert failed.value.status is status
    await other.write(value(b"goes on"))
    await pair.settle()
    assert served.received == [b"goes on"]
    pair.lose()


async def test_a_call_may_end_while_its_client_still_sends() -> None:
    pair = Pair({METHOD: returns})
    call = pair.open()
    _, receiving = received_by(call)
    await pair.settle()
    await receiving
    with pytest.raises(RpcError, match="the call is over"):
        await call.write(value(b"late"))
    pair.lose()


async def test_a_cancelled_call_cancels_its_handler_and_ends_its_receiver() -> None:
    served = Served()
    pair = Pair({METHOD: served.handle})
    call = pair.open()
    _, receiving = received_by(call)
    await pair.settle()
    call.cancel()
    await receiving
    await pair.settle()
    assert served.cancelled == 1
    call.cancel()
    pair.lose()


async def test_a_lost_connection_ends_its_calls_at_both_ends() -> None:
    served = Served()
    pair = Pair({METHOD: served.handle})
    call = pair.open()
    pair.near.pause_writing()
    writing = asyncio.create_task(call.write(value(b"x")))
    _, receiving = received_by(call)
    await pair.settle()
    pair.lose()
    for task in (writing, receiving):
        with pytest.raises(RpcError, match="unavailable: the connection broke"):
            await task
    await turns()
    assert served.cancelled == 1 and not pair.server.connections
    with pytest.raises(RpcError, match="unavailable"):
        pair.open()
    with pytest.raises(RpcError, match="unavailable"):
        await call.write(value(b"x"))


async def test_a_receiver_that_raises_gets_its_error_and_no_further_message() -> None:
    given_ = list[bytes]()

    async def handle(call: GrpcCall) -> None:
        await write_all(call, [b"1", b"2", b"3"])
        await call.receive(BytesValue, lambda _: None)

    def deliver(message: BytesValue) -> None:
        given_.append(message.value)
        if message.value == b"2":
            raise KeyError("a fault")

    pair = Pair({METHOD: handle})
    call = pair.open()
    receiving = asyncio.create_task(call.receive(BytesValue, deliver))
    await pair.settle()
    with pytest.raises(KeyError, match="a fault"):
        await receiving
    assert given_ == [b"1", b"2"]
    pair.lose()


async def test_a_message_that_is_too_much_to_hold_ends_its_call_only() -> None:
    counted, received, errors = list[int](), list[bytes](), list[Exception]()

    def count(incomplete_bytes: int) -> None:
        counted.append(incomplete_bytes)
        if incomplete_bytes > 1000:
            raise KeyError("too much")

    async def handle(call: GrpcCall) -> None:
        call.count_incomplete = count
        try:
            while (message := await call.next(BytesValue)) is not None:
                received.append(message.value)
        except KeyError as error:
            errors.append(error)

    pair = Pair({METHOD: handle})
    large, other = pair.open(), pair.open()
    await large.write(value(b"first"))
    await pair.settle()
    await large.write(value(bytes(50_000)))  # in frames of 16,384 bytes
    await other.write(value(b"fine"))
    pair.carry(16_500)
    await turns()
    assert counted == [16_384] and len(errors) == 1
    await pair.settle()
    assert received == [b"first", b"fine"] and len(errors) == 1
    assert large.received and not other.received
    pair.lose()


async def refuse(call: GrpcCall) -> None:
    raise RpcError(Status.RESOURCE_EXHAUSTED, "full")


@pytest.mark.parametrize(("handle", "message_bytes"), [(refuse, 2**20), (Served().handle, 1000)])
async def test_calls_that_take_nothing_leave_the_window_to_others(
    handle: Handler, message_bytes: int
) -> None:
    pair = Pair({METHOD: handle}, GrpcBounds(message_bytes=message_bytes, connection_window_bytes=2**17))
    for _ in range(12):  # more than the connection's window together
        call = pair.open()
        writing = asyncio.create_task(call.write(value(bytes(50_000))))
        await pair.settle()
        assert not call.unsent
        await asyncio.gather(writing, return_exceptions=True)
    pair.lose()


async def test_a_message_of_another_kind_fails_its_call_only() -> None:
    served = Served()
    pair = Pair({METHOD: served.handle})
    odd, other = pair.open(), pair.open()
    _, receiving = received_by(odd)
    await odd.write(_Junk())
    await other.write(value(b"fine"))
    await pair.settle()
    with pytest.raises(RpcError, match="internal: a message that is not a BytesValue"):
        await receiving
    assert served.received == [b"fine"]
    pair.lose()


class _Junk:
    """A message that no protobuf parser accepts."""

    def SerializeToString(self) -> bytes:
        return b"\xff\xff\xff"

    @classmethod
    def FromString(cls, data: bytes) -> "_Junk":
        raise NotImplementedError


async def test_a_request_has_one_message_and_one_reply() -> None:
    async def double(request: Int32Value, peer: str) -> Int32Value:
        assert peer == "127.0.0.1"
        return Int32Value(value=2 * request.value)

    pair = Pair({METHOD: unary(Int32Value, double)})
    for count, status in ((0, Status.INTERNAL), (1, None), (2, Status.INTERNAL)):
        call = pair.open()
        for _ in range(count):
            await call.write(Int32Value(value=21))
        call.finish_sending()
        reply = asyncio.ensure_future(call.receive_one(Int32Value))
        await pair.settle()
        if status is None:
            assert (await reply).value == 42
        else:
            with pytest.raises(RpcError) as failed:
                await reply
            assert failed.value.status is status
    pair.lose()


@pytest.fixture
async def still() -> AsyncIterator[None]:
    """A loop whose clock stands still."""
    freeze()
    yield
    thaw()


async def test_a_silent_peer_is_pinged_and_lost_after_15_s(still: None) -> None:
    pair = Pair({METHOD: Served().handle})
    await pair.settle()
    call = pair.open()
    _, receiving = received_by(call)
    await pair.settle()
    await skip(9.9)
    assert not pair.near_cable.waiting and not pair.far_cable.waiting
    await skip(0.2)
    assert len(pair.near_cable.waiting) == len(pair.far_cable.waiting) == 17  # a ping
    await skip(4.8)
    assert not pair.near_cable.aborted
    await skip(0.3)
    assert pair.near_cable.aborted and pair.far_cable.aborted
    pair.lose()
    with pytest.raises(RpcError, match="the peer does not answer pings"):
        await receiving


async def test_a_connection_that_is_closed_does_not_wait_for_a_peer_that_reads_nothing(still: None) -> None:
    pair = Pair({METHOD: Served().handle})
    await pair.settle()
    pair.near.close()
    assert pair.near_cable.closing and not pair.near_cable.aborted
    await skip(10.1)
    assert pair.near_cable.aborted
    pair.lose()


async def test_a_peer_that_answers_pings_stays(still: None) -> None:
    pair = Pair({METHOD: Served().handle})
    for _ in range(30):
        await pair.settle()
        await skip(1.0)
    assert not pair.near_cable.closing and not pair.far_cable.closing
    pair.lose()


async def test_a_peer_that_pings_and_does_not_read_is_closed() -> None:
    pair = Pair({METHOD: Served().handle}, GrpcBounds(unread_bytes=1000))
    await pair.settle()
    pair.far.pause_writing()
    ping = b"\0\0\x08\x06\0\0\0\0\0" + b"floodpng"
    for _ in range(200):
        if not pair.far_cable.closing:
            pair.far.data_received(ping)
    assert pair.far_cable.aborted
    assert len(pair.far_cable.waiting) < 2000
    pair.lose()


async def test_a_peer_that_begins_a_frame_over_the_bound_is_closed_at_once() -> None:
    pair = Pair({METHOD: Served().handle})
    await pair.settle()
    pair.far.data_received((2**24 - 1).to_bytes(3, "big"))
    assert pair.far_cable.closing
    pair.lose()


async def test_connections_over_the_bound_are_closed() -> None:
    pair = Pair({METHOD: Served().handle}, GrpcBounds(connections=1))
    cable, further = Cable(), pair.server.connection()
    further.connection_made(cable)
    assert cable.aborted and not cable.waiting
    further.connection_lost(None)
    assert len(pair.server.connections) == 1
    pair.lose()
    assert not pair.server.connections


async def test_calls_over_the_bound_fail_at_the_client() -> None:
    served = Served()
    pair = Pair({METHOD: served.handle}, GrpcBounds(calls=2))
    await pair.settle()
    first, second = pair.open(), pair.open()
    with pytest.raises(RpcError, match="unavailable: no further call"):
        pair.open()
    first.cancel()
    await pair.settle()
    third = pair.open()
    await third.write(value(b"x"))
    await pair.settle()
    assert served.received == [b"x"] and second
    pair.lose()


async def test_calls_over_the_bound_before_the_client_knows_it_are_refused_one_by_one() -> None:
    served = Served()
    pair = Pair({METHOD: served.handle}, GrpcBounds(calls=2))
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    for number in range(3):
        client.send_headers(2 * number + 1, headers_of(METHOD, "test", "http"))
    cable, server = Cable(), pair.server.connection()
    server.connection_made(cable)
    server.data_received(client.data_to_send())
    await turns()
    events = client.receive_data(bytes(cable.waiting))
    ended = {event.stream_id: dict(event.headers) for event in events if isinstance(event, ResponseReceived)}
    assert {id: headers[b"grpc-status"] for id, headers in ended.items()} == {5: b"8"}
    assert len(served.calls) == 2 and not cable.closing
    server.connection_lost(None)
    pair.lose()


@examples(100)
@given(st.binary(min_size=1, max_size=200), st.booleans())
def test_junk_ends_its_own_connection_at_most(junk: bytes, after_preface: bool) -> None:
    asyncio.run(_junk(junk, after_preface))


async def _junk(junk: bytes, after_preface: bool) -> None:
    served = Served()
    pair = Pair({METHOD: served.handle})
    cable, other = Cable(), pair.server.connection()
    other.connection_made(cable)
    if after_preface:
        client = H2Connection(H2Configuration(client_side=True))
        client.initiate_connection()
        other.data_received(client.data_to_send())
    other.data_received(junk)
    if not cable.closing:
        other.data_received(junk)
    call = pair.open()
    await call.write(value(b"goes on"))
    await pair.settle()
    assert served.received == [b"goes on"]
    other.connection_lost(None)
    pair.lose()


async def test_a_reset_and_more_for_another_call_in_one_segment() -> None:
    served = Served()
    pair = Pair({METHOD: served.handle})
    one, other = pair.open(), pair.open()
    await one.write(value(b"1"))
    one.cancel()
    await other.write(value(b"2"))
    await pair.settle()
    assert served.received in ([b"2"], [b"1", b"2"])
    other.finish_sending()
    await pair.settle()
    pair.lose()


async def test_the_last_status_arrives_with_the_end_of_the_connection() -> None:
    """A server that stops may send both in one segment."""
    near, cable = GrpcConnection(), Cable()
    near.connection_made(cable)
    server = H2Connection(H2Configuration(client_side=False))
    server.initiate_connection()
    call = near.open(headers_of(METHOD, "test", "http"))
    server.receive_data(bytes(cable.waiting))
    server.send_headers(call.id, [(":status", "200"), ("content-type", "application/grpc")])
    server.send_data(call.id, b"\0\0\0\0\x03\x0a\x01x")
    server.send_headers(call.id, [("grpc-status", "9"), ("grpc-message", "enough")], end_stream=True)
    server.close_connection()
    messages, receiving = received_by(call)
    await turns()
    near.data_received(server.data_to_send())
    with pytest.raises(RpcError, match="failed_precondition: enough"):
        await receiving
    assert messages == [b"x"]
    assert cable.closing
    near.connection_lost(None)


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({":path": "/test.Service/Other"}, Status.UNIMPLEMENTED),
        ({"grpc-encoding": "gzip"}, Status.UNIMPLEMENTED),
        ({"content-type": "application/json"}, Status.INVALID_ARGUMENT),
        ({"grpc-encoding": "identity"}, None),
    ],
)
async def test_calls_that_cannot_be_served_get_a_status(
    changed: dict[str, str], status: Status | None
) -> None:
    pair = Pair({METHOD: Served().handle})
    cable, connection = Cable(), pair.server.connection()
    connection.connection_made(cable)
    client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    client.initiate_connection()
    fields = {name.decode(): text.decode() for name, text in headers_of(METHOD, "test", "http")} | changed
    client.send_headers(1, list(fields.items()))
    connection.data_received(client.data_to_send())
    await turns()
    events = client.receive_data(bytes(cable.waiting))
    statuses = [
        dict(getattr(event, "headers", [])).get("grpc-status")
        for event in events
        if hasattr(event, "headers") and not isinstance(event, StreamReset | TrailersReceived)
    ]
    assert statuses == ([] if status is None else [str(int(status))])
    assert not any(isinstance(event, ConnectionTerminated) for event in events)
    connection.connection_lost(None)
    pair.lose()


async def test_a_server_that_stops_waits_for_calls_then_ends_them() -> None:
    served = Served()
    pair = Pair({METHOD: served.handle})
    ends, stays = pair.open(), pair.open()
    _, ending = received_by(ends)
    _, staying = received_by(stays)
    await pair.settle()
    stopping = asyncio.create_task(pair.server.stop(0.05))
    await turns()
    _, refused = received_by(pair.open())
    ends.finish_sending()
    await pair.settle()
    await ending
    with pytest.raises(RpcError, match="unavailable: this server is stopping"):
        await refused
    await stopping
    pair.carry()
    with pytest.raises(RpcError, match="unavailable: this server is stopping"):
        await staying
    assert pair.far_cable.closing
    pair.lose()
