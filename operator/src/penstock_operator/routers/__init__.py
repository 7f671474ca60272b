"""Reports of a pool's routers: the HTTP client, and the parsed demand page."""
