"""A pool reaches its desired state despite failures of the API server, in virtual time."""

import asyncio
import random
from copy import deepcopy
from typing import Any

from clusterless.memory_api import MemoryApi
from clusterless.pool import KEY, REF, pool_document
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from penstock_operator.cluster.api_client import ApiStatusError, ApiUnreachable
from penstock_operator.cluster.cache import Cache
from penstock_operator.cluster.kinds import POOL, WATCHED
from penstock_operator.manifests.manifest import Manifest, PoolOwner, Ref
from penstock_operator.metrics import OperatorMetrics
from penstock_operator.reconcile.desired_state import desired_state
from penstock_operator.reconcile.drift import differences
from penstock_operator.reconcile.reconciler import Reconciler
from penstock_operator.settings import OperatorSettings
from penstock_operator.status.conditions import condition
from penstock_pool import parse_pool
from prometheus_client import CollectorRegistry
from virtual_time import now_s, run

SETTINGS = OperatorSettings(
    "router:1", "picker:1", "envoy:1", "sidecar:1", "simulator:1", "vllm:1", "plugin:1"
)
TROUBLE_S, CALM_S = 40.0, 40.0
RESYNC_S = 20.0


class NoRouters:
    """None of the pool's routers is up."""

    async def fetch(self, pods: object, port: int) -> tuple[()]:
        return ()


class Cluster:
    """An API server that fails, users who change objects, and one operator."""

    def __init__(self, seed: int, admit: bool) -> None:
        self.chance = random.Random(seed)
        self.api = MemoryApi(chance=self.chance, admit=mirrored if admit else lambda manifest: manifest)
        self.api.store(pool_document(), "kubectl")
        self.cache = Cache()
        metrics = OperatorMetrics(CollectorRegistry())
        api: Any = self.api
        routers: Any = NoRouters()
        self.reconciler = Reconciler(api, self.cache, routers, SETTINGS, metrics)

    async def resync(self) -> None:
        for kind in (POOL, *WATCHED):
            requested = self.cache.state(kind)
            listed, version = await self.api.list(kind)
            self.cache.replace(kind, None, listed, version, requested)

    async def operate(self) -> None:
        """Reconcile again and again; what fails is tried again a little later."""
        resynced_s = -RESYNC_S
        while True:
            try:
                if now_s() - resynced_s >= RESYNC_S:
                    await self.resync()
                    resynced_s = now_s()
                await self.reconciler.reconcile(KEY)
            except (ApiStatusError, ApiUnreachable):
                pass
            await asyncio.sleep(self.chance.uniform(0.1, 3.0))

    async def watch(self) -> None:
        """Deliver watch events late, in any order, and not all of them."""
        while True:
            await asyncio.sleep(self.chance.uniform(0.1, 3.0))
            if self.api.objects and self.chance.random() < 0.8:
                self.cache.update(deepcopy(self.chance.choice(list(self.api.objects.values()))))

    async def meddle(self) -> None:
        """People and controllers change and delete objects, and change the pool."""
        while now_s() < TROUBLE_S:
            await asyncio.sleep(self.chance.uniform(1.0, 10.0))
            owned = [ref for ref in self.api.objects if ref.kind not in (POOL.kind, "Event")]
            if self.chance.random() < 0.3 or not owned:
                self._change_pool()
                continue
            ref = self.chance.choice(owned)
            if self.chance.random() < 0.5:
                self.cache.remove(self.api.objects.pop(ref))
            else:
                self._change(ref)

    def _change_pool(self) -> None:
        """Its generation is the API server's to count."""
        changed = pool_document(replicas=self.chance.randint(1, 5))
        changed["metadata"]["generation"] = self.api.objects[REF]["metadata"]["generation"] + 1
        self.api.store(changed, "kubectl")

    def _change(self, ref: Ref) -> None:
        there = self.api.objects[ref]
        body = {"apiVersion": ref.api_version, "kind": ref.kind}
        labels = {name: "changed" for name in there["metadata"]["labels"]}
        labels["penstock.dev/pool"] = KEY.name  # without it, it would be no longer the operator's to watch
        self.api.store(
            {**body, "metadata": {"name": ref.name, "namespace": ref.namespace, "labels": labels}}, "kubectl"
        )

    def wrong(self) -> list[str]:
        """Return the differences between the desired state and the API server's."""
        document = self.api.objects[REF]
        metadata = document["metadata"]
        pool = parse_pool({k: v for k, v in document.items() if k != "status"}, "pool")
        assert pool.spec.replicas
        owner = PoolOwner(KEY.name, KEY.namespace, metadata["uid"])
        objects = desired_state(pool, document, (), SETTINGS, None).objects or ()
        found = []
        for manifest in objects:
            ref = Ref(manifest["apiVersion"], manifest["kind"], owner.namespace, manifest["metadata"]["name"])
            there = self.api.objects.get(ref)
            if there is None:
                found.append(f"{ref} is missing")
            else:
                found += [f"{ref} {each.path}" for each in differences(manifest, there) if not each.owned]
        return found


def mirrored(manifest: Manifest) -> Manifest:
    """Admission by a registry's mirror: whatever the operator sends, images are others."""
    for container in manifest.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
        container["image"] = f"mirror.example/{container['image']}"
    return manifest


async def converges(seed: int, failing: float, admit: bool) -> None:
    cluster = Cluster(seed, admit)
    cluster.api.failing = failing
    running = [asyncio.create_task(each) for each in (cluster.operate(), cluster.watch(), cluster.meddle())]
    await asyncio.sleep(TROUBLE_S)
    cluster.api.failing = 0.0
    await asyncio.sleep(CALM_S)
    written = len(cluster.api.writes)
    await asyncio.sleep(CALM_S / 2)
    for task in running:
        task.cancel()
    ends = await asyncio.gather(*running, return_exceptions=True)
    assert not [end for end in ends if isinstance(end, Exception)], ends
    assert cluster.wrong() == []
    status = cluster.api.objects[REF]["status"]
    assert status["observedGeneration"] == cluster.api.objects[REF]["metadata"]["generation"]
    degraded = condition(status, "Degraded")
    assert degraded is not None
    assert degraded["status"] == "False", degraded
    assert cluster.api.writes[written:] == [], "it goes on writing"


@settings(max_examples=12, deadline=None, phases=[Phase.generate])  # a smaller seed is no simpler run
@given(st.integers(0, 2**32), st.floats(0.0, 0.4), st.booleans())
def test_a_pool_is_as_desired_once_the_api_server_works_again(seed: int, failing: float, admit: bool) -> None:
    run(converges(seed, failing, admit))
