"""The objects that the chart installs, for each of its value sets."""

import pytest
from chart.rendered import VALUE_SETS, Manifest, is_test, of_kind, pod_spec, rendered, the
from penstock_operator.options import LEASE_NAME, read_options
from penstock_operator.settings import read_settings

CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}


def environment(manifests: list[Manifest]) -> dict[str, str]:
    (container,) = pod_spec(the(manifests, "Deployment"))["containers"]
    return {entry["name"]: entry.get("value", "a-pod") for entry in container["env"]}


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_every_pod_is_restricted_and_bounded(value_set: str) -> None:
    for manifest in (m for m in rendered(value_set) if m["kind"] in ("Deployment", "Pod")):
        spec = pod_spec(manifest)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["limits"]["memory"]
            assert container["resources"]["requests"].keys() >= {"cpu", "memory"}


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_service_budget_and_policy_select_only_the_operators_pods(value_set: str) -> None:
    manifests = rendered(value_set)
    labels = the(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    pickers = [the(manifests, "Service")["spec"]["selector"]]
    pickers += [m["spec"]["selector"]["matchLabels"] for m in of_kind(manifests, "PodDisruptionBudget")]
    pickers += [m["spec"]["podSelector"]["matchLabels"] for m in of_kind(manifests, "NetworkPolicy")]
    for picker in pickers:
        assert picker.items() <= labels.items()
        assert picker["app.kubernetes.io/component"] == "operator"


def test_the_operator_accepts_the_chart_s_flags() -> None:
    settings = read_settings(environment(rendered("ha")))
    assert settings.router_image == "registry.example/mirror/penstock/router:0.1.0"
    assert settings.image_pull_secrets == ("mirror",)
    assert settings.redis_url_secret == "penstock-redis"
    assert settings.gpu_runtime_class == "nvidia"
    assert settings.tls
    off = ["--set", "pools.tls=false,images.pullPolicy=Never,images.tag=dev"]
    settings = read_settings(environment(rendered(flags=off)))
    assert not settings.tls
    assert settings.image_pull_policy == "Never"
    assert settings.sidecar_image == "localhost/penstock/sidecar:dev"
    assert settings.redis_url_secret is None
    assert settings.gpu_runtime_class is None


def test_operators_of_a_release_share_its_lease() -> None:
    manifests = rendered("ha")
    lease, reported = the(manifests, "Lease")["metadata"], read_options(environment(manifests)).lease
    assert reported is not None
    assert (
        (reported.namespace, reported.name)
        == (lease["namespace"], lease["name"])
        == (lease["namespace"], LEASE_NAME)
    )


def test_the_operator_watches_the_namespaces_of_its_roles() -> None:
    manifests = rendered(flags=["--set", "watchNamespaces={team-a,team-b}"])
    assert read_options(environment(manifests)).namespaces == ("team-a", "team-b")
    assert read_options(environment(rendered())).namespaces == ()


def test_a_digest_overrides_a_tag_and_an_image_has_its_own_registry() -> None:
    (container,) = pod_spec(the(rendered("ha"), "Deployment"))["containers"]
    assert container["image"].startswith("registry.example/mirror/penstock/operator@sha256:")
    assert environment(rendered("ha"))["PENSTOCK_VLLM_IMAGE"].startswith("docker.io/vllm/vllm-openai:v")


def test_two_operators_have_a_budget_and_one_has_none() -> None:
    assert of_kind(rendered(), "PodDisruptionBudget") == []
    assert the(rendered("ha"), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1


def test_an_administrator_of_one_namespace_can_install_the_chart() -> None:
    assert {m["kind"] for m in rendered("locked-down")} & CLUSTER_WIDE == set()
    assert {m["kind"] for m in rendered() if not is_test(m)} >= CLUSTER_WIDE


def test_with_egress_closed_the_operator_reaches_names_the_api_server_and_pools() -> None:
    policy = the(rendered("locked-down"), "NetworkPolicy")["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    ports = [[port["port"] for port in rule["ports"]] for rule in policy["egress"]]
    assert ports == [[53, 53], [6443], [9080, 7001]]
