"""One request at this replica: its body, job and lifecycle, and its forwarding to the engine."""
