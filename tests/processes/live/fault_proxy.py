"""A proxy between processes that does harm on demand: Toxiproxy, built by `e2e/cluster/toxiproxy`."""

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from patience import until

BUILD = Path(__file__).resolve().parents[3] / "e2e/cluster/toxiproxy"


class FaultProxy:
    """Ways to processes by name, all sound at first."""

    def __init__(self, log: Path) -> None:
        server = subprocess.run([BUILD], stdout=subprocess.PIPE, check=True, text=True).stdout.strip()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with log.open("ab") as out:
            self._process = subprocess.Popen([server, "-port", str(port)], stdout=out, stderr=out)
        self._http = httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        self._proxies: dict[str, tuple[str, str]] = {}
        until(self._answers, "toxiproxy answers")

    def close(self) -> None:
        """End the proxy, and with it all connections."""
        self._http.close()
        self._process.kill()
        self._process.wait()

    def address_through_proxy(self, what: str, address: str) -> str:
        """Return the address by which a process is reached through the proxy."""
        if what not in self._proxies:
            name = what.replace(" ", "-")
            made = self._post("/proxies", {"name": name, "listen": "127.0.0.1:0", "upstream": address})
            self._proxies[what] = name, made["listen"]
        return self._proxies[what][1]

    @contextmanager
    def harm(self, what: str, kind: str, **attributes: Any) -> Iterator[None]:
        """Harm both directions of the connections to a process, as Toxiproxy names the kinds."""
        name = self._proxies[what][0]
        for stream in ("upstream", "downstream"):
            toxic = {"name": stream, "type": kind, "stream": stream, "attributes": attributes}
            self._post(f"/proxies/{name}/toxics", toxic)
        try:
            yield
        finally:
            for stream in ("upstream", "downstream"):
                self._http.delete(f"/proxies/{name}/toxics/{stream}").raise_for_status()

    @contextmanager
    def half_open(self, what: str) -> Iterator[None]:
        """Drop all bytes while connections stay open; they end afterwards, because bytes were lost."""
        with self.harm(what, "timeout", timeout=0):
            yield
            self.switch(what, on=False)
        self.switch(what, on=True)

    @contextmanager
    def cut(self, what: str) -> Iterator[None]:
        """End all connections to a process, and take no new ones."""
        self.switch(what, on=False)
        try:
            yield
        finally:
            self.switch(what, on=True)

    def switch(self, what: str, *, on: bool) -> None:
        """Take connections to a process, or end them all."""
        self._post(f"/proxies/{self._proxies[what][0]}", {"enabled": on})

    def _post(self, path: str, what: dict[str, Any]) -> dict[str, Any]:
        answer = self._http.post(path, json=what)
        answer.raise_for_status()
        made: dict[str, Any] = answer.json()
        return made

    def _answers(self) -> bool:
        try:
            return self._http.get("/version").status_code == 200
        except httpx2.HTTPError:
            return False
