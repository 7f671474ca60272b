"""The sidecar's model of its replica, by step reports or by the tokens that it forwards."""
