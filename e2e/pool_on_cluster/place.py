"""The cluster of the story: its own, or the one of a kubeconfig.

Its own is created by e2e/cluster and removed at the end: GPUs are added to its nodes' capacity, images are
built here and loaded onto them, the ingress controller is Traefik. There, processes may be killed from
outside. Pods run on the first of its two nodes; the second is for steps that drain or lose a node.

A given one ($KUBECONFIG) needs: images at $PENSTOCK_E2E_REGISTRY/penstock/NAME:dev (operator, router,
picker, sidecar, simulator, and a stock Envoy as envoy), an ingress controller of the class
$PENSTOCK_E2E_INGRESS_CLASS that answers at $PENSTOCK_E2E_URL, and four `nvidia.com/gpu`. Steps that kill
processes of nodes are left out there.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread

CLUSTER = Path(__file__).resolve().parents[1] / "cluster"
NODES = 2
SLOW_S, FAST_S = 0.3, 0.05
"""How long a slow process is stopped, and then runs."""


@dataclass(frozen=True, slots=True)
class OwnCluster:
    """The one of e2e/cluster."""

    own: bool = True
    registry: str = "localhost"
    ingress_class: str = "traefik"

    def up(self) -> Path:
        _said(CLUSTER / "build")
        return Path(_said(CLUSTER / "cluster", "up", NODES))

    def load(self, *archives: Path) -> None:
        """Import images on the nodes."""
        _said(CLUSTER / "cluster", "load", *archives)

    def ingress_url(self) -> str:
        return f"http://{self.forward('198.18.0.1:30081').replace('127.0.0.1', 'localhost')}"

    def forward(self, address: str) -> str:
        return _said(CLUSTER / "cluster", "forward", address)

    def kill(self, pod: str, container: str, namespace: str) -> None:
        """kill -9 of a container's first process."""
        _said(CLUSTER / "cluster", "kill", pod, container, namespace)

    def kill_api_server(self) -> None:
        """kill -9; what starts it again does so after a second."""
        self._signal("kube-apiserver", "KILL")

    @contextmanager
    def stopped(self, process: str) -> Iterator[None]:
        """SIGSTOP of a process of the node, and SIGCONT at the end."""
        self._signal(process, "STOP")
        try:
            yield
        finally:
            self._signal(process, "CONT")

    @contextmanager
    def slow(self, process: str) -> Iterator[None]:
        """Let a process of the node run only now and then."""
        over = Event()

        def stop_again_and_again() -> None:
            while not over.is_set():
                with self.stopped(process):
                    over.wait(SLOW_S)
                over.wait(FAST_S)

        slowing = Thread(target=stop_again_and_again, name="slow", daemon=True)
        slowing.start()
        try:
            yield
        finally:
            over.set()
            slowing.join()

    def lose(self, number: int) -> None:
        """End a node without closing its connections."""
        _said(CLUSTER / "cluster", "lose", number)

    def _signal(self, process: str, name: str) -> None:
        _said(CLUSTER / "cluster", "signal", "1", process, name)

    def down(self) -> None:
        _said(CLUSTER / "cluster", "down")


@dataclass(frozen=True, slots=True)
class GivenCluster:
    """The one of a kubeconfig."""

    kubeconfig: Path
    own: bool = False
    registry: str = os.environ.get("PENSTOCK_E2E_REGISTRY", "")
    ingress_class: str = os.environ.get("PENSTOCK_E2E_INGRESS_CLASS", "traefik")

    def up(self) -> Path:
        return self.kubeconfig

    def ingress_url(self) -> str:
        return os.environ["PENSTOCK_E2E_URL"]

    def forward(self, address: str) -> str:
        raise NotImplementedError(f"{address} is not reachable from here")

    def down(self) -> None:
        return


Place = OwnCluster | GivenCluster


def place() -> Place:
    """The one that the environment names, else one's own."""
    if not (kubeconfig := os.environ.get("KUBECONFIG")):
        return OwnCluster()
    missing = [name for name in ("PENSTOCK_E2E_REGISTRY", "PENSTOCK_E2E_URL") if name not in os.environ]
    if missing:
        raise SystemExit(f"e2e: KUBECONFIG names a cluster; {' and '.join(missing)} have to be set as well")
    return GivenCluster(Path(kubeconfig))


def binaries() -> Path:
    """kubectl and helm, built where they are not there yet."""
    return Path(_said(CLUSTER / "build", "kubectl", "helm"))


def _said(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"e2e: {Path(str(command[0])).name} {' '.join(map(str, command[1:]))} failed")
    return done.stdout.strip()
