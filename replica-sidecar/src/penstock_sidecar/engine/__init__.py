"""The engine beside the sidecar: its HTTP API and streams, its health, its metrics."""
