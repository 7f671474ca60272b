"""The kinds of object that the operator speaks about, and where the API server keeps them.

`WATCHED` are the kinds that a pool's children are of. Their objects are followed by the operator's label,
so nothing that is not the operator's is ever streamed to it. Secrets are not among them: to follow them
would take the right to list them.
"""

from dataclasses import dataclass

from penstock_operator.manifests.manifest import Manifest, Ref

GROUP = "penstock.dev"
VERSION = "v1alpha1"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind. plural: its name in paths. optional: its CRD need not be installed."""

    api_version: str
    kind: str
    plural: str
    namespaced: bool = True
    optional: bool = False

    @property
    def group(self) -> str:
        """Empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """Without the group."""
        return self.api_version.rpartition("/")[2]

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Under the API server's root. namespace None: all of them."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        within = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return "/".join(filter(None, [f"{root}{within}/{self.plural}", name, subresource]))


POOL = Kind(f"{GROUP}/{VERSION}", "ServingPool", "servingpools")
POD = Kind("v1", "Pod", "pods")
SECRET = Kind("v1", "Secret", "secrets")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
EVENT = Kind("v1", "Event", "events")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")
STATEFUL_SET = Kind("apps/v1", "StatefulSet", "statefulsets")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")

WATCHED = (
    STATEFUL_SET,
    DEPLOYMENT,
    POD,
    CONFIG_MAP,
    Kind("v1", "Service", "services"),
    Kind("v1", "ServiceAccount", "serviceaccounts"),
    Kind("rbac.authorization.k8s.io/v1", "Role", "roles"),
    Kind("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings"),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    Kind("networking.k8s.io/v1", "Ingress", "ingresses"),
    Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    Kind("keda.sh/v1alpha1", "ScaledObject", "scaledobjects", optional=True),
    Kind("gateway.networking.k8s.io/v1", "HTTPRoute", "httproutes", optional=True),
    Kind("monitoring.coreos.com/v1", "ServiceMonitor", "servicemonitors", optional=True),
)

_BY_NAME = {(kind.api_version, kind.kind): kind for kind in (POOL, SECRET, CLAIM, EVENT, LEASE, *WATCHED)}


def kind_of(which: Manifest | Ref) -> Kind:
    """The kind of a manifest or of what a reference points at. Raises KeyError for one not listed here."""
    if isinstance(which, Ref):
        return _BY_NAME[which.api_version, which.kind]
    return _BY_NAME[which["apiVersion"], which["kind"]]
