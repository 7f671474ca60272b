"""One HTTP/1.1 connection of a server, from bytes to requests and back (`protocol`)."""
