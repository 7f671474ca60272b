"""Replay of a trace: an open-loop client that judges every request by its tier's SLO."""
