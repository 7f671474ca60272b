"""Container images without a registry, a daemon or a builder, for a cluster that can reach none of them."""
