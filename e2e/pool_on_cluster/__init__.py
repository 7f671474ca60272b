"""End-to-end test: a pool on a real cluster, under traffic and faults."""
