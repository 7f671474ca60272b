"""Reports of the demand on a pool: the HTTP client, and the parsed page."""
