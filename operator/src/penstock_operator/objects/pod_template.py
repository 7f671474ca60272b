"""Common parts of both components' pods: labels, digest of the configuration, security, topology spread."""

from typing import Any

from penstock_operator.manifests.names import CONFIG_ANNOTATION, Component, component_labels, selector
from penstock_operator.objects.render_context import RenderContext
from penstock_operator.objects.security_contexts import POD_SECURITY
from penstock_operator.objects.strategic_merge import merge_pod_template

Json = dict[str, Any]


def pod_template(
    context: RenderContext, component: Component, config_digest: str, patch: Json | None, **spec: Any
) -> Json:
    """Return the template of a component's pods, merged with the pool's `podTemplate`.

    config_digest: digest of what the pods read besides their template. The pool's template cannot override
        this digest and the selector's labels.
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
    enforced: Json = {
        "metadata": {
            "labels": component_labels(context.name, component),
            "annotations": {CONFIG_ANNOTATION: config_digest},
        }
    }
    return merge_pod_template(merge_pod_template(base, patch or {}), enforced)


def _spread(pool: str, component: Component, key: str) -> Json:
    """Return a soft constraint that spreads pods evenly: a pod that cannot be spread is still scheduled."""
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(pool, component)},
    }
