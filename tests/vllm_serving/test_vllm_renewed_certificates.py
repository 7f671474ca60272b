"""An engine's certificate is renewed in its mounted Secret: vLLM's server shows each new one."""

import os
import shutil
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from authority import make_certificates
from patience import until
from penstock_operator.objects.engine_container import TLS_ENVIRONMENT
from served import python

SERVER = Path(__file__).parent / "served" / "renewed_server.py"
RENEWALS = 3
YEAR_S = 365 * 86400


class MountedSecret:
    """A folder whose files change as the kubelet changes them: links to a link, which is replaced."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._versions = folder, 0
        self.cert, self.key = folder / "node.pem", folder / "node.key"
        self.renew()
        for file in (self.cert, self.key):
            file.symlink_to(f"..data/{file.name}")

    def renew(self) -> None:
        """Put a new version in place of the last one, and remove that."""
        data, link = self._folder / "..data", self._folder / "..data_tmp"
        last = data.resolve()
        self._versions += 1
        version = self._folder / f"..version_{self._versions}"
        version.mkdir()
        make_certificates(version)
        for file in version.iterdir():
            os.utime(file, (self._versions * YEAR_S,) * 2)
        link.symlink_to(version.name)
        link.rename(data)
        if self._versions > 1:
            shutil.rmtree(last)

    def current(self) -> str:
        """The certificate that is mounted."""
        return self.cert.read_text().strip()


Start = Callable[[MountedSecret, dict[str, str]], int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the server and returns its port."""
    processes: list[subprocess.Popen[str]] = []

    def start(secret: MountedSecret, environment: dict[str, str]) -> int:
        with (tmp_path / "server.log").open("w") as log:
            process = subprocess.Popen(
                [python.path(), SERVER, secret.cert, secret.key],
                env={**os.environ, **environment},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        processes.append(process)
        assert process.stdout is not None
        return int(process.stdout.readline())

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_every_renewed_certificate_is_used(start: Start, tmp_path: Path) -> None:
    secret = MountedSecret(tmp_path)
    port = start(secret, TLS_ENVIRONMENT)

    def shown() -> bool:
        return ssl.get_server_certificate(("127.0.0.1", port)).strip() == secret.current()

    assert shown()
    for _ in range(RENEWALS):
        secret.renew()
        until(shown, "the renewed certificate", interval_s=0.1)
