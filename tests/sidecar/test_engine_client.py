"""The engine over HTTP: requests to it, and the meaning of its answers."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import orjson
import pytest
from penstock_proto import replica_pb2 as wire
from penstock_runtime.engine.connection import EngineGone
from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine import client as engine_client
from penstock_sidecar.engine.client import EngineClient, Probe, model_mismatch

MODELS = orjson.dumps({"data": [{"id": "m", "max_model_len": 4096}]})
LOAD = b"vllm:num_requests_running 3\nvllm:num_requests_waiting 4\n"


@dataclass
class Page:
    """The answer of a path. short: bytes of the body that are never sent; silent: no answer."""

    body: bytes = b"{}"
    status: int = 200
    headers: str = ""
    short: int = 0
    silent: bool = False


REDIRECT = Page(status=307, headers="location: /elsewhere\r\n")


@dataclass
class Server:
    """An engine's HTTP side with scripted pages. heads: request heads that it received."""

    pages: dict[str, Page]
    heads: list[str] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await self._answer(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        lengths = [line.partition(":")[2] for line in head.lower().split("\r\n") if "content-length" in line]
        self.bodies.append(await reader.readexactly(int(lengths[0]) if lengths else 0))
        page = self.pages.get(head.split(" ")[1], Page(status=404))
        if page.silent:
            await reader.read(1)
            return False
        size = len(page.body) + page.short
        writer.write(f"HTTP/1.1 {page.status} X\r\ncontent-length: {size}\r\n{page.headers}\r\n".encode())
        writer.write(page.body)
        await writer.drain()
        return not page.short


@asynccontextmanager
async def talking(
    pages: Mapping[str, Page] = {},
    *,
    served: str = "",
    api_key: str = "",
    bounds: Bounds | None = None,
) -> AsyncIterator[tuple[EngineClient, Server]]:
    """A client of a server that is well, but for these pages: by name, without their path."""
    paths = {"health": "/health", "models": "/v1/models", "metrics": "/metrics", "answer": "/v1/completions"}
    paths["detokenize"] = "/detokenize"
    server = Server({"/health": Page(), "/v1/models": Page(MODELS), "/elsewhere": Page(b"elsewhere")})
    server.pages |= {paths[name]: page for name, page in pages.items()}
    listening = await asyncio.start_server(server, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    url = f"http://127.0.0.1:{server.port}/"
    async with EngineClient(url, bounds or Bounds(), served, api_key) as client:
        yield client, server
    listening.close()
    assert client._http.idle == 0


def card(id: str, **more: object) -> Page:
    return Page(orjson.dumps({"data": [{"id": id, **more}]}))


@pytest.mark.parametrize(
    ("pages", "probe"),
    [
        ({}, Probe(True, max_model_len=4096)),
        ({"health": Page(status=500)}, Probe(False, cause="/health answers 500")),
        ({"health": REDIRECT}, Probe(False, cause="/health answers 307")),
        ({"models": REDIRECT}, Probe(False, cause="/v1/models answers 307")),
        (
            {"models": Page(MODELS, 401)},
            Probe(False, cause="it requires another API key: set PENSTOCK_ENGINE_API_KEY"),
        ),
        ({"models": Page(MODELS, 503)}, Probe(False, cause="/v1/models answers 503")),
        ({"models": Page(b"no JSON")}, Probe(True)),
        ({"models": Page(b"{}")}, Probe(True)),
        ({"models": Page(b"7")}, Probe(True)),
        ({"models": Page(b'{"data": [7]}')}, Probe(True)),
        ({"models": card("m")}, Probe(True)),
        ({"models": card("m", max_model_len="long")}, Probe(True)),
    ],
    ids=lambda given: str(given)[:70],
)
async def test_a_probe_returns_the_engine_s_health_and_context_length(
    pages: dict[str, Page], probe: Probe
) -> None:
    async with talking(pages) as (client, _):
        assert await client.probe() == probe


@pytest.mark.parametrize(
    ("served", "owner", "ready"),
    [("m", "vllm", True), ("other", "vllm", False), ("", "vllm", True), ("other", "somebody", True)],
)
async def test_an_engine_with_another_model_is_not_ready_if_it_reports_its_own_cards(
    served: str, owner: str, ready: bool
) -> None:
    async with talking({"models": card("m", owned_by=owner)}, served=served) as (client, _):
        probe = await client.probe()
    assert probe.ready is ready
    assert ready or 'the engine serves "m", this pool "other"' in probe.cause
    assert not (probe.late or probe.refused)


async def test_an_engine_that_does_not_answer_in_time_is_late() -> None:
    bounds = replace(Bounds(), probe_timeout_s=0.05)
    async with talking({"health": Page(silent=True)}, bounds=bounds) as (client, _):
        probe = await client.probe()
    assert (probe.ready, probe.late, probe.refused) == (False, True, False)
    assert probe.cause.startswith("TimeoutError") or "Timeout" in probe.cause


async def test_a_truncated_probe_is_late_and_a_refused_connection_is_down() -> None:
    async with talking({"models": Page(b"{", short=5)}) as (client, server):
        probe = await client.probe()
        assert (probe.ready, probe.late, probe.refused) == (False, True, False)
    async with EngineClient(f"http://127.0.0.1:{server.port}", Bounds()) as client:
        probe = await client.probe()
        assert (probe.ready, probe.late, probe.refused) == (False, False, True)


async def test_each_probe_opens_its_own_connections() -> None:
    """A kept connection might be to an engine that has ended."""
    async with talking() as (client, server):
        for _ in range(2):
            await client.probe()
    assert server.connections == 4


async def test_the_load_is_read_from_the_engines_metrics() -> None:
    async with talking({"metrics": Page(LOAD)}) as (client, _):
        load = await client.load()
    assert load is not None
    assert (load.running, load.waiting) == (3, 4)


@pytest.mark.parametrize(
    "page", [Page(LOAD, 404), Page(LOAD, short=5), Page(b"nothing of the kind"), None], ids=str
)
async def test_an_engine_may_report_no_load(page: Page | None) -> None:
    async with talking({} if page is None else {"metrics": page}) as (client, _):
        assert await client.load() is None


async def test_a_redirected_metrics_page_is_ignored() -> None:
    async with talking({"metrics": REDIRECT}) as (client, server):
        server.pages["/elsewhere"] = Page(LOAD)
        assert await client.load() is None


async def test_a_list_of_models_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async with talking() as (client, _):
        monkeypatch.setattr(engine_client, "MOST_BYTES", len(MODELS))
        assert (await client.probe()).ready
        monkeypatch.setattr(engine_client, "MOST_BYTES", len(MODELS) - 1)
        assert await client.probe() == Probe(False, cause=f"/v1/models is over {len(MODELS) - 1} bytes")


async def test_metrics_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async with talking({"metrics": Page(LOAD)}) as (client, _):
        monkeypatch.setattr(engine_client, "MOST_BYTES", len(LOAD))
        assert await client.load() is not None
        monkeypatch.setattr(engine_client, "MOST_BYTES", len(LOAD) - 1)
        assert await client.load() is None


async def test_an_engine_returns_the_text_of_tokens() -> None:
    async with talking({"detokenize": Page(b'{"prompt":"so"}')}, served="m") as (client, server):
        assert await client.detokenize([7, 8]) == "so"
    assert orjson.loads(server.bodies[0]) == {"model": "m", "tokens": [7, 8]}
    async with talking({"detokenize": Page(b'{"prompt":"so"}')}) as (client, server):
        await client.detokenize([7])
    assert orjson.loads(server.bodies[0]) == {"tokens": [7]}


@pytest.mark.parametrize(
    "page",
    [Page(b"{}", 404), Page(b"{}"), Page(b'{"prompt":7}'), Page(b"[]"), Page(b"no"), Page(b"{", short=1)],
    ids=["no such page", "no text", "a number", "a list", "no JSON", "a part"],
)
async def test_an_engine_may_not_return_the_text_of_tokens(page: Page) -> None:
    async with talking({"detokenize": page}) as (client, _):
        assert await client.detokenize([7]) is None


async def asked(client: EngineClient) -> tuple[int, bool, bytes]:
    """Status, whether it is a stream, and the bytes, of a completion."""
    async with client.answer(wire.ENDPOINT_COMPLETIONS, b'{"prompt": "a"}', "r7") as answer:
        return answer.status, answer.streamed, await answer.body(1000)


async def test_a_body_goes_to_its_endpoint_with_its_id_and_the_engines_key() -> None:
    async with talking({"answer": Page(b"{}")}, api_key="hush") as (client, server):
        assert await asked(client) == (200, False, b"{}")
    (head,) = server.heads
    assert head.startswith("POST /v1/completions HTTP/1.1\r\n")
    for line in ("x-request-id: r7", "content-type: application/json", "authorization: bearer hush"):
        assert f"\r\n{line}\r\n" in head.lower()
    assert server.bodies == [b'{"prompt": "a"}']


@pytest.mark.parametrize(
    ("page", "answer"),
    [
        (
            Page(b"data: x\n\n", headers="content-type: text/event-stream; charset=utf-8\r\n"),
            (200, True, b"data: x\n\n"),
        ),
        (Page(b"no", 422), (422, False, b"no")),
        (Page(b"gone", 307, "location: /elsewhere\r\n"), (307, False, b"gone")),
        (
            Page(b"\x1f\x8bnot really", headers="content-encoding: gzip\r\n"),
            (200, False, b"\x1f\x8bnot really"),
        ),
    ],
    ids=["a stream", "an error", "a redirect", "compressed"],
)
async def test_answers_are_forwarded_as_they_arrive(page: Page, answer: tuple[int, bool, bytes]) -> None:
    async with talking({"answer": page}) as (client, _):
        assert await asked(client) == answer


async def test_a_broken_or_refused_connection_counts_as_a_lost_engine() -> None:
    async with talking({"answer": Page(b"{", short=5)}) as (client, server):
        with pytest.raises(EngineGone, match="ConnectionError: the engine closed the connection before"):
            await asked(client)
    async with EngineClient(f"http://127.0.0.1:{server.port}", Bounds()) as client:
        with pytest.raises(EngineGone, match="ConnectionRefusedError: "):
            await asked(client)


@pytest.mark.parametrize(
    ("cards", "served"), [([], "m"), ([{"id": "m", "owned_by": "vllm"}], "m"), ([{"id": "x"}], "m")]
)
def test_without_another_model_there_is_no_message(cards: list[dict[str, str]], served: str) -> None:
    assert model_mismatch(cards, served) == ""
