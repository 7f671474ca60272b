"""A pool of real processes under random faults, whose every answer is checked token for token.

`__main__` runs it and prints what was seen, `traffic` sends requests and checks answers, `harms` has
the faults, one at a time, each over before the next.
"""
