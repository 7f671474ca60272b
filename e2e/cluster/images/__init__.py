"""Builds container images without a registry, a daemon or a builder, for the cluster of the tests."""
