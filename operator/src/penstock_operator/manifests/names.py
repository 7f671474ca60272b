"""Names, labels and ports of a pool's objects and processes.

Every name is the pool's with a suffix of at most nine characters. A pool's name has at most 40, so all names
fit into the 63 characters of a Kubernetes label, with room for suffixes that controllers append.
"""

from enum import StrEnum

FIELD_MANAGER = "penstock-operator"
"""Field manager of the operator's server-side applies."""

MANAGED_BY = "app.kubernetes.io/managed-by"
POOL_LABEL = "penstock.dev/pool"
CONFIG_ANNOTATION = "penstock.dev/config"
"""Annotation on pod templates: digest of what the pod reads besides its template. A change rolls the pods."""

WANTED_ANNOTATION = "penstock.dev/wanted"
"""Annotation on every object: digest of the desired manifest, which separates a changed pool from drift."""

ROOT_CA = "kube-root-ca.crt"
"""ConfigMap that Kubernetes keeps in every namespace: the authority of the API server."""

ROUTER_PORT = 8080
ADMIN_PORT = 9080
"""Port of a router's metrics and reports. Never exposed outside the cluster."""

PICKER_PORT = 9002
"""Port at which a picker serves the Envoy in its pod, on loopback, or Gateways."""

ENVOY_PORT = 9902
"""Port of an Envoy's readiness and metrics. Never exposed outside the cluster."""

REPLICA_PORT = 7000
METRICS_PORT = 7001
REPLICA_HTTP_PORT = 7002
"""Port at which a sidecar serves HTTP to gateways."""

ENGINE_PORT = 8000


class Component(StrEnum):
    """The two kinds of pods. ROUTER: the pods in front of replicas, with any gateway."""

    REPLICA = "replica"
    ROUTER = "router"


def replica_name(pool: str) -> str:
    """Return the name of the replicas' StatefulSet and of objects that belong to it."""
    return f"{pool}-replica"


def replicas_service_name(pool: str) -> str:
    """Return the name of the headless Service that routers watch."""
    return f"{pool}-replicas"


def admin_service_name(pool: str) -> str:
    """Return the name of the headless Service of the routers' admin ports."""
    return f"{pool}-admin"


def router_name(pool: str) -> str:
    """Return the name of the Deployment of routers, or of Envoys, and of objects that belong to it."""
    return f"{pool}-router"


def envoy_name(pool: str) -> str:
    """Return the name of the ConfigMap with the configuration of Envoys."""
    return f"{pool}-envoy"


def picker_service_name(pool: str) -> str:
    """Return the name of the Service by which a Gateway finds the pickers."""
    return f"{pool}-picker"


def learned_capacity_name(pool: str) -> str:
    """Return the name of the ConfigMap with the learned capacity of a replica."""
    return f"{pool}-learned"


def tls_name(pool: str) -> str:
    """Return the name of the Secret that pods mount."""
    return f"{pool}-tls"


def authority_name(pool: str) -> str:
    """Return the name of the Secret with the signing keys, which no pod mounts."""
    return f"{pool}-ca"


def tls_server_name(pool: str, namespace: str) -> str:
    """Return the DNS name in replicas' certificates, which routers verify."""
    return f"{replicas_service_name(pool)}.{namespace}.svc"


def engine_server_name(pool: str, namespace: str) -> str:
    """Return the DNS name in engines' certificates, which routers and sidecars verify."""
    return f"engine.{tls_server_name(pool, namespace)}"


def pool_labels(pool: str) -> dict[str, str]:
    """Return the labels of every object that a pool owns, which also select them."""
    return {
        "app.kubernetes.io/name": "penstock",
        "app.kubernetes.io/instance": pool,
        MANAGED_BY: FIELD_MANAGER,
        POOL_LABEL: pool,
    }


def component_labels(pool: str, component: Component) -> dict[str, str]:
    """Return the labels of a component's objects and pods."""
    return pool_labels(pool) | {"app.kubernetes.io/component": component.value}


def selector(pool: str, component: Component) -> dict[str, str]:
    """Return the selector of a component's pods, immutable for an existing StatefulSet or Deployment."""
    return {POOL_LABEL: pool, "app.kubernetes.io/component": component.value}
