"""The access log: one JSON object per line on stdout, without queries, keys or bodies."""

from penstock_runtime.envoy.json_parts import Json, extension

FIELDS = {
    "time": "%START_TIME%",
    "method": "%REQUEST_HEADER(:METHOD):32%",
    "path": "%PATH(NQ:PATH):256%",
    "status": "%RESPONSE_CODE%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "flags": "%RESPONSE_FLAGS%",
    "request_id": "%REQUEST_HEADER(X-REQUEST-ID):128%",
    "tier": "%REQUEST_HEADER(X-PENSTOCK-TIER):64%",
    "verdict": "%RESPONSE_HEADER(X-PENSTOCK-VERDICT):32%",
    "replica": "%RESPONSE_HEADER(X-PENSTOCK-REPLICA):64%",
    "endpoint": "%UPSTREAM_HOST%",
    "hops": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "first_byte_ms": "%RESPONSE_DURATION%",
    "duration_ms": "%DURATION%",
    "received_bytes": "%BYTES_RECEIVED%",
    "sent_bytes": "%BYTES_SENT%",
}
"""Fields of each request's line. Values that a client chooses have a bounded length."""


def access_log() -> list[Json]:
    """Return the log's configuration."""
    kind = "access_loggers.stream.v3.StdoutAccessLog"
    return [extension("envoy.access_loggers.stdout", kind, log_format={"json_format": dict(FIELDS)})]
