"""Access to a cluster's API server: with the pod's service account, or by a kubeconfig.

All credentials are read again for each connection, because they are renewed in place: the account's token
every hour, the cluster's CA certificates and a kubeconfig occasionally. lightkube parses their formats; it
also reads a token again when the server rejects it.

A server that disappears without closing its connections is detected by TCP keepalive, not by silence, because
a watch may be silent for minutes.
"""

import socket
from dataclasses import dataclass
from pathlib import Path

import httpx2
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.kubeconfig import SERVICE_ACCOUNT, KubeConfig, SingleConfig
from lightkube.config.models import User
from penstock_runtime.certificate_chains import not_strict

ANSWER_S = 10.0
"""Longest wait for a connection, and for an answer to begin."""

KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""A peer that is gone is noticed within 25 s."""


class AccessError(Exception):
    """The cluster cannot be reached with the given credentials. The message is the reason."""


@dataclass(frozen=True, slots=True)
class Access:
    """Access to one cluster.

    kubeconfig: None for the pod's service account, whose files are in the folder `account`.
    """

    kubeconfig: Path | None
    account: Path = Path(SERVICE_ACCOUNT)

    def check(self) -> None:
        """Raise AccessError if the credentials are unusable."""
        self.client()

    def client(self) -> httpx2.AsyncClient:
        """Return a client of the API server with the current credentials. Blocks. Raises AccessError."""
        try:
            config = self._config()
            verify = not_strict(verify_cluster(config.cluster, config.user or User(), config.abs_file))
            auth = user_auth(config.user)
        except Exception as error:  # parsers of YAML, keys and certificates raise many types
            raise AccessError(f"{self.kubeconfig or self.account}: {_message(error)}") from None
        transport = httpx2.AsyncHTTPTransport(verify=verify, socket_options=KEEP_ALIVE)
        return httpx2.AsyncClient(
            base_url=config.cluster.server,
            auth=auth,
            transport=transport,
            timeout=httpx2.Timeout(ANSWER_S, read=None),
            headers={"accept-encoding": "identity", "user-agent": "penstock-router"},
        )

    def _config(self) -> SingleConfig:
        if self.kubeconfig is None:
            config = KubeConfig.from_service_account(self.account).get()
        else:
            config = KubeConfig.from_file(self.kubeconfig).get()
        assert config is not None
        return config


def _message(error: Exception) -> str:
    return f"has no {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0]
