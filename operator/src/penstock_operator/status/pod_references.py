"""References of a pool's pods to objects that the pool does not own: Secrets, ConfigMaps and claims.

The kubelet reports a missing object minutes later and pod by pod. The operator looks references up itself,
and reports a missing object immediately with the field that names it. References are read from the desired
pods, so volumes of the pool's podTemplate are included. Only existence is checked; the content of Secrets is
not read.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from penstock_pool import Pool
from penstock_pool.time_models import SUFFIX

from penstock_operator.manifests.manifest import Manifest, Ref, ref_of
from penstock_operator.manifests.names import ROOT_CA, Component
from penstock_operator.manifests.pods import component_of
from penstock_operator.settings import PULL_SECRETS, REDIS_SECRET, OperatorSettings


class PodReference(NamedTuple):
    """An object that the user must create. field: of the pool or of the operator's settings."""

    ref: Ref
    field: str
    component: Component | None


def references(
    pool: Pool, settings: OperatorSettings, desired: Sequence[Manifest]
) -> tuple[PodReference, ...]:
    """Return the objects that desired pods require and that are not among the desired ones."""
    owned = {ref_of(manifest) for manifest in desired}
    references_by_ref: dict[Ref, PodReference] = {}
    for manifest in desired:
        template = manifest.get("spec", {}).get("template")
        if template is None:
            continue
        namespace, component = manifest["metadata"]["namespace"], component_of(manifest)
        for kind, name in _pod_references(template["spec"]):
            ref = Ref("v1", kind, namespace, name)
            if ref not in owned:
                references_by_ref.setdefault(
                    ref, PodReference(ref, _field(pool, settings, component, ref), component)
                )
    return tuple(references_by_ref.values())


def _pod_references(pod: Manifest) -> Iterator[tuple[str, str]]:
    """Yield kind and name of all objects that a pod mounts, pulls images with, or takes variables from.

    Parts of a wrong shape, which a `podTemplate` may have, refer to nothing; the API server refuses them.
    """
    for secret in _maps(pod, "imagePullSecrets"):
        yield from _named("Secret", secret.get("name"))
    for volume in _maps(pod, "volumes"):
        yield from _volume_references(volume)
        for source in _maps(_map(volume, "projected") or {}, "sources"):
            yield from _volume_references(source)
    for container in (*_maps(pod, "initContainers"), *_maps(pod, "containers")):
        for variable in _maps(container, "env"):
            yield from _environment_references(_map(variable, "valueFrom") or {}, "KeyRef")
        for source in _maps(container, "envFrom"):
            yield from _environment_references(source, "Ref")


def _volume_references(source: Manifest) -> Iterator[tuple[str, str]]:
    if (claim := _map(source, "persistentVolumeClaim")) is not None:
        yield from _named("PersistentVolumeClaim", claim.get("claimName"))
    for kind, field in (("Secret", "secret"), ("ConfigMap", "configMap")):
        reference = _map(source, field)
        if reference is not None and not reference.get("optional") and reference.get("name") != ROOT_CA:
            yield from _named(kind, reference.get("secretName") or reference.get("name"))


def _environment_references(source: Manifest, suffix: str) -> Iterator[tuple[str, str]]:
    """Yield references of environment variables.

    suffix: `KeyRef` for single variables, `Ref` if every entry becomes a variable.
    """
    for kind, field in (("Secret", "secret"), ("ConfigMap", "configMap")):
        reference = _map(source, f"{field}{suffix}")
        if reference is not None and not reference.get("optional"):
            yield from _named(kind, reference.get("name"))


def _named(kind: str, name: Any) -> Iterator[tuple[str, str]]:
    if isinstance(name, str) and name:
        yield kind, name


def _map(parent: Manifest, field: str) -> Manifest | None:
    value = parent.get(field)
    return value if isinstance(value, dict) else None


def _maps(parent: Manifest, field: str) -> list[Manifest]:
    value = parent.get(field)
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _field(pool: Pool, settings: OperatorSettings, component: Component | None, ref: Ref) -> str:
    kind, name = ref.kind, ref.name
    if kind == "Secret" and name in settings.image_pull_secrets:
        return PULL_SECRETS
    if kind == "Secret" and name == settings.redis_url_secret:
        return REDIS_SECRET
    for index, application in enumerate(pool.spec.applications):
        if kind == "Secret" and application.keys.secret == name:
            return f"spec.applications[{index}].keys.secret"
    key = pool.spec.engine.api_key
    if kind == "Secret" and key is not None and key.secret == name:
        return "spec.engine.apiKey.secret"
    tls = pool.spec.router.tls
    if kind == "Secret" and tls is not None and tls.secret == name:
        return "spec.router.tls.secret"
    source = pool.spec.model.source
    if kind == "PersistentVolumeClaim" and source is not None and source.persistent_volume_claim == name:
        return "spec.model.source.persistentVolumeClaim"
    if kind == "ConfigMap" and pool.spec.engine.time_model == f"{name}{SUFFIX}":
        return "spec.engine.timeModel"
    return "spec.router.podTemplate" if component is Component.ROUTER else "spec.engine.podTemplate"
