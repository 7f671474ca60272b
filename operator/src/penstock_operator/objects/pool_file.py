"""The pool file as each component reads it: what it uses of the pool, and nothing else.

So a component's pods roll exactly when something changes that they read: the file is what their configuration
is a digest of. A field at its default is left out, written or not; a new version's new field then rolls
nothing either.

Which fields a component reads is a table. A field of the schema that is in neither it nor the list of those
that only the operator reads fails a test, so that no field is forgotten.
"""

from collections.abc import Mapping
from typing import Any

from penstock_pool import Pool
from penstock_pool.document import write_document

from penstock_operator.objects.render_context import UnsupportedPool

Json = dict[str, Any]

KEYS_FOLDER = "/etc/penstock/keys"
"""Where routers have the Secrets of their pool's applications, a folder each."""

KEYS_ENTRY = "keys"
"""The entry of such a Secret that holds the keys, one a line."""

ALL = None
"""Every field of this part."""

Reads = Mapping[str, frozenset[str] | None]
"""Parts of `spec`, and which of their fields are read."""

REPLICA_READS: Reads = {
    "model": frozenset({"name"}),
    "engine": frozenset(
        {
            "type",
            "timeModel",
            "kvCacheTokens",
            "blockTokens",
            "maxModelLen",
            "speculation",
            "connectTimeout",
            "silenceTimeout",
            "profileTimeout",
        }
    ),
    "tiers": ALL,
    "scheduling": ALL,
}
"""What the sidecar and a simulated engine read."""

ROUTER_READS: Reads = {
    "model": frozenset({"name"}),
    "engine": frozenset({"type", "timeModel", "maxModelLen"}),
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
"""What a router reads as it stands; `autoscaling` and `applications` are put in its own words."""


def replica_file(pool: Pool) -> str:
    """The pool file for replicas."""
    return write_document(_part(pool, REPLICA_READS))


def router_file(pool: Pool) -> str:
    """The pool file for routers. Raises UnsupportedPool for keys in a file: a cluster has none."""
    document = _part(pool, ROUTER_READS)
    spec = document["spec"]
    if pool.spec.applications:
        spec["applications"] = [_with_mounted_keys(each) for each in spec["applications"]]
    if pool.spec.autoscaling is not None:
        spec["autoscaling"] = _holding(pool)
    return write_document(document)


def _part(pool: Pool, reads: Reads) -> Json:
    document: Json = pool.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude={"status"})
    spec = {part: _fields(document["spec"][part], reads[part]) for part in reads if part in document["spec"]}
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


def _holding(pool: Pool) -> Json:
    """Autoscaling as routers care about it: whether none may run, and how long one may take to wake."""
    told = pool.spec.autoscaling
    assert told is not None
    dumped = told.model_dump(mode="json", by_alias=True, include={"wake_timeout_s"}, exclude_defaults=True)
    return {"minReplicas": min(told.min_replicas, 1), "maxReplicas": 1, **dumped}
