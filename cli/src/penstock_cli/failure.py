"""How a command ends that cannot do what it was asked: clear lines, and one of two exit codes."""

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2


class Failure(Exception):
    """Lines for the user.

    bad_input: what was given is wrong (exit 2), as against what was met on the way (exit 1).
    """

    def __init__(self, *lines: str, bad_input: bool = False) -> None:
        super().__init__("\n".join(lines))
        self.lines = lines
        self.exit_code = EXIT_BAD_INPUT if bad_input else EXIT_FAILURE
