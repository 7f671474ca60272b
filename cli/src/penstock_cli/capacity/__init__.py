"""The capacity of a policy: the highest request rate at which a given share of requests meets every target.

`search` decides which rates and settings to try next and runs nothing. `trial` is one simulation. `run`
distributes the trials of all searches over CPU cores. `trial_log` stores results in a file, so that an
interrupted search can be resumed.
"""
