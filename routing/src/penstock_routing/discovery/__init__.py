"""Discovery of replicas, by flags or by a watch of the cluster."""
