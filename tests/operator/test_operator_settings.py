"""The operator's settings from its environment."""

import pytest
from penstock_operator.settings import OperatorSettings, SettingsError, read_settings

LEAST = {
    "PENSTOCK_ROUTER_IMAGE": "router:1",
    "PENSTOCK_PICKER_IMAGE": "picker:1",
    "PENSTOCK_ENVOY_IMAGE": "envoy:1",
    "PENSTOCK_SIDECAR_IMAGE": "sidecar:1",
    "PENSTOCK_SIMULATOR_IMAGE": "simulator:1",
    "PENSTOCK_VLLM_IMAGE": "vllm:1",
    "PENSTOCK_VLLM_PLUGIN_IMAGE": "plugin:1",
}


def test_images_are_the_only_required_settings() -> None:
    assert read_settings(LEAST) == OperatorSettings(
        "router:1", "picker:1", "envoy:1", "sidecar:1", "simulator:1", "vllm:1", "plugin:1"
    )


def test_all_settings_are_read() -> None:
    reported = read_settings(
        {
            **LEAST,
            "PENSTOCK_IMAGE_PULL_POLICY": "Never",
            "PENSTOCK_IMAGE_PULL_SECRETS": "one, two,",
            "PENSTOCK_TLS": "off",
            "PENSTOCK_REDIS_URL_SECRET": "redis",
            "PENSTOCK_GPU_RUNTIME_CLASS": "nvidia",
            "PENSTOCK_GATEWAY_NAMESPACES": "gateways,edge",
        }
    )
    assert (reported.image_pull_policy, reported.tls) == ("Never", False)
    assert (reported.image_pull_secrets, reported.redis_url_secret) == (("one", "two"), "redis")
    assert reported.gpu_runtime_class == "nvidia"
    assert reported.gateway_namespaces == ("gateways", "edge")


def test_empty_variables_count_as_unset() -> None:
    named = ("TLS", "IMAGE_PULL_POLICY", "REDIS_URL_SECRET", "GPU_RUNTIME_CLASS", "GATEWAY_NAMESPACES")
    empty = {f"PENSTOCK_{name}": "" for name in named}
    assert read_settings({**LEAST, **empty}) == read_settings(LEAST)


@pytest.mark.parametrize("variable", sorted(LEAST))
def test_a_missing_image_is_named(variable: str) -> None:
    with pytest.raises(SettingsError, match=f"^{variable}: missing"):
        read_settings({key: value for key, value in LEAST.items() if key != variable})


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        (
            "PENSTOCK_IMAGE_PULL_POLICY",
            "always",
            'POLICY: "always" is not a pull policy; use one of ',
        ),
        ("PENSTOCK_TLS", "true", 'PENSTOCK_TLS: "true" is neither on nor off'),
    ],
)
def test_an_invalid_setting_is_named_with_a_valid_value(variable: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        read_settings({**LEAST, variable: value})
