"""Replaying a trace: an open-loop client that judges every request by what its tier was promised."""
