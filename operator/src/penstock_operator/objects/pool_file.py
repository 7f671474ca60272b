"""The pool file of each component: only the fields that it reads.

A component's pods are rolled when a field that they read changes, because the digest of this file is on their
template. Fields at their defaults are left out, whether or not the pool writes them, so that a new field of a
new version does not roll pods.

Tables list the fields that each component reads. A test fails if a field of the schema is neither in them nor
in the list of fields that only the operator reads.
"""

from collections.abc import Mapping
from typing import Any

from penstock_pool import Pool
from penstock_pool.document import write_document

from penstock_operator.objects.render_context import UnsupportedPool

Json = dict[str, Any]

KEYS_FOLDER = "/etc/penstock/keys"
"""Folder in which routers find the Secrets of applications, one subfolder each."""

KEYS_ENTRY = "keys"
"""Key of the Secret's entry with the API keys, one per line."""

ALL = None
"""Marks that all fields of a part are read."""

Reads = Mapping[str, frozenset[str] | None]
"""Parts of `spec`, and the fields of each that are read."""

ENGINE_READS = frozenset(
    {
        "type",
        "timeModel",
        "kvCacheTokens",
        "blockTokens",
        "prefixCaching",
        "answerPath",
        "maxModelLen",
        "speculation",
        "connectTimeout",
        "silenceTimeout",
        "profileTimeout",
    }
)

REPLICA_READS: Reads = {
    "model": frozenset({"name"}),
    "engine": ENGINE_READS,
    "tiers": ALL,
    "scheduling": ALL,
}
"""Fields that the sidecar and a simulated engine read."""

HTTP_READS: Reads = {
    **REPLICA_READS,
    "engine": ENGINE_READS | {"prefixIsolation"},
    "defaultTier": ALL,
    "applications": ALL,
    "requests": ALL,
    "routing": frozenset({"maxHops", "backup"}),
    "router": frozenset(
        {
            "maxBodyBytes",
            "maxHeaderBytes",
            "maxSequencesPerRequest",
            "bodyTimeout",
            "streamBufferBytes",
            "bufferBytes",
            "writeTimeout",
        }
    ),
}
"""Fields that a sidecar reads if it serves HTTP: it checks requests as a router does."""

ROUTER_READS: Reads = {
    "model": frozenset({"name"}),
    "engine": frozenset(
        {"type", "timeModel", "maxModelLen", "prefixCaching", "prefixIsolation", "answerPath"}
    ),
    "tiers": ALL,
    "defaultTier": ALL,
    "applications": ALL,
    "requests": ALL,
    "scheduling": frozenset({"policy"}),
    "routing": ALL,
    "router": frozenset(
        {
            "maxBodyBytes",
            "maxHeaderBytes",
            "maxSequencesPerRequest",
            "bodyTimeout",
            "maxInflight",
            "streamBufferBytes",
            "bufferBytes",
            "writeTimeout",
            "verdictTimeout",
            "drainTimeout",
        }
    ),
}
"""Fields that a router reads unchanged; `autoscaling` and `applications` are rewritten for it, and
`routing.order` is written where it depends on arguments of the engine."""


def replica_file(pool: Pool, http: bool) -> str:
    """Return the pool file of replicas. http: whether they serve HTTP. Raises as `router_file`."""
    return write_document(_document(pool, HTTP_READS if http else REPLICA_READS))


def router_file(pool: Pool) -> str:
    """Return the pool file of routers.

    Raises UnsupportedPool if API keys are in a file, which only local tools support.
    """
    document = _document(pool, ROUTER_READS)
    engine = pool.spec.engine
    if engine.caches_prefixes != engine.model_copy(update={"args": ()}).caches_prefixes:
        document["spec"].setdefault("routing", {})["order"] = pool.spec.routing_order
    if pool.spec.autoscaling is not None:
        document["spec"]["autoscaling"] = _autoscaling_fields(pool)
    return write_document(document)


def _document(pool: Pool, reads: Reads) -> Json:
    document: Json = pool.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"status"})
    spec = {part: _fields(document["spec"][part], reads[part]) for part in reads if part in document["spec"]}
    if "applications" in spec:
        spec["applications"] = [_with_mounted_keys(each) for each in spec["applications"]]
    return {**document, "spec": {part: value for part, value in spec.items() if value != {}}}


def _fields(part: Any, read: frozenset[str] | None) -> Any:
    return part if read is ALL else {field: value for field, value in part.items() if field in read}


def _with_mounted_keys(application: Json) -> Json:
    secret = application["keys"].get("secret")
    if secret is None:
        raise UnsupportedPool(
            f"spec.applications: {application['name']}: keys.file is for local tools; "
            "in a cluster name a Secret with keys: {secret: NAME}"
        )
    return {**application, "keys": {"file": f"{KEYS_FOLDER}/{secret}/{KEYS_ENTRY}"}}


def _autoscaling_fields(pool: Pool) -> Json:
    """Return the fields of autoscaling that routers read: whether it scales to zero, and `wakeTimeout`."""
    autoscaling = pool.spec.autoscaling
    assert autoscaling is not None
    dumped = autoscaling.model_dump(
        mode="json", by_alias=True, include={"wake_timeout_s"}, exclude_defaults=True
    )
    return {"minReplicas": min(autoscaling.min_replicas, 1), "maxReplicas": 1, **dumped}
