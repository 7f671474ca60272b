"""Penstock's decisions as pure functions of state and time.

No I/O, no clock, no global randomness: `now` is an argument. The sidecar, router, engine plug-in and
simulation are thin layers around this package.
"""
