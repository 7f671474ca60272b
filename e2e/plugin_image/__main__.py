"""`make e2e-plugin-image`: tests the plug-in's image as a pod uses it.

The image is built by e2e/cluster/image, and its copy command runs in its root as the user of pods. Then vLLM
starts with the environment and arguments of the operator, in a Python that finds Penstock only in the copied
folder, which is mounted read-only. The test checks that a request is answered, step reports arrive at the
telemetry socket, and compiled code is kept in the pod's writable home.

It needs root, for chroot and mounts, and `bench/vllm_environment serving`. `cpu_arguments` adapts the
operator's arguments to a CPU and a model in a folder.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from gpu.cpu import ENVIRONMENT as CPU_ENVIRONMENT
from penstock_operator.manifests.manifest import PoolOwner
from penstock_operator.objects.containers import TELEMETRY_FOLDER, TELEMETRY_SOCKET
from penstock_operator.objects.engine_container import CACHE_FOLDER, PLUGIN_FOLDER, EngineContainer, engine
from penstock_operator.objects.render_context import RenderContext, RenderFacts
from penstock_operator.settings import OperatorSettings
from penstock_pool import Pool, load_pool
from penstock_proto.telemetry_pb2 import StepReport
from penstock_runtime.serving import listen

from plugin_image.foreign_vllm import foreign_python, serving_python

CHECKOUT = Path(__file__).resolve().parents[2]
START_S = 900.0
"""Timeout of vLLM's start. On an idle machine it takes half a minute."""
ANSWER_TOKENS = 12

POD_SCRIPT = f"""
set -eu
plugin=$1 telemetry=$2 home=$3; shift 3
mkdir -p {PLUGIN_FOLDER} {TELEMETRY_FOLDER} {CACHE_FOLDER}
mount --bind "$plugin" {PLUGIN_FOLDER}
mount -o remount,ro,bind {PLUGIN_FOLDER}
mount --bind "$telemetry" {TELEMETRY_FOLDER}
mount --bind "$home" {CACHE_FOLDER}
exec "$@"
"""


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unwind, so that child processes are stopped
    with tempfile.TemporaryDirectory(prefix="penstock-plugin-image-") as name:
        folder = Path(name)
        engine_container = engine(inputs(load_pool(CHECKOUT / "examples" / "tiny-vllm-pool.yaml")))
        root = unpack_image(folder)
        plugin = copy_plugin(root, engine_container.init[0])
        size_kb = sum(path.stat().st_size for path in plugin.rglob("*")) / 1000
        print(f"copied {size_kb:.0f} kB: {', '.join(sorted(path.name for path in plugin.iterdir()))}")
        check_serving(folder, plugin, engine_container, prepare_folders(folder))


def inputs(pool: Pool) -> RenderContext:
    """Return the operator's inputs for a pool with a built-in time model, as none is measured here."""
    configured = pool.spec.engine.model_copy(update={"time_model": "llama-3-8b-a100"})
    spec = pool.spec.model_copy(update={"engine": configured})
    settings = OperatorSettings(
        "router", "picker", "envoy", "sidecar", "simulator", "vllm", "vllm-plugin", tls=False
    )
    owner = PoolOwner(pool.metadata.name, "default", "uid")
    return RenderContext(pool.model_copy(update={"spec": spec}), owner, settings, RenderFacts(1, None))


def unpack_image(folder: Path) -> Path:
    """Build the image and return its unpacked root."""
    subprocess.run(
        [CHECKOUT / "e2e/cluster/image", "vllm-plugin", "--out", folder], check=True, env=environment({})
    )
    root = folder / "root"
    with tarfile.open(folder / "vllm-plugin.tar") as image:
        (manifest,) = json.load(image.extractfile("manifest.json"))  # type: ignore[arg-type]
        for layer in manifest["Layers"]:
            with tarfile.open(fileobj=image.extractfile(layer)) as files:
                files.extractall(root, filter="tar")
    return root


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Return this process's environment without the path of the checkout, with more variables."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | dict(more)


def copy_plugin(root: Path, container: Mapping[str, Any]) -> Path:
    """Run the init container's command as the user of pods. Returns the shared folder."""
    place = root / PLUGIN_FOLDER.removeprefix("/")
    place.mkdir(parents=True)
    os.chown(place, 65532, 65532)
    subprocess.run(["chroot", "--userspec=65532:65532", root, *container["command"]], check=True)
    return place


class PodFolders(NamedTuple):
    """Folders of the pod. telemetry: for the socket of step reports. home: writable home of vLLM."""

    model: Path
    telemetry: Path
    home: Path


def prepare_folders(folder: Path) -> PodFolders:
    """Create the model and the pod's folders."""
    pod = PodFolders(folder / "model", folder / "telemetry", folder / "home")
    subprocess.run(
        [serving_python(), CHECKOUT / "examples/tiny_model.py", pod.model],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    pod.telemetry.mkdir()
    pod.home.mkdir()
    return pod


def check_serving(folder: Path, plugin: Path, engine_container: EngineContainer, pod: PodFolders) -> None:
    """Check that vLLM with the plug-in answers and reports. Exits with a message otherwise."""
    log = folder / "vllm.log"
    with listen("127.0.0.1", 0) as free:
        port = str(free.getsockname()[1])
    python = str(foreign_python(folder / "venv"))
    places = [str(plugin), str(pod.telemetry), str(pod.home)]
    arguments = cpu_arguments(engine_container.container["args"], pod.model, port)
    command = ["unshare", "--mount", "sh", "-c", POD_SCRIPT, "sh", *places, python, *arguments]
    variables = {each["name"]: each["value"] for each in engine_container.container["env"]}
    reports = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    reports.bind(str(pod.telemetry / Path(TELEMETRY_SOCKET).name))
    began_s = time.monotonic()
    with reports, running(command, environment(variables | CPU_ENVIRONMENT), log) as process:
        until_healthy(f"http://127.0.0.1:{port}/health", process, log)
        print(f"ready in {time.monotonic() - began_s:.0f} s")
        answer = complete(f"http://127.0.0.1:{port}/v1/completions")
        generated = reported_tokens(reports)
    if answer != ANSWER_TOKENS or not generated:
        sys.exit(f"answered {answer} tokens, reported {generated}: the plug-in did not run")
    if not list(pod.home.rglob("*.nbi")):
        sys.exit("the plug-in's compiled code is not kept, so every start of the container compiles it again")
    print(f"vLLM with the image's plug-in answered {answer} tokens and reported their steps")


def cpu_arguments(arguments: Sequence[str], model: Path, port: str) -> list[str]:
    """Return the operator's arguments for the server module on loopback, with a model in a folder."""
    _, *rest = arguments
    rest[rest.index("--port") + 1] = port
    rest[rest.index("--host") + 1] = "127.0.0.1"
    return ["-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *rest]


@contextmanager
def running(
    command: Sequence[str], configured: Mapping[str, str], log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process. It and its children are stopped after the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=dict(configured), stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process
    finally:
        for number in (signal.SIGINT, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def until_healthy(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until the server answers. Exits with the end of its log if it ends or does not start in time."""
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    sys.exit(f"vLLM did not start; its log ends with:\n{log.read_text()[-3000:]}")


def complete(url: str) -> int:
    """Send a request. Returns the tokens of its answer."""
    body = {"model": "tiny", "prompt": "a penstock", "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
    requested = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(requested, timeout=120) as reply:
        return int(json.load(reply)["usage"]["completion_tokens"])


def reported_tokens(reports: socket.socket) -> int:
    """Return the largest number of tokens of a request in the step reports in the socket's buffer."""
    most = 0
    while True:
        try:
            report = StepReport.FromString(reports.recv(1 << 20))
        except BlockingIOError:
            return most
        most = max([most, *report.generated_tokens])


if __name__ == "__main__":
    main()
