"""API keys that change while a router serves: in files, and in a cluster's Secrets."""

import asyncio
import contextlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest
from penstock_pool import Application, load_keys
from penstock_routing.applications.api_keys import Keys
from penstock_routing.applications.key_refresh import KeyMetrics, KeyRefresh
from penstock_routing.applications.key_sources import (
    ANSWER_S,
    KeyFiles,
    KeySecrets,
    KeyStore,
    SecretName,
    Unreadable,
)
from penstock_routing.connections.api_server import Access, AccessError
from prometheus_client import CollectorRegistry
from scripted.replica import ScriptedReplica
from scripted.router import RunningRouter, pool_with, running_router
from structlog.testing import capture_logs
from virtual_time import now_s, run

APPLICATIONS = [
    {"name": "ide", "tier": "coder", "keys": {"file": "ide.txt"}},
    {"name": "night", "tier": "batch", "keys": {"file": "night.txt"}},
]
IDE, NIGHT = pool_with(applications=APPLICATIONS).spec.applications


def keys_of(**keys: str) -> Keys:
    owners: Mapping[str, Application] = {"ide": IDE, "night": NIGHT}
    return Keys((IDE, NIGHT), {key: owners[name] for name, key in keys.items()})


def refresh_of(keys: Keys, source: KeyStore) -> tuple[KeyRefresh, CollectorRegistry]:
    registry = CollectorRegistry()
    return KeyRefresh(keys, source, KeyMetrics(registry)), registry


def unreadable(registry: CollectorRegistry, application: str) -> float | None:
    return registry.get_sample_value("penstock_router_keys_unreadable", {"application": application})


def test_only_configured_keys_have_an_application() -> None:
    keys = keys_of(ide="a", night="b")
    assert (keys.application("a"), keys.application("b")) == (IDE, NIGHT)
    assert [keys.application(key) for key in ("", "A", "ab", None)] == [None] * 4


def test_replaced_keys_are_unknown() -> None:
    keys = keys_of(ide="a", night="b")
    assert keys.replace("ide", ["c", "d"])
    assert [keys.application(key) for key in "abcd"] == [None, NIGHT, IDE, IDE]
    assert not keys.replace("ide", ["d", "c"])


def test_a_key_of_two_applications_belongs_to_the_first_one() -> None:
    keys = keys_of(ide="a", night="b")
    keys.replace("night", ["a", "b"])
    assert keys.application("a") is IDE
    keys.replace("ide", [])
    assert keys.application("a") is NIGHT


def test_a_pool_whose_last_key_was_revoked_is_not_open() -> None:
    keys = keys_of(ide="a")
    keys.replace("ide", [])
    assert keys.required
    assert not Keys((), {}).required


def test_keys_are_not_stored_in_the_clear() -> None:
    keys = keys_of(ide="hush-hush")
    keys.replace("ide", ["hush-hush-too"])
    assert "hush" not in str({name: getattr(keys, name) for name in ("_digests", "_owners")})


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "ide.txt").write_text("# ours\nide-key\nold-key\n")
    (tmp_path / "night.txt").write_text("night-key\n")
    return tmp_path


def files_of(folder: Path) -> KeyFiles:
    return KeyFiles({"ide": folder / "ide.txt", "night": folder / "night.txt"})


async def status(router: RunningRouter, key: str) -> int:
    return (await router.chat({"authorization": f"Bearer {key}"})).status_code


async def test_a_revoked_key_is_refused_and_a_new_one_served_without_a_restart(files: Path) -> None:
    pool = pool_with(applications=APPLICATIONS)
    async with running_router(ScriptedReplica("r0"), pool=pool, keys=load_keys(pool, files)) as router:
        refresh = KeyRefresh(router.app.keys, files_of(files), router.app.metrics.keys)
        assert [await status(router, key) for key in ("old-key", "new-key")] == [200, 401]
        (files / "ide.txt").write_text("ide-key\nnew-key\n")
        await refresh.refresh()
        assert [await status(router, key) for key in ("old-key", "new-key", "ide-key")] == [401, 200, 200]
        assert await router.metric('penstock_router_key_changes_total{application="ide"}') == 1
        (files / "ide.txt").write_text("")
        (files / "night.txt").write_text("")
        await refresh.refresh()
        assert [await status(router, key) for key in ("ide-key", "night-key")] == [401, 401]


@pytest.mark.parametrize("broken", ["gone", "not text", "a folder"])
async def test_a_file_that_cannot_be_read_changes_nothing_and_is_logged_once(
    files: Path, broken: str
) -> None:
    keys = keys_of(ide="ide-key", night="night-key")
    refresh, registry = refresh_of(keys, files_of(files))
    (files / "ide.txt").unlink()
    if broken == "not text":
        (files / "ide.txt").write_bytes(b"\xff\xfe")
    elif broken == "a folder":
        (files / "ide.txt").mkdir()
    (files / "night.txt").write_text("another-key")
    with capture_logs() as output:
        await refresh.refresh()
        await refresh.refresh()
        assert (keys.application("ide-key"), keys.application("another-key")) == (IDE, NIGHT)
        assert (unreadable(registry, "ide"), unreadable(registry, "night")) == (1, 0)
        if broken == "a folder":
            (files / "ide.txt").rmdir()
        (files / "ide.txt").write_text("restored-key")
        await refresh.refresh()
    assert (keys.application("ide-key"), keys.application("restored-key")) == (None, IDE)
    assert unreadable(registry, "ide") == 0
    assert [line["event"] for line in output if line["application"] == "ide"] == [
        "keys unreadable",
        "keys readable again",
        "keys changed",
    ]
    assert "-key" not in str(output)


async def test_reading_goes_on_until_it_is_cancelled(files: Path) -> None:
    keys, source = keys_of(), files_of(files)
    source.every_s = 0
    task = asyncio.create_task(refresh_of(keys, source)[0].run())
    async with asyncio.timeout(20):
        for key in ("first", "second"):
            (files / "ide.txt").write_text(key)
            while keys.application(key) is None:  # noqa: ASYNC110  a file has no event
                await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


class Empty:
    """A source that notes when it is read."""

    def __init__(self, every_s: float) -> None:
        self.every_s, self.read_s = every_s, list[float]()

    async def read(self) -> Mapping[str, str | Unreadable]:
        self.read_s.append(now_s())
        return {}


@pytest.mark.parametrize("every_s", [1.0, 2.0])
def test_a_source_is_read_immediately_and_then_at_its_interval(every_s: float) -> None:
    source = Empty(every_s)

    async def program() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2.5 * every_s):
                await refresh_of(keys_of(), source)[0].run()

    run(program())
    assert source.read_s == [0.0, every_s, 2 * every_s]


class Cluster:
    """An API server that holds Secrets. It counts the connections that are made to it."""

    def __init__(self, **secrets: Any) -> None:
        self.secrets, self.asked, self.clients = secrets, list[str](), 0
        self.fault: Callable[[], Exception] | None = None

    def client(self) -> httpx2.AsyncClient:
        self.clients += 1
        return httpx2.AsyncClient(base_url="https://api", transport=httpx2.MockTransport(self._answer))

    def _answer(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(request.url.path)
        if self.fault is not None:
            raise self.fault()
        found = self.secrets.get(request.url.path.rpartition("/")[2])
        if isinstance(found, int):
            return httpx2.Response(found, json={"message": "no"})
        return httpx2.Response(404) if found is None else httpx2.Response(200, json=found)

    def source(self) -> KeySecrets:
        secrets = {"ide": SecretName("apps", "ide"), "night": SecretName("apps", "night")}
        return KeySecrets(secrets, cast("Access", self))


def secret(text: str | bytes, entry: str = "keys") -> dict[str, Any]:
    return {"data": {entry: b64encode(text.encode() if isinstance(text, str) else text).decode()}}


async def test_secrets_are_read_by_name_on_one_connection() -> None:
    cluster = Cluster(ide=secret("a\nb\n"), night=secret("c"))
    source = cluster.source()
    assert await source.read() == {"ide": "a\nb\n", "night": "c"}
    cluster.secrets["ide"] = secret("b")
    assert await source.read() == {"ide": "b", "night": "c"}
    assert cluster.asked[:2] == [f"/api/v1/namespaces/apps/secrets/{name}" for name in ("ide", "night")]
    assert cluster.clients == 1
    await source.close()


@pytest.mark.parametrize("found", [None, {}, {"data": None}, secret("x", entry="other")])
async def test_a_secret_without_keys_has_revoked_them(found: Any) -> None:
    source = Cluster(ide=found, night=secret("c")).source()
    assert await source.read() == {"ide": "", "night": "c"}
    await source.close()


@pytest.mark.parametrize("found", [403, 500, secret(b"\xff"), {"data": {"keys": "&"}}, {"data": 7}, []])
async def test_an_unreadable_secret_does_not_affect_others(found: Any) -> None:
    source = Cluster(ide=found, night=secret("c")).source()
    read = await source.read()
    assert isinstance(read["ide"], Unreadable)
    assert read["night"] == "c"
    await source.close()


@pytest.mark.parametrize("fault", [lambda: httpx2.ConnectError("refused"), lambda: AccessError("no token")])
async def test_each_round_tries_an_unavailable_api_server_once_on_a_new_connection(
    fault: Callable[[], Exception],
) -> None:
    cluster = Cluster(ide=secret("a"), night=secret("c"))
    source, cluster.fault = cluster.source(), fault
    read = await source.read()
    assert len(cluster.asked) == 1
    assert all(isinstance(one, Unreadable) for one in read.values())
    cluster.fault = None
    assert await source.read() == {"ide": "a", "night": "c"}
    assert cluster.clients == 2
    await source.close()


def test_a_revoked_key_stops_within_the_documented_time() -> None:
    assert KeyFiles.every_s == 1
    assert KeySecrets.every_s == ANSWER_S == 2


async def test_a_closed_source_closes_its_connection_and_can_open_another() -> None:
    cluster = Cluster(ide=secret("a"), night=secret("c"))
    source = cluster.source()
    await source.close()
    await source.read()
    http = source._http
    await source.close()
    assert http is not None and http.is_closed
    await source.read()
    assert cluster.clients == 2
    await source.close()
