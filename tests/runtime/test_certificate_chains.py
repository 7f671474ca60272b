"""Chains that older authorities sign are verified alike under all versions of Python."""

import ssl
from pathlib import Path
from typing import Any

import kopf
import pytest
from authority import make_certificates
from penstock_operator.cluster.login import connection_of_cluster
from penstock_routing.connections.redis_client import redis_client
from penstock_runtime.certificate_chains import not_strict
from penstock_runtime.engine import connections
from penstock_runtime.tls import server_context


@pytest.fixture(autouse=True)
def strict_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give default contexts the flag that Python 3.13 gives them."""
    default = ssl.create_default_context

    def strict(*args: object, **options: object) -> ssl.SSLContext:
        context = default(*args, **options)  # type: ignore[arg-type]
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)


def is_strict(context: ssl.SSLContext) -> bool:
    return bool(context.verify_flags & ssl.VERIFY_X509_STRICT)


def test_a_context_keeps_its_other_checks() -> None:
    context = not_strict(ssl.create_default_context())
    assert not is_strict(context)
    assert (context.check_hostname, context.verify_mode) == (True, ssl.CERT_REQUIRED)


def test_clients_of_a_server_and_engines_need_no_key_identifiers(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    files = (tmp_path / "node.pem", tmp_path / "node.key", tmp_path / "ca.pem")
    assert not is_strict(server_context(*files))
    assert not is_strict(connections._trusted()())


def test_an_api_server_needs_no_key_identifiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_certificates(tmp_path)
    cluster = f"{{server: https://127.0.0.1:1, certificate-authority: {tmp_path / 'ca.pem'}}}"
    config = tmp_path / "kubeconfig"
    config.write_text(
        f"current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n"
        f"clusters: [{{name: k, cluster: {cluster}}}]\nusers: [{{name: u, user: {{token: t}}}}]\n"
    )
    monkeypatch.setenv("KUBECONFIG", str(config))
    connection = connection_of_cluster(kopf.OperatorSettings())
    assert connection is not None
    assert connection.token == "t"
    assert not is_strict(connection.as_ssl_context())


def test_redis_needs_no_key_identifiers() -> None:
    def connection(url: str) -> Any:
        return redis_client(url).connection_pool.make_connection()  # type: ignore[no-untyped-call]

    assert not is_strict(connection("rediss://127.0.0.1:1").ssl_context.get())
    connection("redis://127.0.0.1:1")
