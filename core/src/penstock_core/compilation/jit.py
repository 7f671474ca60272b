"""Loops that a profile found too slow in Python, compiled to machine code by numba.

A compiled function keeps its Python: `interpreted` gives it back, and both take the same numbers to the same
result, so tests read and cover what was written. To stay so it uses arrays and plain numbers only, and
integers that never pass 63 bits.

Types are told at once, so it is compiled when its module is imported and not in the middle of the first
decision. What was compiled is kept on disk (beside the source, else in the user's cache, or where
`NUMBA_CACHE_DIR` says) and read in milliseconds by the next process. Where nothing can be written it is
compiled at every start, which takes some seconds. Importing numba itself takes about half a second, so a
module that imports this one is itself imported only by those who build a policy that needs it.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit, types
from numba.extending import register_jitable

Function = TypeVar("Function", bound=Callable[..., Any])

FLOAT, INT = types.float64, types.int64
FLOATS, INTS, TABLE = FLOAT[::1], INT[::1], FLOAT[:, ::1]
"""Numbers; rows of them; rows of rows. All contiguous."""


def compiled(returns: Any, *takes: Any) -> Callable[[Function], Function]:
    """Compile the function decorated, for these types of numba's."""
    signature = returns(*takes)

    def compile_now(function: Function) -> Function:
        try:
            return cast(Function, njit(signature, cache=True)(function))
        except RuntimeError:  # there is nowhere to keep it
            return cast(Function, njit(signature)(function))

    return compile_now


def part(function: Function) -> Function:
    """A function that compiled ones may call: compiled into them, and plain Python when called from it."""
    return cast(Function, register_jitable(function))


def interpreted(function: Function) -> Function:
    """What was written, of a compiled function. With `NUMBA_DISABLE_JIT=1` nothing is compiled: the same."""
    return cast(Function, getattr(function, "py_func", function))


def results(*parts: Any) -> Any:
    """The type of several results at once."""
    return types.Tuple(parts)


def record(kind: type[tuple[Any, ...]], *fields: Any) -> Any:
    """The type of a NamedTuple, by the types of its fields."""
    return types.BaseTuple.from_types(fields, kind)
