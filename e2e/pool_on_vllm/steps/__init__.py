"""The steps, one subject per file."""
