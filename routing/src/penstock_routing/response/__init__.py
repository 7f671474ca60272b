"""Writes a request's answer to the client, for the router and for a sidecar that serves HTTP itself."""
