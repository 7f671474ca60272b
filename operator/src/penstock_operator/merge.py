"""A pod template laid over another, as Kubernetes' strategic merge does it."""
