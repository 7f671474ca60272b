"""Renders every object of a ServingPool.

One pure function maps the pool, and the few facts that are not in it, to all objects that should exist. An
object that is no longer desired is absent from the result, and `decide` finds it as an orphan. Each kind has
its own file in `objects/`. This module only orders them for applying: first what pods need to start, then the
pods, then the objects that route traffic to them.
"""

from penstock_pool import Pool

from penstock_operator.manifests.digest import digest
from penstock_operator.manifests.manifest import Manifest, PoolOwner
from penstock_operator.manifests.names import WANTED_ANNOTATION
from penstock_operator.objects.config_maps import learned_config_map, replica_config_map, router_config_map
from penstock_operator.objects.disruption_budgets import disruption_budgets
from penstock_operator.objects.envoy_configuration import envoy_config_map
from penstock_operator.objects.external_autoscalers import autoscalers
from penstock_operator.objects.http_route import http_route
from penstock_operator.objects.inference_pool import inference_pool, picker_service
from penstock_operator.objects.ingress import ingress
from penstock_operator.objects.network_policies import replica_network_policy, router_network_policy
from penstock_operator.objects.render_context import RenderContext, RenderFacts
from penstock_operator.objects.replica_statefulset import replica_set
from penstock_operator.objects.router_deployment import router_deployment
from penstock_operator.objects.service_accounts import accounts
from penstock_operator.objects.service_monitor import service_monitor
from penstock_operator.objects.services import admin_service, replicas_service, router_service
from penstock_operator.objects.tls_secrets import tls_secrets
from penstock_operator.settings import OperatorSettings


def desired(
    pool: Pool, owner: PoolOwner, settings: OperatorSettings, facts: RenderFacts
) -> tuple[Manifest, ...]:
    """Return every object of the pool, in the order to apply them.

    Each has the pool's labels, its ownerReference and its namespace, and the annotation
    `penstock.dev/wanted`. Equal arguments give equal manifests. Raises UnsupportedPool.
    """
    context = RenderContext(pool, owner, settings, facts)
    before_pods = (
        *accounts(context),
        *tls_secrets(context),
        replica_config_map(context),
        router_config_map(context),
        *envoy_config_map(context),
        replica_network_policy(context),
        router_network_policy(context),
        *disruption_budgets(context),
        replicas_service(context),
        *router_service(context),
        *picker_service(context),
        admin_service(context),
    )
    pods = (replica_set(context), router_deployment(context))
    after_pods = (
        *inference_pool(context),
        *ingress(context),
        *http_route(context),
        *service_monitor(context),
        *autoscalers(context),
        *learned_config_map(context),
    )
    return tuple(_with_digest(manifest) for manifest in (*before_pods, *pods, *after_pods))


def _with_digest(manifest: Manifest) -> Manifest:
    """Return the manifest with its digest, by which later reconciliations distinguish changes from drift."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), WANTED_ANNOTATION: digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}
