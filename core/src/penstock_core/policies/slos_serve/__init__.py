"""SLOs-Serve: admission by dynamic programming over batch plans, and the batches that carry the plans out."""
