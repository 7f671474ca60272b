"""Metrics of requests, demand for the autoscaler, and the access log."""
