"""The permissions that the operator needs, with their purposes. A test checks that the chart grants these.

Permissions are minimal: none on nodes, none to list Secrets, only reads of pods. An operator that serves
selected namespaces has these as Roles in each of them and does not need `CLUSTER`.
"""

from dataclasses import dataclass

READ = ("get", "list", "watch")
MANAGE = (*READ, "create", "patch", "delete")
"""Verbs to create, watch and delete objects."""


@dataclass(frozen=True, slots=True)
class PermissionRule:
    """Verbs on resources of an API group. names: limits them to objects of these names; none: all objects."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    purpose: str
    names: tuple[str, ...] = ()


POOLS = (
    PermissionRule("penstock.dev", ("servingpools",), READ, "watches pools"),
    PermissionRule("penstock.dev", ("servingpools/status",), ("patch",), "writes a pool's status"),
    PermissionRule(
        "penstock.dev", ("servingpools/finalizers",), ("update",), "creates objects owned by their pool"
    ),
    PermissionRule(
        "", ("configmaps", "serviceaccounts", "services"), MANAGE, "creates and updates the objects of a pool"
    ),
    PermissionRule(
        "",
        ("secrets",),
        ("get", "create", "patch", "delete"),
        "creates and updates a pool's TLS keys; checks that API keys exist",
    ),
    PermissionRule("", ("pods",), READ, "reports in the status why pods do not start"),
    PermissionRule(
        "", ("persistentvolumeclaims",), ("get",), "checks that the claim with the weights exists"
    ),
    PermissionRule(
        "", ("events",), ("list", "create", "patch"), "reads Warnings about pods, writes Events of pools"
    ),
    PermissionRule("apps", ("deployments", "statefulsets"), MANAGE, "manages routers and replicas"),
    PermissionRule("policy", ("poddisruptionbudgets",), MANAGE, "limits evictions during node drains"),
    PermissionRule(
        "networking.k8s.io",
        ("ingresses", "networkpolicies"),
        MANAGE,
        "exposes routers, and restricts access to pods",
    ),
    PermissionRule("autoscaling", ("horizontalpodautoscalers",), MANAGE, "`autoscaling.by: hpa`"),
    PermissionRule("keda.sh", ("scaledobjects",), MANAGE, "`autoscaling.by: keda`"),
    PermissionRule("gateway.networking.k8s.io", ("httproutes",), MANAGE, "exposes routers through a Gateway"),
    PermissionRule(
        "inference.networking.k8s.io", ("inferencepools",), MANAGE, "lets Gateways query the pools' pickers"
    ),
    PermissionRule("monitoring.coreos.com", ("servicemonitors",), MANAGE, "lets Prometheus discover pools"),
    PermissionRule(
        "rbac.authorization.k8s.io", ("rolebindings", "roles"), MANAGE, "lets routers watch their replicas"
    ),
    PermissionRule(
        "discovery.k8s.io",
        ("endpointslices",),
        READ,
        "the operator can grant routers only permissions that it has",
    ),
)
"""Permissions in every namespace whose pools are served."""

CLUSTER = (
    PermissionRule(
        "apiextensions.k8s.io",
        ("customresourcedefinitions",),
        ("list", "watch"),
        "detects kinds that are installed later, without a restart",
    ),
)
"""Permissions in the whole cluster, in addition to `POOLS`, if all namespaces are served."""

LEASE = (
    PermissionRule("coordination.k8s.io", ("leases",), ("create",), "elects a leader"),
    PermissionRule(
        "coordination.k8s.io",
        ("leases",),
        ("get", "update"),
        "renews and releases the Lease",
        ("penstock-operator",),
    ),
)
"""Permissions in the operator's own namespace."""


def manifest_rules(rules: tuple[PermissionRule, ...]) -> list[dict[str, list[str]]]:
    """Return the rules as a Role has them."""
    return [
        {"apiGroups": [rule.group], "resources": list(rule.resources), "verbs": list(rule.verbs)}
        | ({"resourceNames": list(rule.names)} if rule.names else {})
        for rule in rules
    ]
