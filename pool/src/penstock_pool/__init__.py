"""The ServingPool as its users write it: one schema for local tools and the cluster."""
