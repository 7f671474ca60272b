"""The sidecar's picture of its replica, from step reports or from the tokens that pass."""
