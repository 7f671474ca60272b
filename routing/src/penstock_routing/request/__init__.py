"""One request as a router reads it: headers, body, the bytes it holds, and its outcome."""
