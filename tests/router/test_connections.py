"""Connections to replicas and to the API server: over TLS where it is asked for, tried again ever later."""

import socket
from pathlib import Path
from random import Random

import pytest
from authority import make_certificates
from penstock_routing.applications.shared_limits import LEASE_S, RENEW_S
from penstock_routing.connections.api_server import KEEP_ALIVE
from penstock_routing.connections.backoff import Backoff
from penstock_routing.connections.replica_channel import Tls, connect_by
from penstock_routing.discovery.endpoints import Fixed
from penstock_routing.response.error_headers import common_error_headers
from penstock_runtime.grpc.server import grpc_serving
from penstock_runtime.serving import address_of, listen
from penstock_runtime.tls import server_context


async def test_a_new_connection_uses_the_last_valid_certificates(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    ca, cert, key = tmp_path / "ca.pem", tmp_path / "node.pem", tmp_path / "node.key"
    listener = listen("127.0.0.1", 0)
    async with grpc_serving({}, listener, server_context(cert, key, ca, "h2")):
        connect = connect_by(Tls(ca, cert, key))
        async with connect(address_of(listener)):
            key.unlink()
        async with connect(address_of(listener)):
            make_certificates(tmp_path)  # of another authority
        async with connect(address_of(listener)):
            pass


def test_certificates_that_are_missing_at_the_start_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        connect_by(Tls(tmp_path / "ca.crt"))


def test_waits_double_up_to_two_seconds_and_are_reset() -> None:
    backoff = Backoff(Random(1))
    for _ in range(2):
        for most_s in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0):
            assert most_s / 2 <= backoff.wait_s() <= most_s
        backoff.reset()


def test_waits_are_spread_over_their_upper_half() -> None:
    waits_s = [Backoff(Random(seed)).wait_s() for seed in range(200)]
    assert min(waits_s) < 0.027 and max(waits_s) > 0.048


def test_a_lost_api_server_is_noticed_within_25_s() -> None:
    options = {option: value for _, option, value in KEEP_ALIVE}
    assert options[socket.SO_KEEPALIVE] == 1
    probes_s = options[socket.TCP_KEEPINTVL] * options[socket.TCP_KEEPCNT]
    assert options[socket.TCP_KEEPIDLE] + probes_s == 25
    assert options[socket.TCP_KEEPCNT] == 3


def test_a_lease_outlasts_two_calls_that_fail() -> None:
    assert RENEW_S * 3 == LEASE_S


async def test_replicas_from_the_command_line_never_change_and_are_never_out_of_date() -> None:
    source = Fixed({"r0": "h:1"})
    sets = [found async for found in source.sets()]
    assert [{name: endpoint.address for name, endpoint in found.items()} for found in sets] == [{"r0": "h:1"}]
    assert (source.connected, source.malformed) == (True, 0)


@pytest.mark.parametrize(
    ("status", "final"),
    [
        *[(status, True) for status in (400, 401, 404, 413, 422, 499)],
        *[(status, False) for status in (399, 408, 409, 425, 429, 500, 503)],
    ],
)
def test_an_invalid_request_is_not_retried(status: int, final: bool) -> None:
    assert dict(common_error_headers(status, "id")) == {"x-request-id": "id"} | (
        {"x-should-retry": "false"} if final else {}
    )
    assert dict(common_error_headers(status, "id", [("x-should-retry", "true")])) == {"x-request-id": "id"}
