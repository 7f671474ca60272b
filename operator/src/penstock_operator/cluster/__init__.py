"""The cluster as the operator meets it: an API server, what it last told, who leads, and what is posted."""
