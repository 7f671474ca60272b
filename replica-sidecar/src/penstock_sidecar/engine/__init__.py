"""The engine beside the sidecar: its HTTP API and streams, its health, what it says of itself."""
