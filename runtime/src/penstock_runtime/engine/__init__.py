"""Client side of an engine, for sidecars and routers: HTTP connections and answers."""
