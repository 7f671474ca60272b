"""Autoscaling of a pool: its demand, core's decision, and the state that survives restarts."""
