"""Step reports of an engine: the socket, the reports themselves, gaps in them."""
