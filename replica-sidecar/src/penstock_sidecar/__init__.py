"""The sidecar of an engine: admits and forwards requests, returns tokens, reports its state, drains."""
