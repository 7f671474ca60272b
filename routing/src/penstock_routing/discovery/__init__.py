"""Discovery of replicas: given by flags, or watched in a cluster."""
