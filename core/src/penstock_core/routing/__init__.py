"""Order in which replicas are asked, their load by snapshots, and the next step after a rejection."""
