"""The capacity of a policy: the highest request rate at which enough of all requests keep every target.

`search` says which rates and settings to try next and never runs anything; `trial` is one simulation, run in
whichever process; `run` carries trials from all searches to the machine's cores and remembers them in a file,
so that a search that was stopped goes on where it was.
"""
