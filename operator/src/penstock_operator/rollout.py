"""When pods are replaced, and how many at a time."""
