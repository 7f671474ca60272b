"""Envoy's configuration in a pod, made by `penstock_runtime.envoy`."""

from pathlib import PurePosixPath

from penstock_pool.serving_spec import RouterSpec
from penstock_runtime.envoy.bootstrap import configuration_files
from penstock_runtime.envoy.settings import (
    ClientTls,
    EnvoySettings,
    GatewayBounds,
    ReplicaTls,
    SocketAddress,
    Tracing,
)

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import (
    ENVOY_PORT,
    PICKER_PORT,
    ROUTER_PORT,
    Component,
    engine_server_name,
    envoy_name,
    tls_server_name,
)
from penstock_operator.objects.containers import TLS_FOLDER
from penstock_operator.objects.front_container import CERTIFICATE_FOLDER
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import RenderContext

ENVOY_FOLDER = "/etc/penstock-envoy"
GATEWAY_FOLDER = "/run/penstock"
"""Folder that Envoy and its picker share."""

ANY, LOOPBACK = "0.0.0.0", "127.0.0.1"


def envoy_settings(context: RenderContext) -> EnvoySettings:
    """Return the settings of a pool's Envoys.

    Requests pass while the picker is restarted, unless it must check API keys.
    """
    pool = context.pool.spec
    return EnvoySettings(
        api=SocketAddress(ANY, ROUTER_PORT),
        pages=SocketAddress(ANY, ENVOY_PORT),
        picker=SocketAddress(LOOPBACK, PICKER_PORT),
        folder=PurePosixPath(GATEWAY_FOLDER),
        files=PurePosixPath(ENVOY_FOLDER),
        bounds=_bounds(pool.router),
        fail_open=not pool.applications,
        tls=None if pool.router.tls is None else _client_tls(),
        replica_tls=_replica_tls(context) if context.settings.tls else None,
        tracing=_tracing(pool.router),
    )


def envoy_config_map(context: RenderContext) -> tuple[Manifest, ...]:
    """Return the ConfigMap that Envoys read; empty if the pool has no Envoys."""
    if context.gateway.front != "envoy":
        return ()
    data = {name: text.decode() for name, text in configuration_files(envoy_settings(context)).items()}
    return (
        child(context, "v1", "ConfigMap", envoy_name(context.name), component=Component.ROUTER, data=data),
    )


def _bounds(router: RouterSpec) -> GatewayBounds:
    return GatewayBounds(
        router.max_body_bytes, router.max_header_bytes, router.body_timeout_s, router.write_timeout_s
    )


def _tracing(router: RouterSpec) -> Tracing | None:
    return None if router.tracing is None else Tracing(router.tracing.otlp_url, router.tracing.sampling)


def _client_tls() -> ClientTls:
    return ClientTls(f"{CERTIFICATE_FOLDER}/tls.crt", f"{CERTIFICATE_FOLDER}/tls.key")


def _replica_tls(context: RenderContext) -> ReplicaTls:
    return ReplicaTls(
        ca=f"{TLS_FOLDER}/ca.crt",
        cert=f"{TLS_FOLDER}/client.crt",
        key=f"{TLS_FOLDER}/client.key",
        server_name=tls_server_name(context.name, context.owner.namespace),
        engine_server_name=engine_server_name(context.name, context.owner.namespace),
    )
