"""What holds for every test."""

from hypothesis import settings

# The same examples on every run and machine, however slow it is: no test asserts a time.
settings.register_profile("penstock", deadline=None, derandomize=True)
settings.load_profile("penstock")
