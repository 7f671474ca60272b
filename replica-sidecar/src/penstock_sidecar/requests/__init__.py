"""One request at this replica: its body, its job, its lifecycle, forwarding to the engine and back."""
