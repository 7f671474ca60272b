"""`make e2e-plugin-image`: the plug-in's image does in a pod what it is for.

The image is built as e2e/cluster/image does, and its copying command run in its own root by the user that
pods run as. Then vLLM is started with the environment and the arguments that the operator gives it, in a
Python that finds nothing of Penstock but in the folder copied to, which is mounted read-only. A request is
answered, reports of its steps arrive at the telemetry socket, and what was compiled is kept in the pod's
writable home.

It needs root, for chroot and mounts, and `bench/vllm_environment serving`. Arguments differ from a pod's
where a CPU and a model in a folder want it: see `on_a_cpu`.
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
from typing import Any

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
"""On a quiet machine it takes half a minute; where others build, many."""
ANSWER_TOKENS = 12

IN_A_POD = f"""
set -eu
plugin=$1 telemetry=$2 home=$3; shift 3
mkdir -p {PLUGIN_FOLDER} {TELEMETRY_FOLDER} {CACHE_FOLDER}
mount --bind "$plugin" {PLUGIN_FOLDER}
mount -o remount,ro,bind {PLUGIN_FOLDER}
mount --bind "$telemetry" {TELEMETRY_FOLDER}
mount --bind "$home" {CACHE_FOLDER}
exec "$@"
"""

ON_A_CPU = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
}


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what runs is stopped on the way out
    with tempfile.TemporaryDirectory(prefix="penstock-plugin-image-") as name:
        folder = Path(name)
        wanted = engine(inputs(load_pool(CHECKOUT / "examples" / "tiny-vllm-pool.yaml")))
        root = unpacked(folder)
        plugin = copied(root, wanted.init[0])
        size_kb = sum(path.stat().st_size for path in plugin.rglob("*")) / 1000
        print(f"copied {size_kb:.0f} kB: {', '.join(sorted(path.name for path in plugin.iterdir()))}")
        serves(folder, plugin, wanted)


def inputs(pool: Pool) -> RenderContext:
    """Of the operator, for a pool with a built-in time model: nothing measures one here."""
    configured = pool.spec.engine.model_copy(update={"time_model": "llama-3-8b-a100"})
    spec = pool.spec.model_copy(update={"engine": configured})
    settings = OperatorSettings(
        "router", "picker", "envoy", "sidecar", "simulator", "vllm", "vllm-plugin", tls=False
    )
    owner = PoolOwner(pool.metadata.name, "default", "uid")
    return RenderContext(pool.model_copy(update={"spec": spec}), owner, settings, RenderFacts(1, None))


def unpacked(folder: Path) -> Path:
    """The image's root."""
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
    """This one without what would lead to the checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | dict(more)


def copied(root: Path, container: Mapping[str, Any]) -> Path:
    """What the init container leaves in the shared folder, run as pods run."""
    place = root / PLUGIN_FOLDER.removeprefix("/")
    place.mkdir(parents=True)
    os.chown(place, 65532, 65532)
    subprocess.run(["chroot", "--userspec=65532:65532", root, *container["command"]], check=True)
    return place


def serves(folder: Path, plugin: Path, wanted: EngineContainer) -> None:
    """vLLM with that folder answers and reports. Ends the program where it does not."""
    model, log = folder / "model", folder / "vllm.log"
    subprocess.run(
        [serving_python(), CHECKOUT / "examples/tiny_model.py", model],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with listen("127.0.0.1", 0) as free:
        port = str(free.getsockname()[1])
    telemetry, home = folder / "telemetry", folder / "home"
    telemetry.mkdir()
    home.mkdir()
    sidecar = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    sidecar.bind(str(telemetry / Path(TELEMETRY_SOCKET).name))
    command = [str(foreign_python(folder / "venv")), *on_a_cpu(wanted.container["args"], model, port)]
    variables = {each["name"]: each["value"] for each in wanted.container["env"]}
    places = [str(plugin), str(telemetry), str(home)]
    pod = ["unshare", "--mount", "sh", "-c", IN_A_POD, "sh", *places]
    began_s = time.monotonic()
    with sidecar, running([*pod, *command], environment(variables | ON_A_CPU), log) as process:
        until_healthy(f"http://127.0.0.1:{port}/health", process, log)
        print(f"ready in {time.monotonic() - began_s:.0f} s")
        answer = completed(f"http://127.0.0.1:{port}/v1/completions")
        generated = reported(sidecar)
    if answer != ANSWER_TOKENS or not generated:
        sys.exit(f"answered {answer} tokens, reported {generated}: not by the plug-in")
    if not list(home.rglob("*.nbi")):
        sys.exit("what the plug-in compiled is kept nowhere: every start of the container would do it again")
    print(f"vLLM with the image's plug-in answered {answer} tokens and reported their steps")


def on_a_cpu(arguments: Sequence[str], model: Path, port: str) -> list[str]:
    """The operator's arguments, for a server that is no command here and a model that is in a folder."""
    _, *rest = arguments
    rest[rest.index("--port") + 1] = port
    rest[rest.index("--host") + 1] = "127.0.0.1"
    return ["-m", "vllm.entrypoints.openai.api_server", "--model", str(model), *rest]


@contextmanager
def running(
    command: Sequence[str], configured: Mapping[str, str], log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process and all that it starts, gone after the block."""
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
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    sys.exit(f"vLLM does not start; its log ends with:\n{log.read_text()[-3000:]}")


def completed(url: str) -> int:
    """Tokens of an answer."""
    body = {"model": "tiny", "prompt": "a penstock", "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
    requested = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(requested, timeout=120) as reply:
        return int(json.load(reply)["usage"]["completion_tokens"])


def reported(sidecar: socket.socket) -> int:
    """Most tokens that a report says some request had; a socket that nobody reads keeps the first few."""
    most = 0
    while True:
        try:
            report = StepReport.FromString(sidecar.recv(1 << 20))
        except BlockingIOError:
            return most
        most = max([most, *report.generated_tokens])


if __name__ == "__main__":
    main()
