"""The steps, one subject a file."""
