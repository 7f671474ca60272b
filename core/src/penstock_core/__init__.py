"""Penstock's decisions, pure: state and `now` come in, decisions go out.

No I/O, no clock, no global randomness. Every shell (sidecar, router, engine, simulation) is a thin layer
around what is decided here.
"""
