"""Release of requests into an engine with its own scheduler."""
