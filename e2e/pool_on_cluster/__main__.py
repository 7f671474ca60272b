"""`make e2e`: installs Penstock on a cluster, tests a pool under traffic and faults, and removes everything.

Each line of STEPS is one step, defined in its own file of `steps/`. From `scaling` on, clients send requests
through the ingress. After every step, each request sent during it must have been answered in full, except
those that the step allows to be lost because their process was killed.

  KUBECONFIG=FILE    use this cluster, not the one of e2e/cluster; clusters.py lists its requirements
  KEEP=1             keep the cluster, whether a step failed or all have passed
  ONLY="STEP..."     run only these steps
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pool_on_cluster.runner import Step, run_steps
from pool_on_cluster.steps import (
    autoscaling,
    chart_upgrade,
    clients,
    control_plane,
    degraded_pools,
    deletions,
    evictions,
    first_pool,
    gateways,
    installation,
    invalid_specs,
    kills,
    nodes,
    removal,
    rolling_updates,
    scaling,
)

STEPS: Sequence[Step] = (
    Step(installation.cluster),
    Step(installation.images),
    Step(installation.ingress_controller),
    Step(installation.chart),
    Step(invalid_specs.rejected),
    Step(degraded_pools.image_missing),
    Step(degraded_pools.gpus_missing),
    Step(first_pool.apply_to_ready),
    Step(clients.official_client),
    Step(clients.streaming_through_ingress),
    Step(clients.replayed_trace),
    Step(scaling.up, traffic=True),
    Step(scaling.down, traffic=True),
    Step(rolling_updates.engine, traffic=True),
    Step(rolling_updates.policy, traffic=True),
    Step(rolling_updates.router, traffic=True),
    Step(kills.engine, traffic=True, local_cluster=True),
    Step(kills.sidecar, traffic=True, local_cluster=True),
    Step(kills.router, traffic=True, local_cluster=True),
    Step(deletions.replicas, traffic=True),
    Step(deletions.routers, traffic=True),
    Step(control_plane.operator, traffic=True),
    Step(control_plane.api_server, traffic=True, local_cluster=True),
    Step(control_plane.etcd, traffic=True, local_cluster=True),
    Step(control_plane.slow_etcd, traffic=True, local_cluster=True),
    Step(control_plane.kubelet, traffic=True, local_cluster=True),
    Step(evictions.limited_by_the_budget, traffic=True),
    Step(nodes.drain, traffic=True, local_cluster=True),
    Step(nodes.loss, traffic=True, local_cluster=True),
    Step(chart_upgrade.upgrade_and_rollback, traffic=True),
    Step(gateways.to_envoy, traffic=True),
    Step(gateways.rolling_update, traffic=True),
    Step(gateways.picker_kill, traffic=True, local_cluster=True),
    Step(gateways.envoy_kill, traffic=True, local_cluster=True),
    Step(gateways.to_router, traffic=True),
    Step(autoscaling.to_zero_and_up),
    Step(removal.idle_operator),
    Step(removal.pool),
    Step(removal.chart),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        "e2e", description="Tests Penstock on a real cluster, from installation to removal."
    )
    parser.add_argument(
        "--results",
        type=Path,
        default=Path(".e2e"),
        help="folder of figures and diagnostics",
    )
    parser.add_argument("--keep", action="store_true", help="keep the cluster afterwards")
    parser.add_argument("--only", metavar="STEP", action="append", default=[], help="run only these")
    arguments = parser.parse_args()
    chosen = [step for step in STEPS if not arguments.only or step.name in arguments.only]
    return run_steps(chosen, arguments.results.resolve(), keep=arguments.keep)


if __name__ == "__main__":
    sys.exit(main())
