"""Which replica is asked first, and which next after a rejection: orders, loads from snapshots, the walk."""
