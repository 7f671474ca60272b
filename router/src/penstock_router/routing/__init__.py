"""Which replica serves a request: tries in order, hops and failovers, and the wait for a first replica."""
