"""One request at this replica: its body, its job, its life cycle, forwarding to the engine and back."""
