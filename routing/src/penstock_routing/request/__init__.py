"""One request as a router reads it: headers, body, buffered bytes, and its outcome."""
