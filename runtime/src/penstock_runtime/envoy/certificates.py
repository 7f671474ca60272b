"""Certificates of the gateway, as files that Envoy reloads when they are replaced.

Each is named by a file in the format of Envoy's secret discovery service (SDS). Envoy watches the folder of
the certificate, and reads it again when a file, or the symlink that a kubelet keeps there, is moved into it.
"""

from collections.abc import Mapping

import orjson

from penstock_runtime.envoy.json_parts import EXTENSIONS, Json, extension, typed, watched_file
from penstock_runtime.envoy.settings import EnvoySettings

TLS = "transport_sockets.tls.v3"
API, TO_REPLICAS, AUTHORITY = "api-certificate", "replica-certificate", "replica-authority"


def secret_files(settings: EnvoySettings) -> Mapping[str, bytes]:
    """Return the SDS files that name certificates, by file name."""
    secrets = {}
    if settings.tls is not None:
        secrets[API] = _certificate(settings.tls.cert, settings.tls.key)
    if settings.replica_tls is not None:
        to = settings.replica_tls
        secrets[TO_REPLICAS] = _certificate(to.cert, to.key)
        secrets[AUTHORITY] = _authority(to.ca, to.server_name, to.engine_server_name)
    return {
        f"{name}.json": orjson.dumps(
            {"resources": [typed(f"{EXTENSIONS}.{TLS}.Secret", name=name, **secret)]}
        )
        for name, secret in secrets.items()
    }


def listener_tls(settings: EnvoySettings) -> Json:
    """Return the TLS transport of clients' connections; empty without TLS."""
    if settings.tls is None:
        return {}
    common = {
        "alpn_protocols": ["h2", "http/1.1"],
        "tls_certificate_sds_secret_configs": [_sds(settings, API)],
    }
    return {"transport_socket": _transport("DownstreamTlsContext", common)}


def replica_tls(settings: EnvoySettings) -> Json:
    """Return the TLS transport of connections to replicas; empty without TLS."""
    if settings.replica_tls is None:
        return {}
    common = {
        "tls_certificate_sds_secret_configs": [_sds(settings, TO_REPLICAS)],
        "validation_context_sds_secret_config": _sds(settings, AUTHORITY),
    }
    return {
        "transport_socket": _transport("UpstreamTlsContext", common, sni=settings.replica_tls.server_name)
    }


def _transport(kind: str, common: Json, **more: str) -> Json:
    return extension("envoy.transport_sockets.tls", f"{TLS}.{kind}", common_tls_context=common, **more)


def _sds(settings: EnvoySettings, name: str) -> Json:
    return {"name": name, "sds_config": watched_file(settings.file(f"{name}.json"))}


def _certificate(cert: str, key: str) -> Json:
    folder = cert.rpartition("/")[0]
    return {
        "tls_certificate": {
            "certificate_chain": {"filename": cert},
            "private_key": {"filename": key},
            "watched_directory": {"path": folder},
        }
    }


def _authority(ca: str, *server_names: str) -> Json:
    names = [{"san_type": "DNS", "matcher": {"exact": name}} for name in server_names]
    return {
        "validation_context": {
            "trusted_ca": {"filename": ca},
            "watched_directory": {"path": ca.rpartition("/")[0]},
            "match_typed_subject_alt_names": names,
        }
    }
