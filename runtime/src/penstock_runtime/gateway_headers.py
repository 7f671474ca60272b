"""Headers between a gateway, its endpoint picker and the replicas behind it.

The gateway removes them from clients' requests, except the tier: only the gateway and the picker may set
them.
"""

REJECTED = "x-penstock-rejected"
"""Response header of a replica that has not begun the request: the gateway tries the next endpoint."""

DECIDED = "x-penstock-decided"
"""Header of requests that a sidecar or router sends to an engine, as in `penstock_proto.engine_calls`."""

DESTINATION = "x-gateway-destination-endpoint"
"""Endpoints to try, in order: `host:port,host:port`. Its name is from the Gateway API Inference Extension."""

MAX_HOPS = "x-penstock-max-hops"
"""Number of endpoints to try after the first one, before the request is served best effort.

If it is present, the picker has resolved the tier."""

MAX_RETRIES = "x-envoy-max-retries"
"""Number of endpoints to try after the first one. Envoy reads it and does not forward it."""

APPLICATION = "x-penstock-application"
"""The application whose API key the gateway has checked."""

TIMEOUT_MS = "x-penstock-timeout-ms"
"""The gateway's timeout for a request over all endpoints."""

TIMEOUT_LEFT_MS = "x-envoy-expected-rq-timeout-ms"
"""The rest of that timeout at each endpoint."""

ATTEMPT = "x-envoy-attempt-count"
"""Number of this attempt: 1 at the first endpoint."""
