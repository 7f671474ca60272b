"""Messages of a session to its router: events, batched into frames."""
