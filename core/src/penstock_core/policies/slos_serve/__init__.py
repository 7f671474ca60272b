"""SLOs-Serve: admission by dynamic programming over batch plans, and batches that follow these plans."""
