"""The kinds of objects that the operator reads and writes, and their paths at the API server.

`WATCHED` are the kinds of a pool's child objects. They are watched by the operator's label, so the API server
sends only the operator's own objects. Secrets are not watched, because that needs the right to list them.
"""

from dataclasses import dataclass

from penstock_operator.manifests.manifest import Manifest, Ref

GROUP = "penstock.dev"
VERSION = "v1alpha1"


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of Kubernetes objects. plural: its name in paths. optional: whether its CRD may be missing."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True
    optional: bool = False

    @property
    def group(self) -> str:
        """Return the API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """Return the version without the group."""
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Return the path under the API server's root. namespace None: all namespaces."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        within = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return "/".join(filter(None, [f"{root}{within}/{self.plural}", name, subresource]))


POOL = ResourceKind(f"{GROUP}/{VERSION}", "ServingPool", "servingpools")
POD = ResourceKind("v1", "Pod", "pods")
SECRET = ResourceKind("v1", "Secret", "secrets")
CONFIG_MAP = ResourceKind("v1", "ConfigMap", "configmaps")
CLAIM = ResourceKind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
EVENT = ResourceKind("v1", "Event", "events")
LEASE = ResourceKind("coordination.k8s.io/v1", "Lease", "leases")
STATEFUL_SET = ResourceKind("apps/v1", "StatefulSet", "statefulsets")
DEPLOYMENT = ResourceKind("apps/v1", "Deployment", "deployments")

WATCHED = (
    STATEFUL_SET,
    DEPLOYMENT,
    POD,
    CONFIG_MAP,
    ResourceKind("v1", "Service", "services"),
    ResourceKind("v1", "ServiceAccount", "serviceaccounts"),
    ResourceKind("rbac.authorization.k8s.io/v1", "Role", "roles"),
    ResourceKind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    ResourceKind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    ResourceKind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    ResourceKind("networking.k8s.io/v1", "Ingress", "ingresses"),
    ResourceKind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    ResourceKind("keda.sh/v1alpha1", "ScaledObject", "scaledobjects", optional=True),
    ResourceKind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes", optional=True),
    ResourceKind("inference.networking.k8s.io/v1", "InferencePool", "inferencepools", optional=True),
    ResourceKind("monitoring.coreos.com/v1", "ServiceMonitor", "servicemonitors", optional=True),
)

_BY_NAME = {(kind.api_version, kind.kind): kind for kind in (POOL, SECRET, CLAIM, EVENT, LEASE, *WATCHED)}


def kind_of(target: Manifest | Ref) -> ResourceKind:
    """Return the kind of a manifest or reference. Raises KeyError if it is not listed here."""
    if isinstance(target, Ref):
        return _BY_NAME[target.api_version, target.kind]
    return _BY_NAME[target["apiVersion"], target["kind"]]
