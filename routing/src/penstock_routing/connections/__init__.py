"""How a router connects to its peers: backoff, gRPC channels to replicas, access to the API server."""
