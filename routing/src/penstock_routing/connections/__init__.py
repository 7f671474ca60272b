"""Connections of a router: backoff, gRPC channels to replicas, access to the API server."""
