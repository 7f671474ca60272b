"""Headers between a gateway, its endpoint picker and the replicas behind it.

The gateway removes them from what clients send, all but the tier: only it and the picker may set them.
"""

REJECTED = "x-penstock-rejected"
"""Response header of a replica that has not begun the request: the gateway asks the next endpoint."""

DESTINATION = "x-gateway-destination-endpoint"
"""Endpoints to ask, in order: `host:port,host:port`. Named by the Gateway API Inference Extension."""

MAX_HOPS = "x-penstock-max-hops"
"""How many endpoints follow the first one before those that serve best effort, or before the end.

Its presence says that the picker has resolved the tier."""

MAX_RETRIES = "x-envoy-max-retries"
"""How many endpoints follow the first one, for Envoy, which does not pass it on."""

APPLICATION = "x-penstock-application"
"""The application whose API key the gateway has checked."""

TIMEOUT_MS = "x-penstock-timeout-ms"
"""The gateway's timeout for a request over all endpoints."""

TIMEOUT_LEFT_MS = "x-envoy-expected-rq-timeout-ms"
"""What is left of it, at each endpoint."""

ATTEMPT = "x-envoy-attempt-count"
"""Number of this attempt: 1 at the first endpoint."""
