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

from pool_on_cluster.runner import ClusterStep, run_steps
from pool_on_cluster.steps import (
    autoscaling,
    chart_upgrade,
    clients,
    control_plane,
    degraded_pools,
    deletions,
    envoy_gateway,
    evictions,
    first_pool,
    gateways,
    hangs,
    installation,
    invalid_specs,
    kills,
    nodes,
    removal,
    rolling_updates,
    scaling,
)

STEPS: Sequence[ClusterStep] = (
    ClusterStep(installation.cluster),
    ClusterStep(installation.images),
    ClusterStep(installation.ingress_controller),
    ClusterStep(installation.chart),
    ClusterStep(invalid_specs.rejected),
    ClusterStep(degraded_pools.image_missing),
    ClusterStep(degraded_pools.gpus_missing),
    ClusterStep(first_pool.apply_to_ready),
    ClusterStep(clients.official_client),
    ClusterStep(clients.streaming_through_ingress),
    ClusterStep(clients.replayed_trace),
    ClusterStep(scaling.up, traffic=True),
    ClusterStep(scaling.down, traffic=True),
    ClusterStep(rolling_updates.engine, traffic=True),
    ClusterStep(rolling_updates.policy, traffic=True),
    ClusterStep(rolling_updates.router, traffic=True),
    ClusterStep(kills.engine, traffic=True, local_cluster=True),
    ClusterStep(kills.sidecar, traffic=True, local_cluster=True),
    ClusterStep(kills.router, traffic=True, local_cluster=True),
    ClusterStep(hangs.sidecar, traffic=True, local_cluster=True),
    ClusterStep(deletions.replicas, traffic=True),
    ClusterStep(deletions.routers, traffic=True),
    ClusterStep(control_plane.operator, traffic=True),
    ClusterStep(control_plane.api_server, traffic=True, local_cluster=True),
    ClusterStep(control_plane.etcd, traffic=True, local_cluster=True),
    ClusterStep(control_plane.slow_etcd, traffic=True, local_cluster=True),
    ClusterStep(control_plane.kubelet, traffic=True, local_cluster=True),
    ClusterStep(evictions.limited_by_the_budget, traffic=True),
    ClusterStep(nodes.drain, traffic=True, local_cluster=True),
    ClusterStep(nodes.loss, traffic=True, local_cluster=True),
    ClusterStep(chart_upgrade.upgrade_and_rollback, traffic=True),
    ClusterStep(gateways.to_envoy, traffic=True),
    ClusterStep(gateways.rolling_update, traffic=True),
    ClusterStep(gateways.engine_kill, traffic=True, local_cluster=True),
    ClusterStep(gateways.answers_at_engines, traffic=True),
    ClusterStep(gateways.picker_kill, traffic=True, local_cluster=True),
    ClusterStep(gateways.envoy_kill, traffic=True, local_cluster=True),
    ClusterStep(gateways.to_router, traffic=True),
    ClusterStep(envoy_gateway.installation, local_cluster=True),
    ClusterStep(envoy_gateway.routers, local_cluster=True),
    ClusterStep(envoy_gateway.inference_pool, local_cluster=True),
    ClusterStep(envoy_gateway.hops, local_cluster=True),
    ClusterStep(envoy_gateway.rolling_updates, local_cluster=True),
    ClusterStep(envoy_gateway.picker_kill, local_cluster=True),
    ClusterStep(envoy_gateway.engine_kill, local_cluster=True),
    ClusterStep(envoy_gateway.sidecar_kill, local_cluster=True),
    ClusterStep(envoy_gateway.removal, local_cluster=True),
    ClusterStep(autoscaling.to_zero_and_up),
    ClusterStep(removal.idle_operator),
    ClusterStep(removal.pool),
    ClusterStep(removal.chart),
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
