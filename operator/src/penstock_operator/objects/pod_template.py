"""What both kinds of pods share: labels, their configuration's digest, security, spreading."""

from typing import Any

from penstock_operator.manifests.names import CONFIG_ANNOTATION, Component, component_labels, selector
from penstock_operator.objects.render_context import RenderContext
from penstock_operator.objects.security_contexts import POD_SECURITY
from penstock_operator.objects.strategic_merge import merge_pod_template

Json = dict[str, Any]


def pod_template(
    context: RenderContext, component: Component, read: str, patch: Json | None, **spec: Any
) -> Json:
    """The template of a component's pods, with the pool's own words for it laid over.

    read: digest of what the pods read beside their template. The labels that select the pods and this digest
    stay, whatever the patch says.
    """
    secrets = [{"name": name} for name in context.settings.image_pull_secrets]
    base: Json = {
        "metadata": {"labels": component_labels(context.name, component)},
        "spec": {
            "enableServiceLinks": False,
            "securityContext": POD_SECURITY,
            "topologySpreadConstraints": [
                _spread(context.name, component, key)
                for key in ("topology.kubernetes.io/zone", "kubernetes.io/hostname")
            ],
            **({"imagePullSecrets": secrets} if secrets else {}),
            **spec,
        },
    }
    ours: Json = {
        "metadata": {
            "labels": component_labels(context.name, component),
            "annotations": {CONFIG_ANNOTATION: read},
        }
    }
    return merge_pod_template(merge_pod_template(base, patch or {}), ours)


def _spread(pool: str, component: Component, key: str) -> Json:
    """Evenly where that is possible; a pod that cannot be spread serves better than one that waits."""
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(pool, component)},
    }
