"""What sidecars and routers need to talk to an engine: HTTP connections, answers, tokens in a stream."""
