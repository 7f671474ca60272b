"""From no cluster to an installed operator."""

import json
import subprocess
from pathlib import Path

from pool_on_cluster.kubectl import Tools
from pool_on_cluster.place import CLUSTER, OwnCluster, binaries
from pool_on_cluster.pool import NAMESPACE
from pool_on_cluster.waiting import until
from pool_on_cluster.world import ROOT, World

CHART, RELEASE, SYSTEM = ROOT / "charts" / "penstock", "penstock", "penstock-system"
IMAGES = ("operator", "router", "picker", "sidecar", "simulator")
GPUS = 8
SECOND_NODE = "node2"
"""Cordoned, but for the steps that drain or lose it."""


def cluster(world: World) -> None:
    """A cluster starts, with GPUs on its nodes."""
    world.tools_or_none = Tools(binaries(), world.place.up())
    if isinstance(world.place, OwnCluster):
        for node in ("node1", SECOND_NODE):
            _pretend_gpus(world.tools, node)
        world.tools.kubectl("cordon", SECOND_NODE)
    for name in (NAMESPACE, SYSTEM):
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        world.tools.kubectl("apply", "--filename=-", stdin=json.dumps(namespace))


def _pretend_gpus(tools: Tools, node: str) -> None:
    """Patch a node's capacity, as a device plug-in would."""
    capacity = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(GPUS)}]
    tools.kubectl(
        "patch", "node", node, "--subresource=status", "--type=json", "--patch", json.dumps(capacity)
    )
    until(
        lambda: tools.get("node", node)["status"]["allocatable"].get("nvidia.com/gpu") == str(GPUS),
        f"{node}'s GPUs allocatable",
    )


def images(world: World) -> None:
    """Images are built and loaded onto the nodes."""
    if not isinstance(world.place, OwnCluster):
        return
    folder = world.results / "images"
    command = [str(CLUSTER / "image"), *IMAGES, "envoy", "traefik", "--out", str(folder)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    sizes = (line.split() for line in output.splitlines())
    world.figures["image_mb"] = {
        name: {"packed": int(packed), "unpacked": int(unpacked)}
        for name, packed, _, _, unpacked, *_ in sizes
        if name in IMAGES
    }
    archives = sorted(folder.glob("*.tar"))
    world.place.load(*archives)
    for archive in archives:
        archive.unlink()


def ingress_controller(world: World) -> None:
    """Traefik routes requests from outside the cluster."""
    if world.place.own:
        world.tools.kubectl("apply", "--filename", Path(__file__).parents[2] / "cluster" / "traefik.yaml")
        world.tools.kubectl(
            "rollout", "status", "deployment/traefik", "--namespace=ingress", "--timeout=120s"
        )
    world.url = world.place.ingress_url()


def chart(world: World) -> None:
    """Helm installs Penstock, and the chart's test passes."""
    registry = world.place.registry
    envoy = f"images.envoy.registry={registry},images.envoy.repository=penstock/envoy,images.envoy.tag=dev"
    images = f"images.registry={registry},images.tag=dev,{envoy}"
    where = ["--namespace", SYSTEM]
    world.tools.helm(
        "upgrade", "--install", RELEASE, CHART, *where, "--set", images, "--wait", "--timeout=3m"
    )
    world.tools.helm("test", RELEASE, *where, "--timeout=2m")
