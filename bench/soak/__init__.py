"""A pool of real processes under random faults, with every answer checked token for token.

`__main__` runs the soak test and prints its results, `traffic` sends requests and checks answers, `faults`
injects faults one after the other.
"""
