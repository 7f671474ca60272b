from pathlib import Path

import pytest
from authority import make_certificates
from penstock_runtime.engine.connection import EngineGone
from penstock_runtime.engine.http_client import EngineHttp
from penstock_runtime.http_request import HttpRequest
from penstock_runtime.serving import address_of, listen, serving
from penstock_runtime.tls import server_context
from penstock_sidecar.options import Address, parse
from penstock_sidecar.sidecar import engine_tls

GOOD = ["-f", "pool.yaml", "--name", "r0", "--listen", "127.0.0.1:0", "--engine", "http://127.0.0.1:8000/"]


def test_flags_configure_a_sidecar() -> None:
    options = parse([*GOOD, "--telemetry", "/run/t.sock", "--metrics-port", "0", "--drain-s", "5"])
    assert (options.name, options.listen, options.engine) == (
        "r0",
        Address("127.0.0.1", 0),
        "http://127.0.0.1:8000",
    )
    assert (options.telemetry, options.metrics) == (Path("/run/t.sock"), Address("127.0.0.1", 0))
    assert (options.drain_s, options.tls) == (5.0, None)
    assert parse(GOOD).metrics is None


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--listen", "9000"], "'9000' is not HOST:PORT"),
        (["--listen", "::1:9000"], "is not HOST:PORT"),
        (["--listen", "127.0.0.1:port"], "'port' is not a port"),
        (["--listen", "127.0.0.1:70000"], "'70000' is not a port"),
        (["--engine", "127.0.0.1:8000"], "is not a URL"),
        (["--engine", "ftp://engine:8000"], "is not a URL"),
        (["--engine", "http://engine:port"], "is not a URL"),
        (["--engine", "http://engine:0"], "is not a URL"),
        (["--engine", "http://user:password@engine"], "is not a URL"),
        (["--engine", "http://\u00e9ngine"], "is not a URL"),
        (["--engine", "http://engine/a\u007fb"], "is not a URL"),
        (["--drain-s", "nan"], "'nan' is not a number of seconds"),
        (["--drain-s", "-1"], "'-1' is not a number of seconds"),
        (["--tls-cert", "a.pem"], "--tls-cert and --tls-key belong together"),
        (["--tls-client-ca", "a.pem"], "--tls-client-ca needs --tls-cert"),
        (["--tls-cert", "nowhere.pem", "--tls-key", "b.pem"], "nowhere.pem: no such file"),
        (["--engine-tls-ca", "a.pem"], "--engine-tls-ca needs an --engine with https"),
        (["--engine-tls-server-name", "e.svc"], "--engine-tls-server-name needs --engine-tls-ca"),
        (["--engine", "https://e", "--engine-tls-ca", "nowhere.pem"], "nowhere.pem: no such file"),
        (["--engine-tls-cert", "a.pem"], "--engine-tls-cert and --engine-tls-key belong together"),
        (["--engine-tls-cert", "a", "--engine-tls-key", "b"], "--engine-tls-cert needs --engine-tls-ca"),
        (["--listen", "0.0.0.0:9000"], "reachable from other machines: give --tls-cert or --insecure"),
        (["--listen", "sidecar.example:9000"], "reachable from other machines"),
    ],
)
def test_an_invalid_flag_is_one_line(wrong: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([*GOOD, *wrong])
    assert ended.value.code == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "[::1]:1", "localhost:1", "127.8.0.1:1"])
def test_loopback_needs_no_tls(listen: str) -> None:
    assert str(parse([*GOOD, "--listen", listen]).listen) == listen


def test_without_tls_insecure_is_required() -> None:
    assert parse([*GOOD, "--listen", "0.0.0.0:9000", "--insecure"]).tls is None


def test_gateways_without_the_pools_keys_are_served_without_tls(tmp_path: Path) -> None:
    file = tmp_path / "pem"
    file.write_text("")
    tls = ["--tls-cert", str(file), "--tls-key", str(file), "--http-port", "0"]
    options = parse([*GOOD, *tls])
    assert options.http_tls == options.tls is not None
    options = parse([*GOOD, *tls, "--http-insecure"])
    assert (options.http_tls, options.tls is None) == (None, False)


async def test_an_engine_that_requires_a_certificate_gets_that_of_the_flags(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    ca, cert, key = (str(tmp_path / name) for name in ("ca.pem", "node.pem", "node.key"))

    async def engine(request: HttpRequest) -> None:
        await request.answer(b"well")

    async def asked(*flags: str) -> bytes | None:
        options = parse([*GOOD, "--engine", url, "--engine-tls-ca", ca, *flags])
        http = EngineHttp(url, "test", api_key="", connect_s=60.0, tls=engine_tls(options))
        try:
            return (await http.page("/health", 100))[1]
        finally:
            http.close()

    listener = listen("127.0.0.1", 0)
    url = f"https://{address_of(listener)}"
    async with serving(engine, listener, 0.0, tls=server_context(Path(cert), Path(key), Path(ca))):
        assert await asked("--engine-tls-cert", cert, "--engine-tls-key", key) == b"well"
        with pytest.raises(EngineGone, match="--ssl-cert-reqs 2"):
            await asked()
