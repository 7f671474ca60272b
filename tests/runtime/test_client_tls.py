"""Connections to an engine that serves TLS: trusted authorities, client certificates and renewed files."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from authority import make_certificates
from penstock_runtime.client_tls import Contexts, client_contexts
from penstock_runtime.engine.connection import EngineGone
from penstock_runtime.engine.http_client import EngineHttp
from penstock_runtime.http_request import HttpRequest
from penstock_runtime.serving import address_of, listen, serving
from penstock_runtime.tls import server_context

NAME = "engine.llama.svc"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_certificates(tmp_path, f"DNS:{NAME}")
    return tmp_path


async def well(request: HttpRequest) -> None:
    await request.answer(b"well")


@asynccontextmanager
async def engine(folder: Path, client_ca: Path | None = None) -> AsyncIterator[str]:
    """The URL of an engine with this identity."""
    listener = listen("127.0.0.1", 0)
    tls = server_context(folder / "node.pem", folder / "node.key", client_ca)
    async with serving(well, listener, 0.0, tls=tls):
        yield f"https://{address_of(listener)}"


async def asked(url: str, tls: Contexts) -> bytes | None:
    """The answer on a new connection. Raises EngineGone."""
    http = EngineHttp(url, "test", api_key="", connect_s=60.0, tls=tls)
    try:
        return (await http.page("/health", 100))[1]
    finally:
        http.close()


async def test_an_engine_is_verified_by_its_name_at_any_address(folder: Path) -> None:
    ca = folder / "ca.pem"
    async with engine(folder) as url:
        assert await asked(url, client_contexts(ca, server_name=NAME)) == b"well"
        for name in (None, "sidecar.llama.svc"):
            with pytest.raises(EngineGone, match="CERTIFICATE_VERIFY_FAILED"):
                await asked(url, client_contexts(ca, server_name=name))


async def test_an_engine_that_requires_a_certificate_gets_one(folder: Path) -> None:
    ca, cert, key = (folder / name for name in ("ca.pem", "node.pem", "node.key"))
    async with engine(folder, ca) as url:
        assert await asked(url, client_contexts(ca, cert, key, NAME)) == b"well"
        with pytest.raises(EngineGone, match=r"requires its clients' certificates .*--ssl-cert-reqs 2"):
            await asked(url, client_contexts(ca, server_name=NAME))


async def test_renewed_files_are_used_for_the_next_connection(folder: Path) -> None:
    ca, cert, key = (folder / name for name in ("ca.pem", "node.pem", "node.key"))
    contexts = client_contexts(ca, cert, key, NAME)
    async with engine(folder, ca) as url:
        before = contexts()
        assert contexts() is before
        make_certificates(folder, f"DNS:{NAME}")  # of another authority: earlier certificates are not trusted
        assert await asked(url, contexts) == b"well"
        cert.write_text("half of a")
        kept = contexts()
        assert await asked(url, contexts) == b"well"
        assert contexts() is kept is not before


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("ca.pem", "", "not a certificate of an authority"),
        ("ca.pem", "no certificate", "not a certificate of an authority"),
        ("node.pem", "no certificate", "not a certificate with its key"),
        ("node.key", None, "No such file"),
    ],
)
def test_files_that_cannot_be_used_are_named(folder: Path, file: str, content: str | None, says: str) -> None:
    path = folder / file
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(OSError, match=says) as raised:
        client_contexts(folder / "ca.pem", folder / "node.pem", folder / "node.key", NAME)
    assert raised.value.filename == str(path)
