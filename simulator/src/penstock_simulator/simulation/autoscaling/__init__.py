"""Autoscaling of a simulated fleet: algorithms, their input, and replicas that start and drain."""
