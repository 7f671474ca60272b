"""What objects a ServingPool wants.

One pure function from the pool, and the few facts that are not in it, to every object that should exist. An
object that is no longer wanted is simply not in the answer: `decide` finds it as an orphan. Each kind of
child has its own file in `objects/`; here they are only put in the order in which they are best applied:
what pods need to start, then the pods, then what leads traffic to them.
"""

from penstock_pool import Pool

from penstock_operator.manifests.digest import digest
from penstock_operator.manifests.manifest import Manifest, Owner
from penstock_operator.manifests.names import WANTED_ANNOTATION
from penstock_operator.objects.config_maps import learned_config_map, replica_config_map, router_config_map
from penstock_operator.objects.disruption_budgets import disruption_budgets
from penstock_operator.objects.external_autoscalers import autoscalers
from penstock_operator.objects.http_route import http_route
from penstock_operator.objects.ingress import ingress
from penstock_operator.objects.network_policies import replica_network_policy, router_network_policy
from penstock_operator.objects.render_context import Facts, Inputs
from penstock_operator.objects.replica_statefulset import replica_set
from penstock_operator.objects.router_deployment import router_deployment
from penstock_operator.objects.service_accounts import accounts
from penstock_operator.objects.service_monitor import service_monitor
from penstock_operator.objects.services import admin_service, replicas_service, router_service
from penstock_operator.objects.tls_secrets import tls_secrets
from penstock_operator.settings import Settings


def desired(pool: Pool, owner: Owner, settings: Settings, facts: Facts) -> tuple[Manifest, ...]:
    """Every object of the pool, in the order to apply them.

    Each has the pool's labels, its ownerReference and its namespace, and the annotation
    `penstock.dev/wanted`. Equal inputs give equal manifests. Raises UnfitPool.
    """
    inputs = Inputs(pool, owner, settings, facts)
    before_pods = (
        *accounts(inputs),
        *tls_secrets(inputs),
        replica_config_map(inputs),
        router_config_map(inputs),
        replica_network_policy(inputs),
        router_network_policy(inputs),
        *disruption_budgets(inputs),
        replicas_service(inputs),
        router_service(inputs),
        admin_service(inputs),
    )
    pods = (replica_set(inputs), router_deployment(inputs))
    after_pods = (
        *ingress(inputs),
        *http_route(inputs),
        *service_monitor(inputs),
        *autoscalers(inputs),
        *learned_config_map(inputs),
    )
    return tuple(_with_digest(manifest) for manifest in (*before_pods, *pods, *after_pods))


def _with_digest(manifest: Manifest) -> Manifest:
    """The manifest with a digest of itself, by which a later look knows what was asked for."""
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), WANTED_ANNOTATION: digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}
