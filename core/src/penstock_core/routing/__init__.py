"""Order in which replicas are tried, their load by snapshots, and the next step after a rejection."""
