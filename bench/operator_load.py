"""Measures the operator's reconciliations, CPU and memory, with no pools and with a hundred.

A real API server with its controllers and fake nodes, on which pods become Ready without running; the
operator is the real process, with the rights of an administrator. Quantiles are read from its own
histogram, so they are as fine as its buckets. CPU is a share of one core; the rest of the machine
runs the cluster.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import yaml

ROOT = Path(__file__).resolve().parents[1]
CLUSTER = ROOT / "e2e" / "cluster"
RESULT = ROOT / "bench" / "results" / "operator.txt"
POOLS = "/apis/penstock.dev/v1alpha1/namespaces/default/servingpools"
RECONCILIATIONS = "penstock_operator_reconcile_seconds"
PATIENCE_S = 900
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """CPU seconds of a process so far, and its current memory."""

    cpu_s: float
    rss_mb: float
    at_s: float


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pools", type=int, default=100)
    parser.add_argument("--rest-s", type=float, default=60.0, help="seconds of CPU measurement at rest")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        lines = measured(Path(folder), args.pools, args.rest_s)
    text = "\n".join(lines) + "\n"
    print(text, end="")
    RESULT.write_text(text)
    return 0


def measured(folder: Path, pools: int, rest_s: float) -> list[str]:
    """Run the whole bench, and return its lines."""
    with (
        cluster(folder / "api", nodes=1 + pools // 20) as kubeconfig,
        operator(kubeconfig, folder) as running,
    ):
        api = administrator(kubeconfig)
        busy = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before it began"
        lines = [f"{pools} pools of 2 replicas and 2 routers each, on fake nodes; {busy}", ""]
        lines.append(f"at rest, no pools       {idle(running, rest_s)}")
        lines.append(f"all created and Ready      {create_pools(api, running, pools)}")
        lines.append(f"at rest, {pools} pools     {idle(running, rest_s)}")
        lines.append(f"policy of all changed   {change_pools(api, running, pools)}")
        return lines


def create_pools(api: httpx2.Client, running: "Running", pools: int) -> str:
    """Create the pools, wait until all are Ready, and return the costs."""
    before, began = running.histogram(), running.usage()
    for number in range(pools):
        api.post(POOLS, json=document(f"pool-{number:03}")).raise_for_status()
    until(lambda: count(api, "ReplicasReady", "True") == count(api, "RouterReady", "True") == pools)
    return f"{cost(began, running.usage())}; {reconcile_durations(before, running.histogram())}"


def change_pools(api: httpx2.Client, running: "Running", pools: int) -> str:
    """Change every pool, wait until all pods are replaced, and return the costs."""
    before, began = running.histogram(), running.usage()
    for number in range(pools):
        patch = {"spec": {"scheduling": {"policy": "fcfs"}}}
        headers = {"content-type": "application/merge-patch+json"}
        api.patch(f"{POOLS}/pool-{number:03}", json=patch, headers=headers).raise_for_status()
    until(lambda: policies(api) == {"fcfs"} and count(api, "Progressing", "False") == pools)
    return f"{cost(began, running.usage())}; {reconcile_durations(before, running.histogram())}"


def idle(running: "Running", rest_s: float) -> str:
    """Return CPU and memory without any changes."""
    before, began = running.histogram(), running.usage()
    time.sleep(rest_s)
    return f"{cost(began, running.usage())}; {reconcile_durations(before, running.histogram())}"


def cost(before: ProcessUsage, after: ProcessUsage) -> str:
    """Return time, CPU and memory between two readings."""
    took_s, cpu_s = after.at_s - before.at_s, after.cpu_s - before.cpu_s
    return f"{took_s:5.1f} s, CPU {cpu_s:5.1f} s ({cpu_s / took_s:5.1%} of a core), {after.rss_mb:3.0f} MB"


def reconcile_durations(before: dict[float, float], after: dict[float, float]) -> str:
    """Return the number and durations of reconciliations between two histograms."""
    each = {bound: after[bound] - before.get(bound, 0) for bound in sorted(after)}
    if not each[float("inf")]:
        return "no reconciliations"
    p50, p99 = (1000 * quantile(each, share) for share in (0.5, 0.99))
    return f"{each[float('inf')]:3.0f} reconciliations, p50 {p50:.0f} ms, p99 {p99:.0f} ms"


def quantile(cumulative: dict[float, float], share: float) -> float:
    """Return a quantile by linear interpolation within its bucket, as Prometheus does."""
    total, below_s, below = cumulative[float("inf")], 0.0, 0.0
    for bound_s, number in cumulative.items():
        if number >= share * total:
            if bound_s == float("inf"):
                return below_s
            return below_s + (bound_s - below_s) * (share * total - below) / max(number - below, 1)
        below_s, below = bound_s, number
    return below_s


class Running:
    """The operator's process."""

    def __init__(self, process: subprocess.Popen[bytes], address: str) -> None:
        self._pid, self._address = process.pid, address

    def usage(self) -> ProcessUsage:
        """Read CPU and memory from /proc."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{self._pid}/status").read_text()
        rss_kb = int(re.findall(r"VmRSS:\s+(\d+)", status)[0])
        return ProcessUsage((int(fields[11]) + int(fields[12])) / TICKS, rss_kb / 1024, time.monotonic())

    def histogram(self) -> dict[float, float]:
        """Return cumulative counts of reconciliations by bucket bound, in seconds."""
        page = httpx2.get(f"http://{self._address}/metrics", timeout=30, trust_env=False).text
        found = re.findall(rf'{RECONCILIATIONS}_bucket{{le="([^"]+)"}} (\S+)', page)
        return {float(bound): float(number) for bound, number in found}


@contextmanager
def cluster(folder: Path, nodes: int) -> Iterator[Path]:
    """Run an API server with the ServingPool CRD, and yield its kubeconfig."""
    done = subprocess.run(
        [CLUSTER / "apiserver", "up", folder, "--kwok", str(nodes)],
        check=True,
        capture_output=True,
        text=True,
    )
    try:
        kubeconfig = Path(done.stdout.strip())
        bin_folder = subprocess.run(
            [CLUSTER / "build", "--dir"], check=True, capture_output=True, text=True
        ).stdout.strip()
        kubectl = [
            f"{bin_folder}/kubectl",
            f"--kubeconfig={kubeconfig}",
            "apply",
            "--server-side",
            "--filename",
        ]
        subprocess.run([*kubectl, str(ROOT / "crds" / "servingpools.yaml")], check=True, capture_output=True)
        yield kubeconfig
    finally:
        subprocess.run([CLUSTER / "apiserver", "down", folder], check=True)


@contextmanager
def operator(kubeconfig: Path, folder: Path) -> Iterator[Running]:
    """Run the operator, and yield it when it serves."""
    images = {
        f"PENSTOCK_{name}_IMAGE": "x" for name in ("ROUTER", "SIDECAR", "SIMULATOR", "VLLM", "VLLM_PLUGIN")
    }
    log = folder / "operator.log"
    with log.open("wb") as sink:
        command = [sys.executable, "-m", "penstock_operator.main", "--host=127.0.0.1", "--port=0"]
        environment = os.environ | images | {"KUBECONFIG": str(kubeconfig)}
        process = subprocess.Popen(command, env=environment, stdout=sink, stderr=sink)
    try:
        until(lambda: re.search(r"address=\S+ .*event=ready", log.read_text()) is not None)
        yield Running(process, re.findall(r"address=(\S+) ", log.read_text())[0])
    finally:
        process.terminate()
        process.wait(30)


def administrator(kubeconfig: Path) -> httpx2.Client:
    """Return an HTTP client of the API server with the rights of an administrator."""
    config: dict[str, Any] = yaml.safe_load(kubeconfig.read_text())
    server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    return httpx2.Client(
        base_url=server["server"],
        headers={"authorization": f"Bearer {user['token']}"},
        verify=server["certificate-authority"],
        timeout=60,
        trust_env=False,
    )


def document(name: str) -> dict[str, Any]:
    """Return the document of a pool."""
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": name},
        "spec": {
            "model": {"name": "meta-llama/Llama-3.1-8B-Instruct"},
            "engine": {"type": "simulated", "timeModel": "llama-3-8b-a100", "kvCacheTokens": 43296},
            "replicas": 2,
            "tiers": [{"name": "chat", "slo": {"ttft": "1s", "tpot": "100ms"}}],
        },
    }


def statuses(api: httpx2.Client) -> list[dict[str, Any]]:
    """Return the status of every pool."""
    return [pool.get("status", {}) for pool in api.get(POOLS).raise_for_status().json()["items"]]


def count(api: httpx2.Client, type_: str, status: str) -> int:
    """Return the number of pools with this condition."""
    return sum(
        (condition["type"], condition["status"]) == (type_, status)
        for reported in statuses(api)
        for condition in reported.get("conditions", ())
    )


def policies(api: httpx2.Client) -> set[str]:
    """Return the policies in the pools' status."""
    return {reported.get("policy", "") for reported in statuses(api)}


def until(holds: Any) -> None:
    """Wait until the condition holds, for up to `PATIENCE_S`."""
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > end_s:
            raise TimeoutError
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
