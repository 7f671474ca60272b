"""kopf's credentials of the API server, whose chain is verified as by Penstock's other clients."""

import ssl
from dataclasses import fields

import kopf
from penstock_runtime.certificate_chains import not_strict


class ClusterConnection(kopf.ConnectionInfo):
    """The address of the API server, and credentials."""

    def as_ssl_context(self) -> ssl.SSLContext:
        """Return the context of kopf's connections."""
        return not_strict(super().as_ssl_context())


def connection_of_cluster(settings: kopf.OperatorSettings) -> ClusterConnection | None:
    """Return that of the pod's service account, or else of $KUBECONFIG; None without either."""
    of_pod = kopf.login_with_service_account(settings=settings)
    found = of_pod or kopf.login_with_kubeconfig(settings=settings)
    if found is None:
        return None
    return ClusterConnection(**{field.name: getattr(found, field.name) for field in fields(found)})
