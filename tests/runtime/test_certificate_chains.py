"""Chains that older authorities sign are verified alike under all versions of Python."""

import ssl
from pathlib import Path
from typing import Any

import pytest
from authority import make_certificates
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


def test_redis_needs_no_key_identifiers() -> None:
    def connection(url: str) -> Any:
        return redis_client(url).connection_pool.make_connection()  # type: ignore[no-untyped-call]

    assert not is_strict(connection("rediss://127.0.0.1:1").ssl_context.get())
    connection("redis://127.0.0.1:1")
