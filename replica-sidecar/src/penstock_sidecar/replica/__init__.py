"""One replica: what its sessions share, each session, and the requests that wait for a verdict."""
