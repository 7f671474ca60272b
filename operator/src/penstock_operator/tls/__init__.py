"""A pool's own certificate authority, and the certificates that it signs."""
