"""What runs beside a router's server: only what its flags and its pool ask for."""

from collections.abc import Coroutine, Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from penstock_pool import Pool
from penstock_router import main
from penstock_router.http.app import RouterApp
from penstock_router.options import Options, parse
from penstock_routing import assembly, front_process
from penstock_routing.applications.api_keys import Keys
from penstock_routing.applications.key_refresh import KeyRefresh
from penstock_routing.applications.key_sources import KeyFiles, KeySecrets, SecretName
from penstock_routing.discovery.endpoint_watch import EndpointWatch
from penstock_routing.discovery.endpoints import Fixed
from penstock_routing.flags import REDIS_URL
from penstock_routing.replicas.peer_placements import PeerLoad
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.settings import settings_of
from scripted.router import make_link, pool_with

LIMITED = [{"name": "ide", "tier": "chat", "keys": {"file": "ide.txt"}, "limits": {"requestsPerMinute": 5}}]
KEYS = [
    {"name": "ide", "tier": "chat", "keys": {"file": "ide.txt"}},
    {"name": "web", "tier": "chat", "keys": {"file": "web.txt"}},
]
KUBECONFIG = """
{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],
 clusters: [{name: k, cluster: {server: "http://127.0.0.1:1"}}], users: [{name: u, user: {}}]}
"""


@pytest.fixture(autouse=True)
def logs_of_the_test_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the logs as they are: other tests of this process capture them."""
    monkeypatch.setattr(front_process, "configure_logs", lambda *given: None)


@pytest.fixture
def redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REDIS_URL, "redis://h:1")


@pytest.fixture
def no_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REDIS_URL, raising=False)


def options(*flags: str, pool: str = "folder/pool.yaml") -> Options:
    return parse(["-f", pool, *(flags or ("--replica", "r0=h:1"))])


def app_of(pool: Pool) -> RouterApp:
    return RouterApp(pool, settings_of(pool), Keys(pool.spec.applications, {}), ReplicaSet(make_link))


def owners(parts: Iterable[Coroutine[Any, Any, None]]) -> list[Any]:
    """Whose `run` each of these is. None of them is begun."""
    found = []
    for part in parts:
        found.append(part.cr_frame.f_locals["self"])  # type: ignore[attr-defined]
        part.close()
    return found


async def test_limits_are_shared_if_the_pool_has_limits_and_redis(redis: None) -> None:
    pool = pool_with(applications=LIMITED)
    app = app_of(pool)
    shared = assembly.shared_limits(options(), pool)
    assert owners(assembly.sharing(None, shared, app._replica_set, app.metrics)) == [shared]
    assert shared is not None
    registry = app.metrics.registry
    assert registry.get_sample_value("penstock_router_limits_shared") == 0
    shared.connected = True
    assert registry.get_sample_value("penstock_router_limits_shared") == 1


async def test_without_limits_no_limits_are_shared(redis: None) -> None:
    assert assembly.shared_limits(options(), pool_with(applications=KEYS)) is None


async def test_without_redis_nothing_is_shared(no_redis: None) -> None:
    pool = pool_with(applications=LIMITED)
    assert assembly.shared_limits(options(), pool) is None
    assert assembly.shared_placements(options(), pool) is None
    app = app_of(pool)
    assert owners(assembly.sharing(None, None, app._replica_set, app.metrics)) == []


async def test_placements_are_published_and_received(redis: None) -> None:
    pool = pool_with()
    app = app_of(pool)
    shared = assembly.shared_placements(options(), pool)
    assert shared is not None
    link = assembly.link_maker(options(), Random(1), shared)("r0", "127.0.0.1:1", lambda: None)
    assert link._placed == shared.placed
    app._replica_set._links["r0"] = link
    (run,) = assembly.sharing(shared, None, app._replica_set, app.metrics)
    reported = run.cr_frame.f_locals  # type: ignore[attr-defined]
    reported["on_placement"]("r0", PeerLoad(2, 300))
    reported["malformed"]()
    run.close()
    assert [placed for _, placed in link.peers.placements] == [PeerLoad(2, 300)]
    registry = app.metrics.registry
    assert registry.get_sample_value("penstock_router_placements_received_total") == 1
    assert registry.get_sample_value("penstock_router_placements_malformed_total") == 1
    assert registry.get_sample_value("penstock_router_redis_connected") == 0
    shared.connected = True
    assert registry.get_sample_value("penstock_router_redis_connected") == 1


async def test_ejections_have_random_jitter() -> None:
    link = assembly.link_maker(options(), Random(1), None)("r0", "127.0.0.1:1", lambda: None)
    link._placed("r0", 300)  # no other router is notified
    draws = [link.ejection._draw() for _ in range(20)]
    assert len(set(draws)) == 20
    assert all(0 <= draw < 1 for draw in draws)


async def sources(pool: Pool, *flags: str) -> list[dict[str, Any]]:
    """Where keys are read again and again."""
    app = app_of(pool)
    found = []
    for refresh in owners(assembly.refreshing(options(*flags), pool, app.keys, app.metrics)):
        assert isinstance(refresh, KeyRefresh)
        source = refresh._source
        assert isinstance(source, KeyFiles | KeySecrets)
        found.append(source._paths if isinstance(source, KeyFiles) else source._secrets)
    return found


async def test_keys_are_read_from_files_beside_the_pool() -> None:
    files = {"ide": Path("folder/ide.txt"), "web": Path("folder/web.txt")}
    assert await sources(pool_with(applications=KEYS)) == [files]
    assert await sources(pool_with()) == []


async def test_applications_whose_keys_are_in_secrets_have_no_files() -> None:
    replica, web = ("--replica", "r0=h:1"), ("--key-secret", "web=apps/web-keys")
    ide = ("--key-secret", "ide=apps/ide-keys")
    pool = pool_with(applications=KEYS)
    secrets = {"web": SecretName("apps", "web-keys")}
    assert await sources(pool, *replica, *web) == [{"ide": Path("folder/ide.txt")}, secrets]
    assert await sources(pool, *replica, *web, *ide) == [secrets | {"ide": SecretName("apps", "ide-keys")}]


def test_replicas_are_read_from_flags(tmp_path: Path) -> None:
    assert isinstance(assembly.source(options()), Fixed)
    config = tmp_path / "config"
    config.write_text(KUBECONFIG)
    flags = ("--discover", "ns/replicas", "--kubeconfig", str(config))
    assert isinstance(assembly.source(options(*flags)), EndpointWatch)


POOL = """
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {name: tests}
spec:
  model: {name: m}
  engine: {type: simulated, timeModel: llama-3-8b-a100}
  tiers: [{name: chat, slo: {ttft: 10s}}]
"""


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--key-secret", "ide=apps/keys"], "--key-secret: tests has no application ide"),
        (
            ["--tls-cert", "/no/such.pem", "--tls-key", "/no/key.pem"],
            "/no/such.pem: No such file or directory",
        ),
        (["--replica-tls-ca", "/no/such.pem"], "/no/such.pem: No such file or directory"),
    ],
    ids=["a secret of nobody", "no certificate", "no authority"],
)
def test_invalid_options_end_the_process_before_it_serves(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    words: str,
) -> None:
    monkeypatch.setattr(front_process, "run_process", lambda serve: 1)
    pool = tmp_path / "pool.yaml"
    pool.write_text(POOL)
    assert main.main(["-f", str(pool), "--replica", "r0=h:1", *flags]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("code", [0, 1])
def test_the_exit_code_is_that_of_serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(front_process, "run_process", lambda serve: code)
    pool = tmp_path / "pool.yaml"
    pool.write_text(POOL)
    assert main.main(["-f", str(pool), "--replica", "r0=h:1"]) == code
