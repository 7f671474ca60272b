"""Metrics of requests and moves, and the access log."""
