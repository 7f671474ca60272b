"""The router's flags: valid combinations, and errors for others."""

import re
from pathlib import Path

import httpx2
import pytest
from penstock_router.options import Options, parse
from penstock_routing.applications.key_sources import SecretName
from penstock_routing.connections.api_server import ANSWER_S, Access, AccessError
from penstock_routing.connections.replica_channel import Tls
from penstock_routing.discovery.endpoints import Service
from penstock_routing.flags import REDIS_URL, Certificate

THERE = ["--replica", "r0=h:1"]


def parsed(*flags: str) -> Options:
    return parse(["-f", "pool.yaml", *flags])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "give either --replica"),
        ([*THERE, "--discover", "n/s"], "give either --replica"),
        (["--discover", "service"], "'service' is not NAMESPACE/SERVICE"),
        (["--discover", "n/s/x"], "'n/s/x' is not NAMESPACE/SERVICE"),
        ([*THERE, "--kubeconfig", "x"], "--kubeconfig needs --discover"),
        ([*THERE, "--key-secret", "ide=keys"], "'ide=keys' is not APPLICATION=NAMESPACE/SECRET"),
        ([*THERE, "--key-secret", "n/s"], "'n/s' is not APPLICATION=NAMESPACE/SECRET"),
        ([*THERE, "--replica-tls-server-name", "x"], "TLS to the replicas needs --replica-tls-ca"),
        (
            [*THERE, "--replica-tls-ca", "x", "--replica-tls-cert", "x"],
            "--replica-tls-cert and --replica-tls-key belong together",
        ),
        ([*THERE, "--tls-cert", "x"], "--tls-cert and --tls-key belong together"),
        ([*THERE, "--redis-url-file", "/no/such"], "/no/such: No such file"),
        ([*THERE, "--redis-url-file", "/dev/null"], "the URL of Redis is not redis://HOST:PORT"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_invalid_flags_exit_with_2(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*flags)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_replicas_come_from_flags_or_discovery() -> None:
    assert parsed("--replica", "r0=a:1", "--replica", "r1=b:2").replicas == {"r0": "a:1", "r1": "b:2"}
    assert parsed("--discover", "default/p-replicas").service == Service("default", "p-replicas")


def test_applications_keys_may_be_in_secrets() -> None:
    flags = ("--key-secret", "ide=apps/ide-keys", "--key-secret", "web=apps/web-keys", "--kubeconfig", "x")
    assert parsed(*THERE, *flags).key_secrets == {
        "ide": SecretName("apps", "ide-keys"),
        "web": SecretName("apps", "web-keys"),
    }


def test_the_redis_url_is_read_from_its_file_when_needed(tmp_path: Path) -> None:
    file = tmp_path / "url"
    file.write_text("redis://:old@redis:6379\n")
    url = parsed(*THERE, "--redis-url-file", str(file)).redis_url
    file.write_text("redis://:new@redis:6379\n")
    assert url is not None and url() == "redis://:new@redis:6379"


def test_the_redis_url_may_come_from_the_environment_or_be_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REDIS_URL, raising=False)
    assert parsed(*THERE).redis_url is None
    monkeypatch.setenv(REDIS_URL, "rediss://redis:6380/1")
    url = parsed(*THERE).redis_url
    assert url is not None and url() == "rediss://redis:6380/1"


def test_an_invalid_redis_url_is_not_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(REDIS_URL, "redis://:hunter2@redis:port")
    with pytest.raises(SystemExit):
        parsed(*THERE)
    assert "hunter2" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (None, "not found"),
        ("clusters: [", "while parsing"),
        ("kind: Config", "has no 'clusters'"),
        ("{clusters: [], contexts: [], current-context: x}", "Context 'x' not found"),
    ],
    ids=["no file", "no YAML", "no clusters", "no context"],
)
def test_an_unusable_kubeconfig_is_named(tmp_path: Path, config: str | None, words: str) -> None:
    file = tmp_path / "kubeconfig"
    if config is not None:
        file.write_text(config)
    with pytest.raises(AccessError) as refused:
        Access(file).check()
    assert str(refused.value).startswith(f"{file}: ")
    assert words in str(refused.value)


KUBECONFIG = """
clusters: [{{name: c, cluster: {{server: "http://10.0.0.1:6443"}}}}]
users: [{{name: u, user: {user}}}]
contexts: [{{name: x, context: {{cluster: c, user: u}}}}]
current-context: x
"""


def test_the_api_server_and_its_token_come_from_the_kubeconfig(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(KUBECONFIG.format(user="{token: hush}"))
    client = Access(file).client()
    assert client.base_url == "http://10.0.0.1:6443"
    assert client.auth is not None
    assert client.timeout == httpx2.Timeout(ANSWER_S, read=None)


def test_a_kubeconfig_whose_certificate_cannot_be_read_is_named(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    user = "{client-certificate: none.pem, client-key: none.pem}"
    file.write_text(KUBECONFIG.replace("http:", "https:").format(user=user))
    with pytest.raises(AccessError, match=f"^{re.escape(str(file))}: .*No such file"):
        Access(file).check()


def test_outside_a_cluster_there_is_no_service_account(tmp_path: Path) -> None:
    with pytest.raises(AccessError):
        Access(None, account=tmp_path).check()


def test_the_default_is_this_machines_loopback_unencrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REDIS_URL, raising=False)
    assert parsed(*THERE) == Options(
        pool=Path("pool.yaml"),
        host="127.0.0.1",
        port=8080,
        admin_host="127.0.0.1",
        admin_port=9080,
        replicas={"r0": "h:1"},
        service=None,
        kubeconfig=None,
        drain_s=None,
        lame_duck_s=0.0,
        certificate=None,
        replica_tls=None,
        key_secrets={},
        redis_url=None,
        log_level="info",
        log_json=False,
    )


def test_files_of_tls_are_distinguished() -> None:
    api = ("--tls-cert", "api.pem", "--tls-key", "api.key")
    to_replicas = ("--replica-tls-ca", "ca.pem", "--replica-tls-cert", "r.pem", "--replica-tls-key", "r.key")
    options = parsed(*THERE, *api, *to_replicas, "--replica-tls-server-name", "replica")
    assert options.certificate == Certificate(Path("api.pem"), Path("api.key"))
    assert options.replica_tls == Tls(Path("ca.pem"), Path("r.pem"), Path("r.key"), "replica")
    assert parsed(*THERE, "--replica-tls-ca", "ca.pem").replica_tls == Tls(Path("ca.pem"))


@pytest.mark.parametrize(
    "flags",
    [
        ["--discover", "n/s", "--kubeconfig", "x"],
        [*THERE, "--key-secret", "ide=n/s", "--kubeconfig", "x"],
        ["--discover", "n/s", "--key-secret", "ide=n/s", "--kubeconfig", "x"],
    ],
)
def test_a_kubeconfig_goes_with_any_flag_that_uses_the_cluster(flags: list[str]) -> None:
    assert parsed(*flags).kubeconfig == Path("x")


@pytest.mark.parametrize("given", ["ide=n/s/x", "ide=/s", "ide=n/", "=n/s", "ide", "ide=ns", ""])
def test_a_secret_flag_needs_application_namespace_and_name(
    given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parsed(*THERE, "--key-secret", given)
    assert f"'{given}' is not APPLICATION=NAMESPACE/SECRET" in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--replica-tls-cert", "x", "--replica-tls-key", "x"], ["--tls-key", "x"]])
def test_an_incomplete_set_of_tls_flags_is_an_error(flags: list[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(*THERE, *flags)
