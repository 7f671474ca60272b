"""Settings that are the same for all pools of one operator.

Read from the environment at the edge and passed on as a value, so that the decisions can be tested without
an environment. What belongs to one pool is in its ServingPool; here is what is the same for all of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

PULL_SECRETS = "PENSTOCK_IMAGE_PULL_SECRETS"
REDIS_SECRET = "PENSTOCK_REDIS_URL_SECRET"
PullPolicy = Literal["Always", "IfNotPresent", "Never"]


class SettingsError(Exception):
    """The environment is wrong. The message is one line: which variable, what it says, what is right."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Of one operator, for all its life."""

    router_image: str
    sidecar_image: str
    simulator_image: str
    """Of engines of type `simulated` that name none."""

    vllm_image: str
    """Of engines of type `vllm` that name none."""

    vllm_plugin_image: str
    """Has Penstock's scheduler for vLLM; an init container copies it beside an unmodified vLLM."""

    image_pull_policy: PullPolicy = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    """Names of Secrets in each pool's namespace."""

    tls: bool = True
    """Whether routers and replicas speak mutual TLS."""

    redis_url_secret: str | None = None
    """Secret in each pool's namespace, its key `url` the Redis that routers share; None: they share none."""

    gpu_runtime_class: str | None = None
    """RuntimeClass of replicas that use NVIDIA's GPUs; None: the nodes' default runtime can."""


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Settings in an environment. Raises SettingsError."""
    return Settings(
        router_image=_required(environment, "PENSTOCK_ROUTER_IMAGE"),
        sidecar_image=_required(environment, "PENSTOCK_SIDECAR_IMAGE"),
        simulator_image=_required(environment, "PENSTOCK_SIMULATOR_IMAGE"),
        vllm_image=_required(environment, "PENSTOCK_VLLM_IMAGE"),
        vllm_plugin_image=_required(environment, "PENSTOCK_VLLM_PLUGIN_IMAGE"),
        image_pull_policy=_pull_policy(environment.get("PENSTOCK_IMAGE_PULL_POLICY") or "IfNotPresent"),
        image_pull_secrets=_names(environment.get(PULL_SECRETS, "")),
        tls=_on_or_off("PENSTOCK_TLS", environment.get("PENSTOCK_TLS") or "on"),
        redis_url_secret=environment.get(REDIS_SECRET) or None,
        gpu_runtime_class=environment.get("PENSTOCK_GPU_RUNTIME_CLASS") or None,
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
    raise SettingsError(f'PENSTOCK_IMAGE_PULL_POLICY: "{given}" is no pull policy; one of {allowed}')


def _names(given: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in given.split(",") if name.strip())


def _on_or_off(variable: str, given: str) -> bool:
    if given not in ("on", "off"):
        raise SettingsError(f'{variable}: "{given}" is neither on nor off')
    return given == "on"
