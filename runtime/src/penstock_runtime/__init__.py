"""Code shared by all Penstock processes: logs, HTTP serving, TLS, shutdown, errors in OpenAI's format."""
