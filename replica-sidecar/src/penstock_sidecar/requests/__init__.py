"""One request at this replica: its body, its job, its life cycle, its way to the engine and back."""
