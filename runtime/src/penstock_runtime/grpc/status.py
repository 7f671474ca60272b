"""Status codes of calls, as HTTP/2 trailers carry them, and the error with a code."""

from collections.abc import Mapping
from enum import IntEnum
from urllib.parse import quote, unquote

from h2.errors import ErrorCodes

Headers = list[tuple[bytes, bytes]]

MOST_DETAILS = 1024
"""Most characters of an error's details on the wire, each of which takes at most 12 there."""

UNESCAPED = "".join(map(chr, range(0x20, 0x7F))).replace("%", "")
"""Characters of details that gRPC sends as they are."""


class Status(IntEnum):
    """A call's status (gRPC, "Status codes and their use")."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """A call has ended with a status other than OK. details: the peer's text, or the cause here."""

    def __init__(self, status: Status, details: str = "") -> None:
        super().__init__(f"{status.name.lower()}: {details}")
        self.status, self.details = status, details


def trailers(status: Status, details: str = "") -> Headers:
    """Return the trailers of a call that ends with this status."""
    fields = [(b"grpc-status", b"%d" % status)]
    if details:
        fields.append((b"grpc-message", quote(details[:MOST_DETAILS], safe=UNESCAPED).encode()))
    return fields


def error_of(fields: Mapping[bytes, bytes]) -> RpcError | None:
    """Return the error in a call's trailers; None if its status is OK."""
    code = fields.get(b"grpc-status")
    if code is None:
        http_status = fields.get(b":status", b"none").decode("latin-1")
        return RpcError(Status.UNKNOWN, f"an answer without a gRPC status (HTTP status {http_status})")
    details = unquote(fields.get(b"grpc-message", b"").decode("latin-1")[: 12 * MOST_DETAILS])
    try:
        status = Status(int(code))
    except ValueError:  # gRPC: an unknown code counts as this one
        status = Status.UNKNOWN
    return None if status is Status.OK else RpcError(status, details)


_OF_RESETS = {
    ErrorCodes.CANCEL: Status.CANCELLED,
    ErrorCodes.REFUSED_STREAM: Status.UNAVAILABLE,
    ErrorCodes.ENHANCE_YOUR_CALM: Status.RESOURCE_EXHAUSTED,
    ErrorCodes.INADEQUATE_SECURITY: Status.PERMISSION_DENIED,
}


def error_of_reset(code: ErrorCodes | int | None) -> RpcError:
    """Return the error of a call whose HTTP/2 stream the peer has reset (gRPC over HTTP/2, "Errors")."""
    name = code.name if isinstance(code, ErrorCodes) else str(code)
    status = _OF_RESETS.get(code, Status.INTERNAL) if isinstance(code, ErrorCodes) else Status.INTERNAL
    return RpcError(status, f"the peer reset the call ({name.lower()})")
