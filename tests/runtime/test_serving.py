"""What every process does alike on its sockets: bounds, errors, clean stops."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import orjson
import pytest
from penstock_runtime.http_connection.bounds import HttpBounds
from penstock_runtime.http_request import HttpRequest
from penstock_runtime.openai_errors import ApiError
from penstock_runtime.serving import (
    YOUNG_OBJECTS,
    Server,
    StartError,
    address_of,
    is_loopback,
    listen,
    serving,
)

BOUNDS = HttpBounds(head_bytes=2048, head_s=0.2, connections=3, half_closed_s=10.0, last_call_s=10.0)


async def app(request: HttpRequest) -> None:
    path, _, seconds = request.path.partition("=")
    match path:
        case "/echo":
            await request.answer(await request.body(1000, timeout_s=0.2))
        case "/client":
            await request.answer(request.client_host.encode())
        case "/bug":
            raise ZeroDivisionError("secret")
        case "/stream":
            request.start()
            await request.send(b"data: first\n\n")
            await asyncio.sleep(float(seconds or 0))
            raise ApiError(502, "engine lost")


@asynccontextmanager
async def served(drain_s: float = 5.0) -> AsyncIterator[tuple[str, int]]:
    listener = listen("127.0.0.1", 0)
    async with serving(app, listener, drain_s, BOUNDS):
        yield listener.getsockname()


async def talk(address: tuple[str, int], request: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    async with asyncio.timeout(20):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]) if head else 0, body


def post(path: str, body: bytes, headers: str = "") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: x", "connection: close", f"content-length: {len(body)}"]
    return "\r\n".join(lines).encode() + b"\r\n" + headers.encode() + b"\r\n" + body


async def test_a_request_is_answered() -> None:
    async with served() as address:
        assert await talk(address, post("/echo", b"hello")) == (200, b"hello")


@pytest.mark.parametrize(
    ("request_bytes", "status", "words"),
    [
        (post("/echo", b"x" * 1001), 413, "1000 bytes"),
        (post("/bug", b""), 500, "internal error"),
        (b"no http at all\r\n\r\n", 400, "HTTP/1.1"),
        (post("/echo", b"", "x-long: " + "y" * 3000 + "\r\n"), 431, "2048 bytes"),
        (b"GET / HTTP/1.1\r\nx-unended: " + b"y" * 3000, 431, "2048 bytes"),
        (b"GET / HTTP/1.1\r\nhost: slow", 408, "headers"),
        (b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nab", 408, "body"),
    ],
    ids=["body", "bug", "junk", "head", "unended head", "late head", "late body"],
)
async def test_every_refusal_has_openais_format(request_bytes: bytes, status: int, words: str) -> None:
    async with served() as address:
        code, body = await talk(address, request_bytes)
    assert code == status
    error = orjson.loads(body)["error"]
    assert words in error["message"]
    assert "secret" not in error["message"]
    assert error.keys() == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("request_bytes", "code", "retry"),
    [
        (b"no http at all\r\n\r\n", None, False),
        (b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n", "method_not_allowed", False),
        (post("/echo", b"", "x-long: " + "y" * 3000 + "\r\n"), "request_too_large", False),
        (b"GET / HTTP/1.1\r\nhost: slow", None, True),
    ],
    ids=["junk", "tunnel", "head", "late head"],
)
async def test_a_refusal_by_the_connection_itself_has_the_headers_of_every_error(
    request_bytes: bytes, code: str | None, retry: bool
) -> None:
    async with served() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(request_bytes)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    lines = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:])
    assert lines[b"x-request-id"]
    assert (lines.get(b"x-should-retry") != b"false") is retry
    assert orjson.loads(body)["error"]["code"] == code


async def test_a_half_closed_client_is_answered() -> None:
    async with served() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(post("/stream=0.05", b""))
        writer.write_eof()
        assert b"engine lost" in await reader.read()
        writer.close()


async def test_an_error_in_a_stream_is_its_last_event() -> None:
    async with served() as address:
        _, body = await talk(address, post("/stream", b""))
    assert b"data: first" in body
    assert b'data: {"error":{"message":"engine lost"' in body


async def test_a_connection_over_the_bound_is_answered_503() -> None:
    async with served(drain_s=0) as address:
        held = [await asyncio.open_connection(*address) for _ in range(3)]
        for _, writer in held:  # a stream's first bytes show that the server has accepted the connection
            writer.write(post("/stream=60", b""))
        for reader, _ in held:
            await reader.readuntil(b"first")
        code, _ = await talk(address, b"")
        assert code == 503
        for _, writer in held:
            writer.close()


async def test_a_closing_server_finishes_open_streams_and_accepts_no_new_one() -> None:
    async with served() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(post("/stream=0.2", b""))
        await reader.readuntil(b"first")
    assert b"engine lost" in await reader.read()
    writer.close()
    with pytest.raises(OSError):
        await asyncio.open_connection(*address)


async def test_leaving_closes_an_idle_connection_without_a_drain() -> None:
    listener = listen("127.0.0.1", 0)
    async with asyncio.timeout(20):
        async with serving(app, listener, drain_s=3600.0, bounds=HttpBounds(last_call_s=0.01)):
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(post("/echo", b"hello").replace(b"connection: close", b"x: y"))
            await reader.readuntil(b"hello")
        assert await reader.read() == b""
    writer.close()


async def ask_once_closed(address: tuple[str, int]) -> bytes:
    """Connect, and send a request when the server no longer accepts connections."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        while True:
            (await asyncio.open_connection(*address))[1].close()
    except OSError:
        writer.write(b"POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello")
    async with asyncio.timeout(20):
        answered = await reader.read()
    writer.close()
    return answered


async def test_a_request_in_transit_when_the_server_left_is_answered() -> None:
    async with served() as address:
        asking = asyncio.create_task(ask_once_closed(address))
        await talk(address, post("/echo", b""))  # so the task has connected
    answered = await asking
    assert b"connection: close" in answered and answered.endswith(b"hello")


async def test_a_server_that_sends_connection_close_answers_and_closes() -> None:
    listener, keeps_alive = (
        listen("127.0.0.1", 0),
        post("/echo", b"hello").replace(b"connection: close", b"x: y"),
    )
    server: Server
    async with serving(app, listener, 5.0, BOUNDS) as server:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(keeps_alive)
        before = await reader.readuntil(b"hello")
        server.close_after_responses()
        writer.write(keeps_alive)
        after = await reader.read()
        writer.close()
    assert b"connection: close" not in before
    assert b"connection: close" in after and after.endswith(b"hello")


async def test_a_stream_longer_than_the_drain_ends_with_an_error_event() -> None:
    async with served(drain_s=0.1) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(post("/stream=60", b""))
        await reader.readuntil(b"first")
    assert b"the server stopped" in await reader.read()
    writer.close()


async def test_a_server_that_is_left_by_an_error_does_not_drain() -> None:
    with pytest.raises(KeyError):
        async with served(drain_s=3600) as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(post("/stream=3600", b""))
            await reader.readuntil(b"first")
            raise KeyError
    assert b"the server stopped" in await reader.read()
    writer.close()


async def test_a_server_dates_its_answers() -> None:
    listener = listen("127.0.0.1", 0)
    async with serving(app, listener, 5.0, BOUNDS):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(post("/echo", b"hello"))
        assert b"\r\ndate: " in await reader.read()
        writer.close()


async def test_an_answer_names_no_software_and_forwarded_headers_are_ignored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    request = post("/client", b"", "x-forwarded-for: 203.0.113.7\r\nx-forwarded-proto: https\r\n")
    with caplog.at_level("DEBUG"):
        async with served() as address:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(request)
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
    names = {line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]}
    assert names == {b"date", b"content-type", b"content-length", b"connection"}
    assert body == b"127.0.0.1"
    assert not [record for record in caplog.records if "/client" in record.getMessage()], "no access log"


async def test_a_server_that_cannot_start_raises_the_reason() -> None:
    listener = listen("127.0.0.1", 0)
    listener.close()
    with pytest.raises(OSError, match=r"Bad file descriptor|Invalid argument"):
        async with serving(app, listener, 5.0):
            raise AssertionError("up")


def test_an_address_can_be_bound_again_right_after_a_restart() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert listener.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)


def test_a_taken_port_is_one_clear_line() -> None:
    holder = listen("127.0.0.1", 0)
    port = holder.getsockname()[1]
    with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{port}: port taken"):
        listen("127.0.0.1", port)
    holder.close()


def test_an_unknown_host_is_one_clear_line() -> None:
    with pytest.raises(StartError, match="no such host"):
        listen("no-such-host.invalid", 0)


def test_a_port_out_of_range_is_one_clear_line() -> None:
    for port in (-1, 65536):
        with pytest.raises(StartError, match=f"cannot listen on 127.0.0.1:{port}: ports are 0 to 65535"):
            listen("127.0.0.1", port)


def test_an_address_of_no_interface_is_one_clear_line() -> None:
    """192.0.2.1 is for documentation: no machine has it."""
    said = r"^cannot listen on 192\.0\.2\.1:0: cannot assign requested address$"
    with pytest.raises(StartError, match=said):
        listen("192.0.2.1", 0)


def test_addresses_are_printed_as_typed() -> None:
    with socket.socket(socket.AF_INET) as listener:
        listener.bind(("127.0.0.1", 0))
        assert address_of(listener) == f"127.0.0.1:{listener.getsockname()[1]}"
    with socket.socket(socket.AF_INET6) as listener:
        assert address_of(listener) == "[::]:0"


@pytest.mark.parametrize(
    ("host", "alone"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("::", False),
        ("", False),
        ("example.org", False),
    ],
)
def test_only_this_machine_reaches_a_loopback_address(host: str, alone: bool) -> None:
    assert is_loopback(host) is alone


PROCESS = """
import gc, sys
import asyncio
from penstock_runtime.serving import StartError, run_process
async def main(stop):
    if sys.argv[1] == "fails":
        raise StartError("cannot")
    print("up", gc.get_freeze_count() > 0, gc.get_threshold()[0], flush=True)
    await stop.wait()
    if sys.argv[1] == "drains":
        print("drains", flush=True)
        await asyncio.get_running_loop().create_future()
sys.exit(int(run_process(main)))
"""


@pytest.mark.parametrize(("how", "code", "said"), [("stops", 0, b""), ("fails", 1, b"cannot\n")])
async def test_a_process_ends_by_signal_with_0_and_by_start_error_with_1(
    how: str, code: int, said: bytes
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROCESS, how, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    if how == "stops":
        assert process.stdout is not None
        assert await process.stdout.readline() == b"up True %d\n" % YOUNG_OBJECTS
        process.terminate()
    _, stderr = await process.communicate()
    assert (process.returncode, stderr) == (code, said)


async def test_a_second_signal_does_not_wait_for_the_drain() -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROCESS, "drains", stdout=pipe, stderr=pipe
    )
    assert process.stdout is not None
    await process.stdout.readline()
    process.terminate()
    assert await process.stdout.readline() == b"drains\n"
    process.terminate()
    _, stderr = await process.communicate()
    assert (process.returncode, stderr) == (1, b"stopped by a second signal before it had drained\n")
