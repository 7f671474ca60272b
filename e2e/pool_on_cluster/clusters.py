"""The cluster that the test runs on: a local one, or an existing one.

The local cluster is created by e2e/cluster and removed at the end. GPUs are added to its nodes' capacity,
images are built and loaded onto them, and the ingress controller is Traefik. Steps may kill processes of its
nodes. Pods run on the first of its two nodes; the second is for steps that drain or lose a node.

An existing cluster ($KUBECONFIG) needs: images at $PENSTOCK_E2E_REGISTRY/penstock/NAME:dev (operator, router,
picker, sidecar, simulator, and an unmodified Envoy as envoy), an ingress controller of the class
$PENSTOCK_E2E_INGRESS_CLASS that serves $PENSTOCK_E2E_URL, and four `nvidia.com/gpu`. Steps that kill
processes of nodes are skipped there.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

CLUSTER_SCRIPTS = Path(__file__).resolve().parents[1] / "cluster"
NODES = 2
STOPPED_S, RUNNING_S = 0.3, 0.05
"""How long a slowed process is stopped, and how long it then runs, in turns."""


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """The cluster that e2e/cluster creates."""

    is_local: bool = True
    registry: str = "localhost"
    ingress_class: str = "traefik"

    def up(self) -> Path:
        _output_of(CLUSTER_SCRIPTS / "build")
        return Path(_output_of(CLUSTER_SCRIPTS / "cluster", "up", NODES))

    def load(self, *archives: Path) -> None:
        """Import images on all nodes."""
        _output_of(CLUSTER_SCRIPTS / "cluster", "load", *archives)

    def ingress_url(self) -> str:
        return f"http://{self.forward('198.18.0.1:30081').replace('127.0.0.1', 'localhost')}"

    def forward(self, address: str) -> str:
        return _output_of(CLUSTER_SCRIPTS / "cluster", "forward", address)

    def kill(self, pod: str, container: str, namespace: str) -> None:
        """Kill a container's first process with SIGKILL."""
        _output_of(CLUSTER_SCRIPTS / "cluster", "kill", pod, container, namespace)

    def hang(self, pod: str, container: str, namespace: str) -> None:
        """Stop a container's first process with SIGSTOP."""
        _output_of(CLUSTER_SCRIPTS / "cluster", "hang", pod, container, namespace)

    def kill_api_server(self) -> None:
        """Kill the API server with SIGKILL. It is restarted after a second."""
        self._signal("kube-apiserver", "KILL")

    @contextmanager
    def stopped(self, process: str) -> Iterator[None]:
        """Stop a process of node 1 with SIGSTOP until the block ends."""
        self._signal(process, "STOP")
        try:
            yield
        finally:
            self._signal(process, "CONT")

    @contextmanager
    def slow(self, process: str) -> Iterator[None]:
        """Slow a process of node 1 down: stop it most of the time until the block ends."""
        ended = Event()

        def stop_repeatedly() -> None:
            while not ended.is_set():
                with self.stopped(process):
                    ended.wait(STOPPED_S)
                ended.wait(RUNNING_S)

        thread = Thread(target=stop_repeatedly, name="slow", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def lose_node(self, number: int) -> None:
        """Kill a node without closing its connections."""
        _output_of(CLUSTER_SCRIPTS / "cluster", "lose", number)

    def _signal(self, process: str, name: str) -> None:
        _output_of(CLUSTER_SCRIPTS / "cluster", "signal", "1", process, name)

    def down(self) -> None:
        _output_of(CLUSTER_SCRIPTS / "cluster", "down")


@dataclass(frozen=True, slots=True)
class ExistingCluster:
    """The cluster of a kubeconfig."""

    kubeconfig: Path
    is_local: bool = False
    registry: str = os.environ.get("PENSTOCK_E2E_REGISTRY", "")
    ingress_class: str = os.environ.get("PENSTOCK_E2E_INGRESS_CLASS", "traefik")

    def up(self) -> Path:
        return self.kubeconfig

    def ingress_url(self) -> str:
        return os.environ["PENSTOCK_E2E_URL"]

    def forward(self, address: str) -> str:
        raise NotImplementedError(f"{address} is not reachable on an existing cluster")

    def down(self) -> None:
        return


Cluster = LocalCluster | ExistingCluster


def choose_cluster() -> Cluster:
    """Return the cluster that the environment names, otherwise a local one."""
    if not (kubeconfig := os.environ.get("KUBECONFIG")):
        return LocalCluster()
    missing = [name for name in ("PENSTOCK_E2E_REGISTRY", "PENSTOCK_E2E_URL") if name not in os.environ]
    if missing:
        raise SystemExit(f"e2e: KUBECONFIG is set, so {' and '.join(missing)} must be set too")
    return ExistingCluster(Path(kubeconfig))


def binaries() -> Path:
    """Return the folder of kubectl and helm, and build them if they are missing."""
    return Path(_output_of(CLUSTER_SCRIPTS / "build", "kubectl", "helm"))


def _output_of(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"e2e: {Path(str(command[0])).name} {' '.join(map(str, command[1:]))} failed")
    return done.stdout.strip()
