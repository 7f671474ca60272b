"""Names, labels and ports that a pool's objects and processes know one another by.

Every name is the pool's with a suffix of at most nine characters, and a pool's name has at most 40: all fit
into the 63 that Kubernetes gives a label, with room for what controllers append.
"""

from enum import StrEnum

FIELD_MANAGER = "penstock-operator"
"""Who applies: Kubernetes keeps which fields are whose by this."""

MANAGED_BY = "app.kubernetes.io/managed-by"
POOL_LABEL = "penstock.dev/pool"
CONFIG_ANNOTATION = "penstock.dev/config"
"""On pod templates: digest of what the pod reads besides its own spec. A new one rolls the pods."""

WANTED_ANNOTATION = "penstock.dev/wanted"
"""On every object: digest of what was asked for, to tell a changed pool from a drifted object."""

ROUTER_PORT = 8080
ADMIN_PORT = 9080
"""Of routers: metrics, and what they say of themselves. Never led out of the cluster."""

REPLICA_PORT = 7000
METRICS_PORT = 7001
ENGINE_PORT = 8000


class Component(StrEnum):
    """The two kinds of pods."""

    REPLICA = "replica"
    ROUTER = "router"


def replica_name(pool: str) -> str:
    """Of the StatefulSet and of what belongs to it."""
    return f"{pool}-replica"


def replicas_service_name(pool: str) -> str:
    """Of the headless Service that routers watch."""
    return f"{pool}-replicas"


def admin_service_name(pool: str) -> str:
    """Of the headless Service that finds routers' admin ports."""
    return f"{pool}-admin"


def router_name(pool: str) -> str:
    """Of the router's Deployment and of what belongs to it."""
    return f"{pool}-router"


def learned_name(pool: str) -> str:
    """Of the ConfigMap with what autoscaling has learned."""
    return f"{pool}-learned"


def tls_name(pool: str) -> str:
    """Of the Secret that pods mount."""
    return f"{pool}-tls"


def authority_name(pool: str) -> str:
    """Of the Secret with the signing keys, which no pod mounts."""
    return f"{pool}-ca"


def tls_server_name(pool: str, namespace: str) -> str:
    """What replicas' certificates are made out to, and what routers check."""
    return f"{replicas_service_name(pool)}.{namespace}.svc"


def pool_labels(pool: str) -> dict[str, str]:
    """On everything that a pool owns; also what finds it."""
    return {
        "app.kubernetes.io/name": "penstock",
        "app.kubernetes.io/instance": pool,
        MANAGED_BY: FIELD_MANAGER,
        POOL_LABEL: pool,
    }


def component_labels(pool: str, component: Component) -> dict[str, str]:
    """On a component's objects and pods."""
    return pool_labels(pool) | {"app.kubernetes.io/component": component.value}


def selector(pool: str, component: Component) -> dict[str, str]:
    """What picks a component's pods. It can never change for an existing StatefulSet or Deployment."""
    return {POOL_LABEL: pool, "app.kubernetes.io/component": component.value}
