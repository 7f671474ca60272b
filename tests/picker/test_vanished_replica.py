"""A replica whose machine vanishes behind Envoy: no packet of it arrives any more, not even a reset."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from gateway.envoy import ext_authz, gateway
from penstock_runtime.envoy import bootstrap

SERVER = """
import http.server, sys, threading

class Replica(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        print(self.path, flush=True)
        if self.path == "/v1/held":
            threading.Event().wait()
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *given):
        pass

server = http.server.ThreadingHTTPServer((sys.argv[1], 7100), Replica)
print("listening", flush=True)
server.serve_forever()
"""
NO_ACCESS = os.geteuid() != 0 or shutil.which("ip") is None


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine with one HTTP server. name: of its network namespace."""

    name: str
    host: str
    server: subprocess.Popen[str]

    def line(self) -> str:
        """Return the next line of its log: the path of a request."""
        assert self.server.stdout is not None
        return self.server.stdout.readline().strip()

    def vanish(self) -> None:
        """Take away its network."""
        _ip("netns", "exec", self.name, "ip", "link", "set", "inside", "down")


@contextmanager
def machine() -> Iterator[Machine]:
    """A network namespace, linked to this one, in a subnet for tests of networks (RFC 2544)."""
    pid = os.getpid()
    name, outside, base = f"penstock-{pid}", f"ps{pid}", f"198.18.{pid // 64 % 256}.{pid % 64 * 4}"
    net, _, last = base.rpartition(".")
    here, host = f"{net}.{int(last) + 1}", f"{net}.{int(last) + 2}"
    _ip("netns", "add", name)
    try:
        _ip("link", "add", outside, "type", "veth", "peer", "name", "inside", "netns", name)
        _ip("addr", "add", f"{here}/30", "dev", outside)
        _ip("link", "set", outside, "up")
        _ip("netns", "exec", name, "ip", "addr", "add", f"{host}/30", "dev", "inside")
        _ip("netns", "exec", name, "ip", "link", "set", "inside", "up")
        command = ["ip", "netns", "exec", name, sys.executable, "-c", SERVER, host]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            found = Machine(name, host, server)
            assert found.line() == "listening"
            try:
                yield found
            finally:
                server.kill()
    finally:
        _ip("netns", "delete", name)  # with its link


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@pytest.mark.skipif(NO_ACCESS, reason="needs root and `ip`, for a network namespace")
async def test_requests_at_a_machine_that_vanished_are_answered_within_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, shorter_s in (("SILENT_S", 1), ("VANISHED_S", 2)):
        monkeypatch.setattr(bootstrap, name, shorter_s)
    with machine() as replica:
        no_picker = ext_authz("127.0.0.1:1", fail_open=True)
        async with gateway(tmp_path, no_picker, [f"{replica.host}:7100"]) as envoy:
            waiting = asyncio.create_task(envoy.http.get("/v1/held"))
            assert await asyncio.to_thread(replica.line) == "/v1/held"
            assert (await envoy.http.get("/v1/quick")).status_code == 200  # leaves an open connection
            replica.vanish()
            for answer in await asyncio.gather(waiting, envoy.http.get("/v1/held")):
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replicas")
                assert "connection_termination" in answer.json()["error"]["message"]
                assert answer.headers["retry-after"] == "1"
