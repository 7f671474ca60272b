"""What objects a pool wants, and what all of them have in common."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.objects.render_context import UnsupportedPool
from penstock_operator.settings import OperatorSettings

Want = Callable[..., dict[str, Manifest]]

ALWAYS = {
    "ServiceAccount/llama-replica",
    "ServiceAccount/llama-router",
    "Role/llama-router",
    "RoleBinding/llama-router",
    "ConfigMap/llama-replica",
    "ConfigMap/llama-router",
    "NetworkPolicy/llama-replica",
    "NetworkPolicy/llama-router",
    "PodDisruptionBudget/llama-replica",
    "PodDisruptionBudget/llama-router",
    "Service/llama-replicas",
    "Service/llama",
    "Service/llama-admin",
    "StatefulSet/llama-replica",
    "Deployment/llama-router",
}
KEYS = {"Secret/llama-ca", "Secret/llama-tls"}
GATEWAY = {"host": "a.example", "kind": "HTTPRoute", "gateway": {"name": "public"}}
BOUNDS = {"minReplicas": 1, "maxReplicas": 4}
EVERYTHING: dict[str, Any] = {
    "ingress": {"host": "a.example"},
    "monitoring": {"serviceMonitor": True},
    "autoscaling": {**BOUNDS, "by": "hpa"},
}


@pytest.mark.parametrize(
    ("spec", "more"),
    [
        ({}, set()),
        ({"gateway": "envoy"}, {"ConfigMap/llama-envoy"}),
        (
            {"gateway": "inferencePool", "ingress": GATEWAY},
            {"InferencePool/llama", "Service/llama-picker", "HTTPRoute/llama"},
        ),
        ({"ingress": {"host": "a.example"}}, {"Ingress/llama"}),
        ({"ingress": GATEWAY}, {"HTTPRoute/llama"}),
        ({"monitoring": {"serviceMonitor": True}}, {"ServiceMonitor/llama"}),
        ({"autoscaling": BOUNDS}, set()),
        ({"autoscaling": {**BOUNDS, "by": "hpa"}}, {"HorizontalPodAutoscaler/llama"}),
        ({"autoscaling": {**BOUNDS, "by": "keda", "prometheusUrl": "http://p"}}, {"ScaledObject/llama"}),
    ],
    ids=["least", "envoy", "inference pool", "ingress", "gateway", "monitor", "own scaling", "hpa", "keda"],
)
def test_the_desired_objects_are_those_of_the_spec_and_no_others(
    want: Want, spec: dict[str, Any], more: set[str]
) -> None:
    less = {"Service/llama"} if spec.get("gateway") == "inferencePool" else set()
    assert set(want(**spec)) == (ALWAYS | KEYS | more) - less


def test_without_tls_there_are_no_keys(want: Want, settings: OperatorSettings) -> None:
    objects = want(settings=dataclasses.replace(settings, tls=False))
    assert set(objects) == ALWAYS
    assert "--insecure" in arguments(objects, "StatefulSet/llama-replica", "sidecar")
    assert not any("tls" in word for word in arguments(objects, "Deployment/llama-router", "router"))
    assert all(volume["name"] != "tls" for pod in pods(objects) for volume in pod["volumes"])


def test_every_object_is_labelled_with_its_pool(want: Want) -> None:
    for name, manifest in want(**EVERYTHING).items():
        metadata = manifest["metadata"]
        (reference,) = metadata["ownerReferences"]
        assert metadata["namespace"] == "apps", name
        assert (
            metadata["labels"].items()
            >= {
                "app.kubernetes.io/name": "penstock",
                "app.kubernetes.io/instance": "llama",
                "app.kubernetes.io/managed-by": "penstock-operator",
                "penstock.dev/pool": "llama",
            }.items()
        )
        assert (reference["uid"], reference["controller"]) == ("uid-of-llama", True), name
        assert metadata["annotations"]["penstock.dev/wanted"], name


def test_the_longest_name_fits_everywhere(want: Want) -> None:
    longest = "l" * 40
    assert all(len(name.partition("/")[2]) <= 52 for name in want(name=longest, **EVERYTHING))


def test_equal_pools_have_equal_desired_objects(want: Want) -> None:
    assert want(**EVERYTHING) == want(**EVERYTHING)


def test_pods_are_applied_after_their_dependencies_and_before_their_services(want: Want) -> None:
    order = list(want(**EVERYTHING))
    pods = order.index("StatefulSet/llama-replica")
    assert all(order.index(name) < pods for name in (ALWAYS | KEYS) - set(order[pods : pods + 2]))
    assert order.index("Ingress/llama") > order.index("Deployment/llama-router") == pods + 1


def test_the_decided_number_of_replicas_runs_and_not_the_specs(want: Want) -> None:
    assert want(replicas=2, decided=7)["StatefulSet/llama-replica"]["spec"]["replicas"] == 7


@pytest.mark.parametrize("kind", ["simulated", "vllm", "openai"])
def test_pods_meet_the_restricted_standard(want: Want, kind: str) -> None:
    engine = {"type": kind, "timeModel": "llama-3-8b-a100", "image": "engine:1"}
    for pod in pods(want(engine=engine)):
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(pod):
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, container["name"]
            assert security["capabilities"] == {"drop": ["ALL"]}, container["name"]
            ours = container["name"] != "engine" or kind == "simulated"
            assert security.get("readOnlyRootFilesystem", False) is ours, container["name"]


def test_only_routers_have_a_token_limited_to_endpoint_slices(want: Want) -> None:
    objects = want()
    replicas, routers = pods(objects)
    assert replicas["automountServiceAccountToken"] is False
    assert routers["automountServiceAccountToken"] is True
    assert routers["serviceAccountName"] == objects["RoleBinding/llama-router"]["subjects"][0]["name"]
    assert objects["Role/llama-router"]["rules"] == [
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["get", "list", "watch"],
        }
    ]


def test_only_its_sidecar_reaches_an_engine(want: Want) -> None:
    ingress = want()["NetworkPolicy/llama-replica"]["spec"]["ingress"]
    assert [rule["ports"][0]["port"] for rule in ingress] == [7000, 7001]
    (routers,) = ingress[0]["from"]
    assert routers["podSelector"]["matchLabels"] == {
        "penstock.dev/pool": "llama",
        "app.kubernetes.io/component": "router",
    }


def test_routers_admin_ports_are_reached_from_inside_the_cluster_only(want: Want) -> None:
    objects = want(**EVERYTHING)
    api, admin = objects["NetworkPolicy/llama-router"]["spec"]["ingress"]
    assert (api["ports"], "from" in api) == ([{"protocol": "TCP", "port": 8080}], False)
    assert admin == {"from": [{"namespaceSelector": {}}], "ports": [{"protocol": "TCP", "port": 9080}]}
    assert [port["name"] for port in objects["Service/llama"]["spec"]["ports"]] == ["http"]
    assert objects["Service/llama-admin"]["spec"]["clusterIP"] == "None"
    assert "admin" not in str(objects["Ingress/llama"]["spec"])
    assert "admin" not in str(want(ingress=GATEWAY)["HTTPRoute/llama"]["spec"])


def test_a_pool_with_a_certificate_serves_https_and_is_probed_in_the_clear(want: Want) -> None:
    objects = want(router={"tls": {"secret": "api-tls"}}, **EVERYTHING)
    pod = objects["Deployment/llama-router"]["spec"]["template"]["spec"]
    (router,) = containers(pod)
    (folder,) = (mount["mountPath"] for mount in router["volumeMounts"] if mount["name"] == "certificate")
    (secret,) = (volume["secret"] for volume in pod["volumes"] if volume["name"] == "certificate")
    assert {f"--tls-cert={folder}/tls.crt", f"--tls-key={folder}/tls.key"} <= set(router["args"])
    assert secret["secretName"] == "api-tls"
    (port,) = objects["Service/llama"]["spec"]["ports"]
    assert (port["name"], port["port"], port["appProtocol"]) == ("https", 443, "https")
    ingress = objects["Ingress/llama"]
    (rule,) = ingress["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"]["port"] == {"name": "https"}
    assert ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/backend-protocol"] == "HTTPS"
    probes = [router[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert [(probe["port"], probe.get("scheme")) for probe in probes] == [("admin", None)] * 3


def test_monitoring_reads_routers_at_their_admin_port(want: Want) -> None:
    objects = want(**EVERYTHING)
    (router,) = containers(objects["Deployment/llama-router"]["spec"]["template"]["spec"])
    ports = {port["name"]: port["containerPort"] for port in router["ports"]}
    (service,) = objects["Service/llama-admin"]["spec"]["ports"]
    assert f"--admin-port={ports['admin']}" in router["args"]
    assert (service["name"], service["targetPort"]) == ("admin", ports["admin"])
    endpoints = objects["ServiceMonitor/llama"]["spec"]["endpoints"]
    assert [endpoint["port"] for endpoint in endpoints] == ["admin", "metrics"]
    probes = [router[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    assert [probe["port"] for probe in probes] == ["admin"] * 3


def test_a_pod_mounts_its_own_key_and_never_the_authoritys(want: Want) -> None:
    replicas, routers = (
        {volume["name"]: volume for volume in pod["volumes"]}["tls"]["secret"] for pod in pods(want())
    )
    assert replicas["secretName"] == routers["secretName"] == "llama-tls"
    assert [item["key"] for item in replicas["items"]] == ["ca.crt", "tls.crt", "tls.key"]
    assert [item["key"] for item in routers["items"]] == ["ca.crt", "client.crt", "client.key"]


def test_routers_check_replicas_by_the_name_on_their_certificate(want: Want) -> None:
    objects = want()
    words = arguments(objects, "Deployment/llama-router", "router")
    assert "--replica-tls-server-name=llama-replicas.apps.svc" in words
    assert "--discover=apps/llama-replicas" in words


def test_the_kubelet_mounts_each_key_secret_once_into_routers(want: Want) -> None:
    objects = want(
        applications=[
            {"name": name, "tier": "chat", "keys": {"secret": secret}}
            for name, secret in [("ide", "ide-keys"), ("web", "web-keys"), ("cli", "ide-keys")]
        ]
    )
    replicas, routers = pods(objects)
    (config,) = (volume for volume in routers["volumes"] if volume["name"] == "config")
    secrets = [source["secret"] for source in config["projected"]["sources"][1:]]
    assert [(secret["name"], secret["items"][0]["path"]) for secret in secrets] == [
        ("ide-keys", "keys/ide-keys/keys"),
        ("web-keys", "keys/web-keys/keys"),
    ]
    assert "ide-keys" not in str(replicas)


def test_routers_read_their_key_secrets_themselves_and_no_others(want: Want) -> None:
    names = [("ide", "ide-keys"), ("web", "web-keys")]
    objects = want(
        applications=[{"name": name, "tier": "chat", "keys": {"secret": secret}} for name, secret in names]
    )
    words = arguments(objects, "Deployment/llama-router", "router")
    assert [word for word in words if word.startswith("--key-secret")] == [
        "--key-secret=ide=apps/ide-keys",
        "--key-secret=web=apps/web-keys",
    ]
    assert objects["Role/llama-router"]["rules"][1:] == [
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "verbs": ["get"],
            "resourceNames": ["ide-keys", "web-keys"],
        }
    ]


def test_keys_in_a_file_are_refused_by_name(want: Want) -> None:
    with pytest.raises(UnsupportedPool, match=r"ide: keys\.file is for local tools"):
        want(applications=[{"name": "ide", "tier": "chat", "keys": {"file": "keys.txt"}}])


def test_images_are_pulled_with_the_operators_settings(want: Want, settings: OperatorSettings) -> None:
    reported = dataclasses.replace(settings, image_pull_policy="Never", image_pull_secrets=("a", "b"))
    for pod in pods(want(settings=reported)):
        assert pod["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
        assert {container["imagePullPolicy"] for container in containers(pod)} == {"Never"}
    assert all("imagePullSecrets" not in pod for pod in pods(want()))


def test_routers_get_the_url_of_a_configured_redis(want: Want, settings: OperatorSettings) -> None:
    assert "REDIS" not in str(want())
    router = want(settings=dataclasses.replace(settings, redis_url_secret="redis"))["Deployment/llama-router"]
    (variable,) = router["spec"]["template"]["spec"]["containers"][0]["env"]
    assert variable["valueFrom"]["secretKeyRef"] == {"name": "redis", "key": "url"}


def test_a_pools_own_router_image_resources_and_template_are_used(want: Want) -> None:
    router = {
        "image": "mine:2",
        "replicas": 5,
        "resources": {"requests": {"cpu": "2"}},
        "podTemplate": {"spec": {"nodeSelector": {"pool": "cpu"}}},
    }
    spec = want(router=router)["Deployment/llama-router"]["spec"]
    container = spec["template"]["spec"]["containers"][0]
    assert (spec["replicas"], container["image"]) == (5, "mine:2")
    assert container["resources"] == {"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}}
    assert spec["template"]["spec"]["nodeSelector"] == {"pool": "cpu"}


def test_a_template_cannot_remove_a_pod_from_its_pool(want: Want) -> None:
    patch = {"metadata": {"labels": {"penstock.dev/pool": "other", "team": "a"}, "annotations": {"x": "y"}}}
    template = want(router={"podTemplate": patch})["Deployment/llama-router"]["spec"]["template"]
    assert template["metadata"]["labels"].items() >= {"penstock.dev/pool": "llama", "team": "a"}.items()
    assert template["metadata"]["annotations"].keys() == {"x", "penstock.dev/config"}


@pytest.mark.parametrize("spec", [{}, {"gateway": "envoy"}])
def test_a_container_that_hangs_is_killed_long_before_its_pod_would_have_drained(
    want: Want, spec: dict[str, Any]
) -> None:
    for pod in pods(want(**spec)):
        probes = [each["livenessProbe"] for each in containers(pod) if "livenessProbe" in each]
        assert {probe["terminationGracePeriodSeconds"] for probe in probes} == {10}
        assert pod["terminationGracePeriodSeconds"] > 60


def pods(objects: dict[str, Manifest]) -> tuple[Any, Any]:
    """Specs of replicas' and of routers' pods."""
    replicas, routers = objects["StatefulSet/llama-replica"], objects["Deployment/llama-router"]
    return replicas["spec"]["template"]["spec"], routers["spec"]["template"]["spec"]


def containers(pod: Any) -> Iterator[Any]:
    yield from (*pod.get("initContainers", ()), *pod["containers"])


def arguments(objects: dict[str, Manifest], workload: str, name: str) -> list[str]:
    pod = objects[workload]["spec"]["template"]["spec"]
    (found,) = (container for container in containers(pod) if container["name"] == name)
    return list(found["args"])
