"""OpenAI's HTTP API for gateways that select replicas, with the same admission as gRPC sessions."""
