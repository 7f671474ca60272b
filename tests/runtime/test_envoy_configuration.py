"""Envoy's configuration: accepted by the real Envoy, and equal to the documented example."""

import subprocess
from pathlib import Path, PurePosixPath

import orjson
import pytest
import yaml
from penstock_cli.local.envoy import envoy_program
from penstock_runtime.envoy.bootstrap import FILE, bootstrap, configuration_files
from penstock_runtime.envoy.endpoints import endpoints_document, write_endpoints
from penstock_runtime.envoy.json_parts import seconds
from penstock_runtime.envoy.settings import ClientTls, EnvoySettings, ReplicaTls, SocketAddress, Tracing
from penstock_runtime.envoy.tracing import collector_cluster, tracing
from self_signed import Identity

EXAMPLE = Path(__file__).parents[2] / "docs/examples/envoy.yaml"
HERE = "127.0.0.1"
SHOWN = EnvoySettings(
    api=SocketAddress(HERE, 8080),
    pages=SocketAddress(HERE, 9902),
    picker=SocketAddress(HERE, 9002),
    folder=PurePosixPath("/tmp/penstock"),
)


def test_the_example_equals_the_generated_configuration() -> None:
    assert yaml.safe_load(EXAMPLE.read_text()) == bootstrap(SHOWN)


@pytest.mark.parametrize("tls", [False, True])
def test_envoy_accepts_the_configuration(tmp_path: Path, tls: bool) -> None:
    identity = Identity(tmp_path)
    cert, key = str(identity.cert), str(identity.key)
    settings = EnvoySettings(
        api=SocketAddress(HERE, 0),
        pages=SocketAddress(HERE, 0),
        picker=SocketAddress(HERE, 1),
        folder=PurePosixPath(tmp_path),
        fail_open=tls,
        tls=ClientTls(cert, key) if tls else None,
        replica_tls=ReplicaTls(cert, cert, key, "replicas.default.svc", "engine.default.svc")
        if tls
        else None,
        tracing=Tracing("https://traces.example/v1/traces", 0.1) if tls else None,
    )
    for name, text in configuration_files(settings).items():
        (tmp_path / name).write_bytes(text)
    write_endpoints(tmp_path / "endpoints.json", ["127.0.0.1:7100", "[::1]:7100"])
    command = [str(envoy_program()), "--mode", "validate", "-c", str(tmp_path / FILE)]
    validated = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert validated.returncode == 0, validated.stderr


def test_equal_sets_of_endpoints_are_equal_files() -> None:
    one = endpoints_document(["10.0.0.2:7100", "10.0.0.1:7100", "10.0.0.2:7100"])
    assert one == endpoints_document(["10.0.0.1:7100", "10.0.0.2:7100"])
    (assigned,) = orjson.loads(one)["resources"]
    hosts = [
        each["endpoint"]["address"]["socket_address"] for each in assigned["endpoints"][0]["lb_endpoints"]
    ]
    assert hosts == [{"address": f"10.0.0.{last}", "port_value": 7100} for last in (1, 2)]


def test_files_are_watched_in_their_mounted_folder() -> None:
    files = PurePosixPath("/etc/envoy")
    shared = PurePosixPath("/run/penstock")
    settings = EnvoySettings(
        **{**{name: getattr(SHOWN, name) for name in ("api", "pages", "picker")}, "folder": shared},
        files=files,
        tls=ClientTls("/etc/tls/tls.crt", "/etc/tls/tls.key"),
    )
    text = orjson.dumps(bootstrap(settings)).decode()
    assert '"/etc/envoy/api-certificate.json"' in text
    assert '"/run/penstock/endpoints.json"' in text
    assert b'"watched_directory":{"path":"/etc/tls"}' in configuration_files(settings)["api-certificate.json"]


def test_durations_are_written_in_protobufs_format() -> None:
    assert [seconds(value_s) for value_s in (1.0, 0.25, 86400.0, 0.001)] == [
        "1s",
        "0.25s",
        "86400s",
        "0.001s",
    ]


@pytest.mark.parametrize(
    ("url", "host", "port", "tls"),
    [
        ("http://otel.monitoring:4318/v1/traces", "otel.monitoring", 4318, False),
        ("https://traces.example/otlp", "traces.example", 443, True),
        ("http://traces.example/otlp", "traces.example", 80, False),
    ],
)
def test_the_collector_is_a_cluster_with_its_urls_address(url: str, host: str, port: int, tls: bool) -> None:
    (cluster,) = collector_cluster(Tracing(url))
    address = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]
    assert address == {"socket_address": {"address": host, "port_value": port}}
    assert cluster.get("transport_socket", {}).get("typed_config", {}).get("sni") == (host if tls else None)


def test_a_share_of_the_requests_is_traced() -> None:
    found = tracing(Tracing("http://otel:4318/v1/traces", 0.25))["tracing"]
    assert found["random_sampling"] == {"value": 25.0}
    collector = found["provider"]["typed_config"]["http_service"]["http_uri"]
    assert (collector["uri"], collector["cluster"]) == ("http://otel:4318/v1/traces", "traces")
