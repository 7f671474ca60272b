"""Client side of an engine, for sidecars and routers: HTTP connections, answers, tokens in a stream."""
