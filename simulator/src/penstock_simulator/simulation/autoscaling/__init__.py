"""Autoscaling of a simulated fleet: who decides, what it reads, and replicas that start and drain."""
