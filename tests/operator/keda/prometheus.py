"""A real Prometheus with a past that a test has written, and promtool, which writes it."""

import re
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 60.0
LISTENS = re.compile(r'msg="Listening on".* address=(\S+)')
READY = "Server is ready to receive web requests"


def binaries() -> Path:
    """Return the folder with both programs. Builds them, in minutes, if the machine lacks them."""
    built = subprocess.run([ROOT / "e2e/cluster/prometheus"], check=True, stdout=subprocess.PIPE, text=True)
    return Path(built.stdout.strip())


@contextmanager
def prometheus(folder: Path, samples: Iterable[str]) -> Iterator[str]:
    """Yields its URL. samples: lines of OpenMetrics with timestamps, each series in order of time."""
    tools, past = binaries(), folder / "past.om"
    past.write_text("\n".join([*samples, "# EOF", ""]))
    blocks = f"tsdb create-blocks-from openmetrics {past} {folder}/data".split()
    subprocess.run([tools / "promtool", *blocks], check=True, capture_output=True, timeout=PATIENCE_S)
    (folder / "prometheus.yml").write_text("global: {}\n")
    flags = [
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/data",
        "--storage.tsdb.retention.time=10000d",
        "--web.listen-address=127.0.0.1:0",
    ]
    with subprocess.Popen([tools / "prometheus", *flags], stderr=subprocess.PIPE, text=True) as process:
        late = threading.Timer(PATIENCE_S, process.kill)
        late.start()
        try:
            yield f"http://{_address(process)}"
        finally:
            late.cancel()
            process.kill()


def _address(process: subprocess.Popen[str]) -> str:
    """Return the server's address once it is ready. Its later output is dropped."""
    assert process.stderr is not None
    output, address, ready = [], None, False
    for line in process.stderr:  # it listens before it is ready or after, as it happens
        output.append(line)
        ready = ready or READY in line
        if found := LISTENS.search(line):
            address = found.group(1).strip('"')
        if ready and address is not None:
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return address
    raise AssertionError("no Prometheus: " + "".join(output))
