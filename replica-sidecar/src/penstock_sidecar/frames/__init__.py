"""What a session sends to its router: events gathered into frames."""
