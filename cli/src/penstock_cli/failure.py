"""Errors of commands that a user can cause: one or more lines and an exit code."""

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2

NO_REPLICAS = "spec.replicas: 0 is valid only in a cluster; give --replicas"
"""Error of commands that run a pool which is scaled to 0 replicas."""


class Failure(Exception):
    """An error with lines for the user.

    bad_input: the input is invalid (exit code 2), not the execution (exit code 1).
    """

    def __init__(self, *lines: str, bad_input: bool = False) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.exit_code = EXIT_BAD_INPUT if bad_input else EXIT_FAILURE
