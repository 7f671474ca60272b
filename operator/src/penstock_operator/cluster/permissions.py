"""Every right that the operator needs, and what for. The chart grants exactly these, and a test compares.

Reading and writing other people's objects is what an operator must be trusted with least: there is no right
on nodes, none to list Secrets, none on pods but to read them. Where it serves some namespaces only, these
are Roles in each of them, and `CLUSTER` is not needed.
"""

from dataclasses import dataclass

READ = ("get", "list", "watch")
OWN = (*READ, "create", "patch", "delete")
"""To make objects, follow them, and remove them."""


@dataclass(frozen=True, slots=True)
class PermissionRule:
    """Verbs on resources of an API group. names: on objects of these names only; none: on all."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str
    names: tuple[str, ...] = ()


POOLS = (
    PermissionRule("penstock.dev", ("servingpools",), READ, "pools are followed"),
    PermissionRule("penstock.dev", ("servingpools/status",), ("patch",), "what was observed is written"),
    PermissionRule(
        "penstock.dev", ("servingpools/finalizers",), ("update",), "objects are owned by their pool"
    ),
    PermissionRule("", ("configmaps", "serviceaccounts", "services"), OWN, "a pool's own are made and kept"),
    PermissionRule(
        "",
        ("secrets",),
        ("get", "create", "patch", "delete"),
        "a pool's TLS keys are made and kept; of API keys only the existence is asked",
    ),
    PermissionRule("", ("pods",), READ, "why pods do not start is said in the pool's status"),
    PermissionRule("", ("persistentvolumeclaims",), ("get",), "whether the claim with the weights exists"),
    PermissionRule(
        "", ("events",), ("list", "create", "patch"), "Warnings about pods are read, news of pools posted"
    ),
    PermissionRule("apps", ("deployments", "statefulsets"), OWN, "routers and replicas"),
    PermissionRule("policy", ("poddisruptionbudgets",), OWN, "drains leave enough of them"),
    PermissionRule(
        "networking.k8s.io", ("ingresses", "networkpolicies"), OWN, "the way in, and who may take it"
    ),
    PermissionRule("autoscaling", ("horizontalpodautoscalers",), OWN, "`autoscaling.by: hpa`"),
    PermissionRule("keda.sh", ("scaledobjects",), OWN, "`autoscaling.by: keda`"),
    PermissionRule("gateway.networking.k8s.io", ("httproutes",), OWN, "the way in by a Gateway"),
    PermissionRule("monitoring.coreos.com", ("servicemonitors",), OWN, "Prometheus finds pools"),
    PermissionRule(
        "rbac.authorization.k8s.io", ("rolebindings", "roles"), OWN, "routers may watch their replicas"
    ),
    PermissionRule(
        "discovery.k8s.io", ("endpointslices",), READ, "only what one has can be granted: routers get this"
    ),
)
"""Where pools are served."""

CLUSTER = (
    PermissionRule(
        "apiextensions.k8s.io",
        ("customresourcedefinitions",),
        ("list", "watch"),
        "kinds that are installed later are noticed without a restart",
    ),
)
"""In the whole cluster, beside `POOLS`, where all namespaces are served."""

LEASE = (
    PermissionRule("coordination.k8s.io", ("leases",), ("create",), "one of several operators acts"),
    PermissionRule("coordination.k8s.io", ("leases",), ("get", "update"), "the same", ("penstock-operator",)),
)
"""In the operator's own namespace."""


def manifest_rules(rules: tuple[PermissionRule, ...]) -> list[dict[str, list[str]]]:
    """As a Role has them."""
    return [
        {"apiGroups": [rule.group], "resources": list(rule.resources), "verbs": list(rule.verbs)}
        | ({"resourceNames": list(rule.names)} if rule.names else {})
        for rule in rules
    ]
