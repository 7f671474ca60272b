"""Starts a cluster and installs the operator."""

import json
import subprocess
from pathlib import Path

from pool_on_cluster.clusters import CLUSTER_SCRIPTS, LocalCluster, binaries
from pool_on_cluster.context import ROOT, ClusterContext
from pool_on_cluster.kubectl import Tools
from pool_on_cluster.pool import NAMESPACE
from pool_on_cluster.waiting import until

CHART, RELEASE, SYSTEM = ROOT / "charts" / "penstock", "penstock", "penstock-system"
IMAGES = ("operator", "router", "picker", "sidecar", "simulator")
GPUS = 8
SECOND_NODE = "node2"
"""Cordoned except in the steps that drain or lose it."""


def cluster(context: ClusterContext) -> None:
    """A cluster starts, with GPUs on its nodes."""
    context.tools_or_none = Tools(binaries(), context.cluster.up())
    if isinstance(context.cluster, LocalCluster):
        for node in ("node1", SECOND_NODE):
            _add_gpus(context.tools, node)
        context.tools.kubectl("cordon", SECOND_NODE)
    for name in (NAMESPACE, SYSTEM):
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        context.tools.kubectl("apply", "--filename=-", stdin=json.dumps(namespace))


def _add_gpus(tools: Tools, node: str) -> None:
    """Add simulated GPUs to a node's capacity, as a device plug-in would."""
    capacity = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(GPUS)}]
    tools.kubectl(
        "patch", "node", node, "--subresource=status", "--type=json", "--patch", json.dumps(capacity)
    )
    until(
        lambda: tools.get("node", node)["status"]["allocatable"].get("nvidia.com/gpu") == str(GPUS),
        f"{node}'s GPUs are allocatable",
    )


def images(context: ClusterContext) -> None:
    """Images are built and loaded onto the nodes."""
    if not isinstance(context.cluster, LocalCluster):
        return
    folder = context.results / "images"
    command = [
        str(CLUSTER_SCRIPTS / "image"),
        *IMAGES,
        "envoy",
        "envoy-gateway",
        "traefik",
        "--out",
        str(folder),
    ]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    sizes = (line.split() for line in output.splitlines())
    context.figures["image_mb"] = {
        name: {"packed": int(packed), "unpacked": int(unpacked)}
        for name, packed, _, _, unpacked, *_ in sizes
        if name in IMAGES
    }
    archives = sorted(folder.glob("*.tar"))
    context.cluster.load(*archives)
    for archive in archives:
        archive.unlink()


def ingress_controller(context: ClusterContext) -> None:
    """Traefik routes requests from outside the cluster."""
    if context.cluster.is_local:
        context.tools.kubectl("apply", "--filename", Path(__file__).parents[2] / "cluster" / "traefik.yaml")
        context.tools.kubectl(
            "rollout", "status", "deployment/traefik", "--namespace=ingress", "--timeout=120s"
        )
    context.url = context.cluster.ingress_url()


def chart(context: ClusterContext) -> None:
    """Helm installs Penstock, and the chart's test passes."""
    registry = context.cluster.registry
    envoy = f"images.envoy.registry={registry},images.envoy.repository=penstock/envoy,images.envoy.tag=dev"
    images = f"images.registry={registry},images.tag=dev,{envoy}"
    flags = ["--namespace", SYSTEM]
    context.tools.helm(
        "upgrade", "--install", RELEASE, CHART, *flags, "--set", images, "--wait", "--timeout=3m"
    )
    context.tools.helm("test", RELEASE, *flags, "--timeout=2m")
