"""Measures discovery latency: from a change at the API server to the router's replica set.

    .venv/bin/python bench/discovery.py [--changes N] [--out FILE]

A real API server without nodes (`e2e/cluster/apiserver`) has a Service's slice of three endpoints; one of
them is set to terminating and back repeatedly, with random pauses. Two times are reported: from sending the
change until links have their new condition (`sent`), and from the server's answer (`stored`), which may be
negative, because the watch can be faster than the answer. In a cluster the endpoint controller adds tens of
milliseconds from a pod's change to its slice's.
"""

import argparse
import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from statistics import quantiles
from time import monotonic
from typing import Any

from overhead.report import machine
from penstock_routing.connections.api_server import Access
from penstock_routing.connections.backoff import Backoff
from penstock_routing.connections.replica_channel import connect_by
from penstock_routing.discovery.endpoint_watch import EndpointWatch
from penstock_routing.discovery.endpoints import Condition, Endpoints, Service
from penstock_routing.replicas.replica_link import ReplicaLink
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_runtime.logs import configure_logs

APISERVER = Path(__file__).parents[1] / "e2e" / "cluster" / "apiserver"
SLICE = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/p"
APPLY = {"content-type": "application/apply-patch+yaml"}


def slice_with(condition: Condition) -> dict[str, Any]:
    going = condition is Condition.TERMINATING
    endpoints = [
        {
            "addresses": [f"10.0.0.{number + 1}"],
            "conditions": {"ready": not (going and number == 0), "terminating": going and number == 0},
            "targetRef": {"kind": "Pod", "name": f"p-{number}"},
        }
        for number in range(3)
    ]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": "p", "labels": {"kubernetes.io/service-name": "p"}},
        "addressType": "IPv4",
        "ports": [{"name": "replica", "port": 7000}],
        "endpoints": endpoints,
    }


class Applied:
    """A watch that records the time at which the replica set has applied each endpoint set."""

    connected = True
    malformed = 0

    def __init__(self, watch: EndpointWatch) -> None:
        self._watch, self._changed = watch, asyncio.Event()
        self._condition: Condition | None = None

    async def sets(self) -> AsyncIterator[Endpoints]:
        async for replicas in self._watch.sets():
            yield replicas
            self._condition = replicas["p-0"].condition if replicas else None
            self._changed.set()

    async def until(self, wanted: Condition) -> float:
        """Return when links first had this condition, on the loop's clock."""
        while self._condition is not wanted:
            self._changed.clear()
            await self._changed.wait()
        return monotonic()


async def measured(kubeconfig: Path, changes: int) -> list[tuple[float, float]]:
    """Return for each change the seconds since it was sent and since it was stored."""
    random = Random(1)
    replica_set = ReplicaSet(
        lambda name, address, changed: ReplicaLink(
            name, address, connect_by(None), Backoff(random), changed=changed
        )
    )
    source = Applied(EndpointWatch(Service("default", "p"), Access(kubeconfig).client, Backoff(random)))
    following = asyncio.create_task(replica_set.follow(source))
    times = []
    async with Access(kubeconfig).client() as http:
        params = {"fieldManager": "bench", "force": "true"}
        for number in range(changes):
            wanted = Condition.TERMINATING if number % 2 else Condition.IN_SERVICE
            await asyncio.sleep(random.uniform(0.01, 0.1))
            known = asyncio.create_task(source.until(wanted))
            sent_s = monotonic()
            answer = await http.patch(SLICE, json=slice_with(wanted), params=params, headers=APPLY)
            stored_s = monotonic()
            answer.raise_for_status()
            known_s = await known
            times.append((known_s - sent_s, known_s - stored_s))
    following.cancel()
    await asyncio.wait([following])
    return times[1:]  # the first change also starts the watch


def row(name: str, times_s: list[float]) -> str:
    percent = quantiles(times_s, n=100)
    figures = (percent[49], percent[98], max(times_s))
    return f"{name:<8}" + "".join(f"{1000 * figure:10.1f}" for figure in figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--changes", type=int, default=500, help="number of changes (default %(default)s)")
    parser.add_argument("--out", type=Path, help="also write the output to this file")
    options = parser.parse_args()
    configure_logs("bench", "error", json=False)
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        up = [str(APISERVER), "up", f"{folder}/api"]
        kubeconfig = subprocess.run(up, check=True, capture_output=True, text=True).stdout.strip()
        try:
            times = asyncio.run(measured(Path(kubeconfig), options.changes))
        finally:
            subprocess.run([APISERVER, "down", f"{folder}/api"], check=True)
    text = "\n".join(
        [
            f"a change of an EndpointSlice until the router knows, {datetime.now(UTC):%Y-%m-%d}",
            machine(),
            f"{len(times)} changes; ms after it was",
            f"{'':<8}{'p50':>10}{'p99':>10}{'max':>10}",
            row("sent", [sent_s for sent_s, _ in times]),
            row("stored", [stored_s for _, stored_s in times]),
        ]
    )
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
