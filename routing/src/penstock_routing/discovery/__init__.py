"""Where the replicas are: given by flags, or followed in a cluster."""
