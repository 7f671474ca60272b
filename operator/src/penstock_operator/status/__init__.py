"""A pool's status: conditions, and the diagnosis of what keeps the pool from running."""
