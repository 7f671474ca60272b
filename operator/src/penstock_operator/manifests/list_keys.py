"""Lists in Kubernetes objects that are maps, and their keys.

Kubernetes writes maps as lists of objects that have a key: containers by name, mounts by path. Server-side
apply merges such a list entry by entry and replaces every other list as a whole. Comparing and merging here
do the same, by the schema's own division (`x-kubernetes-list-map-keys`).
"""

from typing import Any

_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "imagePullSecrets": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "topologySpreadConstraints": "topologyKey",
    "hostAliases": "ip",
    "resourceClaims": "name",
    "ownerReferences": "uid",
}


def list_key(field: str, items: list[Any]) -> str | None:
    """Return the key of the list in this field; None if it is a plain list, which is replaced as a whole."""
    if not all(isinstance(item, dict) for item in items):
        return None
    key = _KEYS.get(field) or _port_key(field, items)
    is_map = key is not None and all(isinstance(item.get(key), str | int) for item in items)
    return key if is_map else None


def _port_key(field: str, items: list[dict[str, Any]]) -> str | None:
    if field != "ports" or not items:
        return None
    if all("containerPort" in item for item in items):
        return "containerPort"
    return "port" if all("targetPort" in item for item in items) else None
