"""Settings that are the same for all pools of one operator.

They are read from the environment once and passed as a value, so that decisions can be tested without an
environment. Settings of one pool are in its ServingPool.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

PULL_SECRETS = "PENSTOCK_IMAGE_PULL_SECRETS"
REDIS_SECRET = "PENSTOCK_REDIS_URL_SECRET"
PullPolicy = Literal["Always", "IfNotPresent", "Never"]


class SettingsError(Exception):
    """An invalid environment variable. The message is one line: variable, value, valid values."""


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Settings of one operator, which do not change while it runs."""

    router_image: str
    picker_image: str
    envoy_image: str
    """Image of unmodified Envoy 1.40, for pools with `gateway: envoy`."""

    sidecar_image: str
    simulator_image: str
    """Default image of engines of type `simulated`."""

    vllm_image: str
    """Default image of engines of type `vllm`."""

    vllm_plugin_image: str
    """Image with Penstock's scheduler, which an init container copies beside an unmodified vLLM."""

    image_pull_policy: PullPolicy = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    """Names of Secrets in each pool's namespace."""

    tls: bool = True
    """Whether routers and replicas use mutual TLS."""

    redis_url_secret: str | None = None
    """Secret in each pool's namespace with the `url` of the routers' Redis; None for no Redis."""

    gpu_runtime_class: str | None = None
    """RuntimeClass of replicas with NVIDIA GPUs; None for the nodes' default."""

    gateway_namespaces: tuple[str, ...] = ()
    """Namespaces of the pods that carry Gateways' traffic, for pools with `inferencePool`; empty for any."""


def read_settings(environment: Mapping[str, str]) -> OperatorSettings:
    """Return the settings in an environment. Raises SettingsError."""
    return OperatorSettings(
        router_image=_required(environment, "PENSTOCK_ROUTER_IMAGE"),
        picker_image=_required(environment, "PENSTOCK_PICKER_IMAGE"),
        envoy_image=_required(environment, "PENSTOCK_ENVOY_IMAGE"),
        sidecar_image=_required(environment, "PENSTOCK_SIDECAR_IMAGE"),
        simulator_image=_required(environment, "PENSTOCK_SIMULATOR_IMAGE"),
        vllm_image=_required(environment, "PENSTOCK_VLLM_IMAGE"),
        vllm_plugin_image=_required(environment, "PENSTOCK_VLLM_PLUGIN_IMAGE"),
        image_pull_policy=_pull_policy(environment.get("PENSTOCK_IMAGE_PULL_POLICY") or "IfNotPresent"),
        image_pull_secrets=_names(environment.get(PULL_SECRETS, "")),
        tls=_on_or_off("PENSTOCK_TLS", environment.get("PENSTOCK_TLS") or "on"),
        redis_url_secret=environment.get(REDIS_SECRET) or None,
        gpu_runtime_class=environment.get("PENSTOCK_GPU_RUNTIME_CLASS") or None,
        gateway_namespaces=_names(environment.get("PENSTOCK_GATEWAY_NAMESPACES", "")),
    )


def _required(environment: Mapping[str, str], variable: str) -> str:
    if value := environment.get(variable):
        return value
    raise SettingsError(f"{variable}: missing; name the image, like localhost/penstock/router:dev")


def _pull_policy(given: str) -> PullPolicy:
    for policy in get_args(PullPolicy):
        if given == policy:
            return policy  # type: ignore[no-any-return]
    allowed = ", ".join(get_args(PullPolicy))
    raise SettingsError(f'PENSTOCK_IMAGE_PULL_POLICY: "{given}" is not a pull policy; use one of {allowed}')


def _names(given: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in given.split(",") if name.strip())


def _on_or_off(variable: str, given: str) -> bool:
    if given not in ("on", "off"):
        raise SettingsError(f'{variable}: "{given}" is neither on nor off')
    return given == "on"
