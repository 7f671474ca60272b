"""Step reports of an engine: the socket, the reports themselves, what is missing from them."""
