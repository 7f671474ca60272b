"""Merges a pod template into another one, by the rules of Kubernetes' strategic merge.

Maps are merged deeply, lists that are maps are merged entry by entry, everything else is replaced, and `null`
removes. So a `podTemplate` that names the engine's container and one environment variable adds that variable;
ports, probes and mounts stay unless it names them. A patch may list the engine under `containers`, although
it is an init container that keeps running: entries are moved to the list of the container that they name.
"""

from typing import Any

from penstock_operator.manifests.list_keys import list_key

Json = dict[str, Any]

_CONTAINERS = ("initContainers", "containers")


def merge_pod_template(base: Json, patch: Json) -> Json:
    """Return `base` merged with `patch`; neither is changed."""
    return merge_maps(base, _move_containers(base, patch))


def merge_maps(base: Json, patch: Json) -> Json:
    """Return one map merged with another."""
    result = dict(base)
    for field, value in patch.items():
        if value is None:
            result.pop(field, None)
        else:
            result[field] = _merge_value(field, base.get(field), value)
    return result


def _merge_value(field: str, base: Any, patch: Any) -> Any:
    if isinstance(patch, dict):
        return merge_maps(base if isinstance(base, dict) else {}, patch)
    if isinstance(patch, list):
        return _merge_lists(field, base if isinstance(base, list) else [], patch)
    return patch


def _merge_lists(field: str, base: list[Any], patch: list[Any]) -> list[Any]:
    key = list_key(field, base + patch)
    if key is None:
        return patch
    entries = {item[key]: item for item in base}
    for item in patch:
        entries[item[key]] = merge_maps(entries.get(item[key], {}), item)
    return list(entries.values())


def _move_containers(base: Json, patch: Json) -> Json:
    """Return the patch with each container of the base in the same list as in the base.

    What is not a list stays where it is, for the API server to refuse.
    """
    spec = patch.get("spec")
    if not isinstance(spec, dict):
        return patch
    lists = {
        container["name"]: field for field in _CONTAINERS for container in base.get("spec", {}).get(field, [])
    }
    given = [field for field in _CONTAINERS if isinstance(spec.get(field), list | None)]
    moved: dict[str, list[Any]] = {}
    for field in given:
        for container in spec.get(field) or ():
            name = container.get("name") if isinstance(container, dict) else None
            moved.setdefault(lists.get(str(name), field), []).append(container)
    rest = {field: value for field, value in spec.items() if field not in given}
    return {**patch, "spec": {**rest, **moved}}
