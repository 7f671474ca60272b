"""A pool on one machine, with one process per component."""
