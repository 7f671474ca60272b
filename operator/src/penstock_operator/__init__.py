"""The operator: reconciles each ServingPool with the Kubernetes objects that serve it."""
