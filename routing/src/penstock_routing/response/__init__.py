"""A request's answer on its way to the client, of a router and of a sidecar that takes HTTP itself."""
