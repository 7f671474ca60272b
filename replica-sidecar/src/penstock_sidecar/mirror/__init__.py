"""The sidecar's model of its replica, from step reports or from the tokens that it forwards."""
