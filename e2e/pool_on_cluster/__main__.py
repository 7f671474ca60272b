"""`make e2e`: from no cluster to a verdict, and nothing left behind.

Each line of STEPS is one step, defined in its own file of `steps/`. Traffic runs through the ingress from
`clients` on; after every step, every request sent during it must have been answered in full, except those
that the step excuses because their process was killed.

  KUBECONFIG=...   another cluster than the one of e2e/cluster; place.py has its requirements   make e2e
KEEP=1  keeps the cluster, whether a step failed or all have passed
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pool_on_cluster.runner import Step, run_steps
from pool_on_cluster.steps import (
    autoscaling,
    clients,
    control_plane,
    deletions,
    evictions,
    first_pool,
    gateways,
    installation,
    invalid_pools,
    kills,
    leaving,
    nodes,
    refusals,
    releases,
    rolling,
    scaling,
)

STEPS: Sequence[Step] = (
    Step(installation.cluster),
    Step(installation.images),
    Step(installation.ingress_controller),
    Step(installation.chart),
    Step(refusals.bad_specs),
    Step(invalid_pools.image_missing),
    Step(invalid_pools.gpus_missing),
    Step(first_pool.from_apply_to_ready),
    Step(clients.official_client),
    Step(clients.answers_stream_through_the_ingress),
    Step(clients.replayed_trace),
    Step(scaling.up, traffic=True),
    Step(scaling.down, traffic=True),
    Step(rolling.engine, traffic=True),
    Step(rolling.policy, traffic=True),
    Step(rolling.router, traffic=True),
    Step(kills.engine, traffic=True, own_cluster=True),
    Step(kills.sidecar, traffic=True, own_cluster=True),
    Step(kills.router, traffic=True, own_cluster=True),
    Step(deletions.replicas, traffic=True),
    Step(deletions.routers, traffic=True),
    Step(control_plane.operator, traffic=True),
    Step(control_plane.api_server, traffic=True, own_cluster=True),
    Step(control_plane.etcd, traffic=True, own_cluster=True),
    Step(control_plane.slow_etcd, traffic=True, own_cluster=True),
    Step(control_plane.kubelet, traffic=True, own_cluster=True),
    Step(evictions.against_the_budget, traffic=True),
    Step(nodes.drained, traffic=True, own_cluster=True),
    Step(nodes.lost, traffic=True, own_cluster=True),
    Step(releases.upgraded_and_rolled_back, traffic=True),
    Step(gateways.to_envoy, traffic=True),
    Step(gateways.rolled, traffic=True),
    Step(gateways.killed_picker, traffic=True, own_cluster=True),
    Step(gateways.killed_envoy, traffic=True, own_cluster=True),
    Step(gateways.to_router, traffic=True),
    Step(autoscaling.to_zero_and_back),
    Step(leaving.idle_operator),
    Step(leaving.deleted_pool),
    Step(leaving.uninstalled),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        "e2e", description="Penstock on a real cluster, from nothing to a verdict."
    )
    parser.add_argument(
        "--results", type=Path, default=Path(".e2e"), help="figures, and evidence of a failure"
    )
    parser.add_argument("--keep", action="store_true", help="leave the cluster up afterwards")
    parser.add_argument("--only", metavar="STEP", action="append", default=[], help="and no other steps")
    given = parser.parse_args()
    chosen = [step for step in STEPS if not given.only or step.name in given.only]
    return run_steps(chosen, given.results.resolve(), keep=given.keep)


if __name__ == "__main__":
    sys.exit(main())
