"""The picker's flags: its protocols and defaults."""

from pathlib import Path

import pytest
from penstock_picker.options import Options, parse
from penstock_routing.flags import REDIS_URL, Certificate

REQUIRED = ["-f", "pool.yaml", "--replica", "r0=h:1"]


def test_the_default_is_this_machines_loopback_unencrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REDIS_URL, raising=False)
    assert parse([*REQUIRED, "--ext-proc-port", "9002"]) == Options(
        pool=Path("pool.yaml"),
        replicas={"r0": "h:1"},
        service=None,
        kubeconfig=None,
        replica_tls=None,
        key_secrets={},
        redis_url=None,
        host="127.0.0.1",
        ext_authz_port=None,
        ext_proc_port=9002,
        admin_host="127.0.0.1",
        admin_port=9081,
        certificate=None,
        endpoints_file=None,
        envoy_admin=None,
        drain_s=None,
        lame_duck_s=0.0,
        log_level="info",
        log_json=False,
    )


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "give --ext-authz-port, --ext-proc-port, or both"),
        (["--ext-authz-port", "0", "--tls-cert", "x"], "--tls-cert and --tls-key belong together"),
        (["--ext-authz-port", "0", "--redis-url-file", "/no/such"], "/no/such: No such file"),
        (
            ["--ext-authz-port", "0", "--drain-s", "3"],
            "--drain-s needs --envoy-admin",
        ),
    ],
    ids=["no front", "half of TLS", "no Redis", "no Envoy"],
)
def test_invalid_flags_exit_with_2(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([*REQUIRED, *flags])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_picker_needs_its_pool(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--replica", "r0=h:1", "--ext-proc-port", "0"])
    assert "-f/--file" in capsys.readouterr().err


def test_flags_configure_both_front_ends_a_certificate_and_json_logs() -> None:
    fronts = ["--ext-authz-port", "0", "--ext-proc-port", "0"]
    more = ["--log-json", "--log-level", "debug", "--admin-port", "7", "--admin-host", "::1", "--host", "h"]
    options = parse([*REQUIRED, *fronts, "--tls-cert", "c", "--tls-key", "k", *more])
    assert (options.log_level, options.admin_port) == ("debug", 7)
    assert (options.admin_host, options.host) == ("::1", "h")
    assert (options.ext_authz_port, options.ext_proc_port, options.log_json) == (0, 0, True)
    assert options.certificate == Certificate(Path("c"), Path("k"))


def test_flags_configure_an_envoy_with_endpoints_and_a_drain() -> None:
    envoy = ["--endpoints-file", "e.json", "--envoy-admin", "a.sock", "--drain-s", "3", "--lame-duck-s", "1"]
    options = parse([*REQUIRED, "--ext-authz-port", "0", *envoy])
    assert (options.endpoints_file, options.envoy_admin) == (Path("e.json"), Path("a.sock"))
    assert (options.drain_s, options.lame_duck_s) == (3.0, 1.0)
