"""Compilation of inner loops to machine code by numba, for loops that a profile showed to be slow in Python.

A compiled function keeps its Python source: `interpreted` returns it, and both give the same results, so
tests run and cover the source. For that, compiled functions use only arrays, plain numbers, and integers of
at most 63 bits.

Types are declared, so compilation happens when the module is imported and not during the first decision. The
result is cached on disk (beside the source, else in the user's cache, or in `NUMBA_CACHE_DIR`) and read in
milliseconds by the next process. Without a writable folder it is compiled at every start, in a few seconds.
Importing numba takes about half a second, so modules that import this one are imported only to build a policy
that needs them.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit, types
from numba.extending import register_jitable

Function = TypeVar("Function", bound=Callable[..., Any])

FLOAT, INT = types.float64, types.int64
FLOATS, INTS, TABLE = FLOAT[::1], INT[::1], FLOAT[:, ::1]
"""Columns of numbers, and a table; contiguous."""


def compiled(returns: Any, *takes: Any) -> Callable[[Function], Function]:
    """Compile the decorated function for these numba types."""
    signature = returns(*takes)

    def compile_now(function: Function) -> Function:
        try:
            return cast(Function, njit(signature, cache=True)(function))
        except RuntimeError:  # there is no writable folder
            return cast(Function, njit(signature)(function))

    return compile_now


def part(function: Function) -> Function:
    """Make a function callable from compiled code: part of its caller there, plain Python in other callers.

    A call would cost more than the function: it counts references to arrays among its arguments.
    """
    return cast(Function, register_jitable(forceinline=True)(function))


def interpreted(function: Function) -> Function:
    """Return the Python source of a compiled function. `NUMBA_DISABLE_JIT=1` disables compilation."""
    return cast(Function, getattr(function, "py_func", function))


def results(*parts: Any) -> Any:
    """Return the type of a tuple of results."""
    return types.Tuple(parts)


def record(kind: type[tuple[Any, ...]], *fields: Any) -> Any:
    """Return the type of a NamedTuple from the types of its fields."""
    return types.BaseTuple.from_types(fields, kind)
