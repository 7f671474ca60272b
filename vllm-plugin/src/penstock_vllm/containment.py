"""Errors of Penstock's code around vLLM's own methods: they cost a plan, never an engine."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Containing(Protocol):
    """A scheduler that can continue after an error of Penstock's code."""

    def _contain(self, error: Exception) -> None: ...


Scheduler = TypeVar("Scheduler", bound=Containing)
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def contained(
    method: Callable[Concatenate[Scheduler, Arguments], Result],
) -> Callable[Concatenate[Scheduler, Arguments], Result | None]:
    """Let a method return None where it raises, once its scheduler has contained the error."""

    @wraps(method)
    def call(self: Scheduler, /, *args: Arguments.args, **more: Arguments.kwargs) -> Result | None:
        try:
            return method(self, *args, **more)
        except Exception as error:
            self._contain(error)
            return None

    return call
