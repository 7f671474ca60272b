"""Autoscaling: the number of replicas of a pool, from rejected demand and learned capacity."""
