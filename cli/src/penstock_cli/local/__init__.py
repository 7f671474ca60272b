"""A whole pool on one machine, each component a process of its own."""
