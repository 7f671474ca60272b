"""An etcd that is restored from a backup: resource versions go back, and watches get nothing for a while.

It has an API server of its own: the controllers of a restored one would be as deaf.
"""

import tempfile
from pathlib import Path

from kube.api import administrator
from kube.api_server import DEFINITION, api_server, backup, binaries, restore
from kube.kubectl import Kubectl
from operating.eventually import eventually
from operating.process import operator_process
from operating.world import World, pool_document


def replicas(world: World, pool: str) -> int | None:
    """Return the number of replicas in the spec of the pool's StatefulSet."""
    found = world.get("StatefulSet", f"{pool}-replica")
    return None if found is None else int(found["spec"]["replicas"])


def test_the_operator_accepts_a_restored_etcd_without_a_restart(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="penstock-restore-") as name,
        api_server(folder := Path(name) / "api") as kubeconfig,
        administrator(kubeconfig) as client,
    ):
        Kubectl(binaries() / "kubectl", kubeconfig, "default").out(
            "apply", "--server-side", "--filename", DEFINITION
        )
        world = World(client, "default")
        eventually(lambda: client.get("/apis/penstock.dev/v1alpha1/servingpools").is_success)
        with operator_process(kubeconfig, tmp_path / "log", "--resync-s=2") as operator:
            for pool in ("stays", "is-restored"):
                world.make("ServingPool", pool_document(pool))
            eventually(lambda: (replicas(world, "stays"), replicas(world, "is-restored")) == (2, 2))
            backup(folder, Path(name) / "copy")
            eventually(lambda: client.get("/readyz").is_success)
            world.change("ServingPool", "stays", {"spec": {"replicas": 5}})
            world.make("ServingPool", pool_document("came-later"))
            eventually(lambda: (replicas(world, "stays"), replicas(world, "came-later")) == (5, 2))
            world.delete("ServingPool", "is-restored")
            restore(folder, Path(name) / "copy")
            eventually(lambda: replicas(world, "stays") == 2)
            for pool in ("stays", "is-restored"):
                world.change("ServingPool", pool, {"spec": {"replicas": 3}})
            eventually(lambda: (replicas(world, "stays"), replicas(world, "is-restored")) == (3, 3))
            assert replicas(world, "came-later") is None
            assert operator.page("/health").status_code == 200
