"""Step reports of an engine: their socket, their processing, and lost reports."""
