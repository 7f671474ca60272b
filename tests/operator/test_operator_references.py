"""Objects that pods refer to and a user has to create, by the field of the pool that names it."""

from typing import Any

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import Component
from penstock_operator.settings import OperatorSettings
from penstock_operator.status.pod_references import references
from penstock_pool import Pool, parse_pool


def pool(**spec: Any) -> Pool:
    document = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": "chat"},
        "spec": {
            "model": {"name": "llama"},
            "engine": {"type": "openai", "image": "e:1", "timeModel": "llama-3-8b-a100"},
            "tiers": [{"name": "chat", "slo": {"ttft": "1s", "tpot": "100ms"}}],
        }
        | spec,
    }
    return parse_pool(document, "pool")


def pods(component: str, **spec: Any) -> Manifest:
    labels = {"app.kubernetes.io/component": component}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "chat", "namespace": "team", "labels": labels},
        "spec": {"template": {"spec": spec}},
    }


SETTINGS = OperatorSettings(
    router_image="router:1",
    picker_image="picker:1",
    envoy_image="envoy:1",
    sidecar_image="sidecar:1",
    simulator_image="simulator:1",
    vllm_image="vllm:1",
    vllm_plugin_image="plugin:1",
    image_pull_secrets=("registry",),
    redis_url_secret="redis",
)


def named(pool: Pool, *wanted: Manifest) -> list[tuple[str, str, str]]:
    return [(found.ref.kind, found.ref.name, found.field) for found in references(pool, SETTINGS, wanted)]


def test_a_claim_and_keys_are_named_by_their_fields() -> None:
    with_both = pool(
        model={"name": "llama", "source": {"persistentVolumeClaim": "weights"}},
        applications=[{"name": "ide", "tier": "chat", "keys": {"secret": "ide-keys"}}],
    )
    weights = pods("replica", volumes=[{"persistentVolumeClaim": {"claimName": "weights"}}])
    keys = pods("router", volumes=[{"secret": {"secretName": "ide-keys"}}])
    assert named(with_both, weights, keys) == [
        ("PersistentVolumeClaim", "weights", "spec.model.source.persistentVolumeClaim"),
        ("Secret", "ide-keys", "spec.applications[0].keys.secret"),
    ]
    assert [found.component for found in references(with_both, SETTINGS, [weights, keys])] == [
        Component.REPLICA,
        Component.ROUTER,
    ]


def test_all_kinds_of_references_count_except_optional_ones() -> None:
    with_template = pool(
        engine={
            "type": "openai",
            "image": "e:1",
            "timeModel": "llama-3-8b-a100",
            "podTemplate": {"spec": {"nodeSelector": {"gpu": "a100"}}},
        }
    )
    wanted = pods(
        "replica",
        volumes=[
            {"configMap": {"name": "settings"}},
            {"secret": {"secretName": "perhaps", "optional": True}},
            {"projected": {"sources": [{"secret": {"name": "projected"}}]}},
            {"emptyDir": {}},
        ],
        initContainers=[{"env": [{"valueFrom": {"secretKeyRef": {"name": "token"}}}]}],
        containers=[{"env": [{"name": "A", "value": "b"}, {"valueFrom": {"fieldRef": {}}}]}],
    )
    assert named(with_template, wanted) == [
        ("ConfigMap", "settings", "spec.engine.podTemplate"),
        ("Secret", "projected", "spec.engine.podTemplate"),
        ("Secret", "token", "spec.engine.podTemplate"),
    ]


def test_references_include_whole_environments() -> None:
    wanted = pods(
        "router",
        containers=[
            {
                "envFrom": [
                    {"secretRef": {"name": "token"}},
                    {"prefix": "A_", "configMapRef": {"name": "settings"}},
                    {"secretRef": {"name": "perhaps", "optional": True}},
                ]
            }
        ],
    )
    assert named(pool(), wanted) == [
        ("Secret", "token", "spec.router.podTemplate"),
        ("ConfigMap", "settings", "spec.router.podTemplate"),
    ]


def test_secrets_of_the_installation_are_named_by_its_settings() -> None:
    url = {"name": "URL", "valueFrom": {"secretKeyRef": {"name": "redis", "key": "url"}}}
    wanted = pods(
        "router",
        imagePullSecrets=[{"name": "registry"}, {"name": "of-the-template"}, {}],
        containers=[{"env": [url]}],
    )
    assert named(pool(), wanted) == [
        ("Secret", "registry", "PENSTOCK_IMAGE_PULL_SECRETS"),
        ("Secret", "of-the-template", "spec.router.podTemplate"),
        ("Secret", "redis", "PENSTOCK_REDIS_URL_SECRET"),
    ]


def test_a_routers_certificate_is_named_by_its_field() -> None:
    served = pool(router={"tls": {"secret": "api-tls"}})
    wanted = pods(
        "router", volumes=[{"secret": {"secretName": "api-tls"}}, {"configMap": {"name": "api-tls"}}]
    )
    assert named(served, wanted) == [
        ("Secret", "api-tls", "spec.router.tls.secret"),
        ("ConfigMap", "api-tls", "spec.router.podTemplate"),
    ]


def test_an_engines_api_key_is_named_by_its_field() -> None:
    guarded = pool(engine={"type": "openai", "image": "e:1", "apiKey": {"secret": "engine-key"}})
    key = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "engine-key", "key": "api-key"}}}
    wanted = pods("replica", initContainers=[{"env": [key]}])
    assert named(guarded, wanted) == [("Secret", "engine-key", "spec.engine.apiKey.secret")]


def test_a_measured_time_model_is_named_by_its_field() -> None:
    measured = pool(engine={"type": "openai", "image": "e:1", "timeModel": "measured.json"})
    wanted = pods("replica", volumes=[{"projected": {"sources": [{"configMap": {"name": "measured"}}]}}])
    assert named(measured, wanted) == [("ConfigMap", "measured", "spec.engine.timeModel")]


def test_an_object_that_the_pool_owns_is_not_a_reference() -> None:
    own = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own", "namespace": "team"}}
    wanted = pods("replica", volumes=[{"configMap": {"name": "own"}}])
    assert named(pool(), wanted, own) == []
