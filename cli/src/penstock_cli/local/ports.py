"""Free ports for the pool's processes, chosen before they start so that a restarted one keeps its port."""

import errno
import socket
from contextlib import ExitStack
from random import Random

from penstock_cli.failure import Failure

LOWEST_PORT, HIGHEST_PORT = 20_000, 32_000
"""Below the kernel's ephemeral ports, so that no outgoing connection takes one of these."""


def free_ports(count: int, host: str) -> list[int]:
    """Return `count` different ports that are not in use. Raises Failure."""
    candidates = Random().sample(range(LOWEST_PORT, HIGHEST_PORT), HIGHEST_PORT - LOWEST_PORT)
    found: list[int] = []
    with ExitStack() as held:
        for port in candidates:
            if len(found) == count:
                return found
            listener = held.enter_context(_socket(host))
            try:
                listener.bind((host, port))
            except OSError:
                continue
            found.append(port)
    raise Failure(f"fewer than {count} free ports on {host} from {LOWEST_PORT} to {HIGHEST_PORT}")


def is_free(host: str, port: int) -> bool:
    """Return whether the port is not in use."""
    try:
        with _socket(host) as listener:
            listener.bind((host, port))
    except OSError:
        return False
    return True


def check_free(host: str, port: int, flag: str) -> None:
    """Check that the address can be bound. Raises Failure. flag: the flag that selects the port."""
    try:
        with _socket(host) as listener:
            listener.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise Failure(f"port {port} on {host} is taken; choose another with {flag}") from None
        raise Failure(f"cannot listen on {host} port {port}: {error.strerror}") from None


def _socket(host: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
    return listener
