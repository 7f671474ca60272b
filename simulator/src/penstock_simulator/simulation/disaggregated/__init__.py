"""Fleets whose GPUs are split by phase, prefill and decode [DistServe]."""
