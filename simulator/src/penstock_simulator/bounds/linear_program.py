"""Linear programs, with an upper bound on the optimum that does not depend on the solver's accuracy.

A program consists of columns (variables within finite limits) and rows (sums of them with limits). HiGHS
computes dual prices of the rows. Any prices give a bound on the optimum by weak duality with boxed variables:
each row contributes its price times its limit, each column at most its reduced cost times its limit.
`upper_bound` computes that sum itself, so inexact prices, from tolerances or an early stop, make the bound
looser but never invalid.
"""

import highspy
import numpy as np
from numpy.typing import ArrayLike
from penstock_core.compilation.arrays import Floats, Ints

MOST_ITERATIONS = 200
"""Iteration limit of the interior-point method, which takes 20 to 80 if it converges."""


class LinearProgram:
    """A maximisation, built by `columns`, `at_most`, `equal` and `put`."""

    def __init__(self) -> None:
        self._gains: list[Floats] = []
        self._most: list[Floats] = []
        self._limits: list[tuple[Floats, Floats]] = []
        self._entries: list[tuple[Ints, Ints, Floats]] = []
        self._columns = 0
        self._rows = 0

    def columns(self, most: ArrayLike, gain: float = 0.0) -> Ints:
        """Add a variable from 0 to each of `most`. Returns their indices in the same shape."""
        limits = np.asarray(most, np.float64)
        numbers = np.arange(self._columns, self._columns + limits.size).reshape(limits.shape)
        self._columns += limits.size
        self._most.append(limits.ravel())
        self._gains.append(np.full(limits.size, gain))
        return numbers

    def at_most(self, limits: ArrayLike) -> Ints:
        """Add rows whose sums are at most `limits`. Returns their indices in the same shape."""
        upper = np.asarray(limits, np.float64)
        return self._new_rows(np.full(upper.shape, -np.inf), upper)

    def equal(self, values: ArrayLike) -> Ints:
        """Add rows whose sums equal `values`. Returns their indices in the same shape."""
        return self._new_rows(np.asarray(values, np.float64), np.asarray(values, np.float64))

    def put(self, rows: Ints, columns: Ints, factors: ArrayLike) -> None:
        """Add coefficients of columns in rows; shapes are broadcast."""
        at, of, much = np.broadcast_arrays(rows, columns, np.asarray(factors, np.float64))
        self._entries.append((at.ravel(), of.ravel(), much.ravel()))

    def upper_bound(self) -> float:
        """Return an upper bound on the optimum."""
        gains, most = np.concatenate(self._gains), np.concatenate(self._most)
        lower, upper = (np.concatenate(side) for side in zip(*self._limits, strict=True))
        at, of, much = self._merged()
        prices = _prices(gains, most, (lower, upper), (at, of, much))
        prices = np.where(np.isfinite(lower), prices, np.maximum(prices, 0.0))
        paid = np.bincount(of, weights=much * prices[at], minlength=self._columns)
        for_rows = float(np.sum(prices * upper))  # an equal row's two limits are the same
        return for_rows + float(np.sum(np.maximum(gains - paid, 0.0) * most))

    def _merged(self) -> tuple[Ints, Ints, Floats]:
        """Return the coefficients sorted by row and column, with duplicates summed."""
        at, of, much = (np.concatenate(part) for part in zip(*self._entries, strict=True))
        places, which = np.unique(at * self._columns + of, return_inverse=True)
        return places // self._columns, places % self._columns, np.bincount(which, much).astype(np.float64)

    def _new_rows(self, lower: Floats, upper: Floats) -> Ints:
        numbers = np.arange(self._rows, self._rows + upper.size).reshape(upper.shape)
        self._rows += upper.size
        self._limits.append((lower.ravel(), upper.ravel()))
        return numbers


def _prices(
    gains: Floats, most: Floats, limits: tuple[Floats, Floats], entries: tuple[Ints, Ints, Floats]
) -> Floats:
    """Return the dual prices of the rows that HiGHS found."""
    at, of, much = entries
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(gains), len(limits[0])
    program.col_cost_ = -gains
    program.col_lower_ = np.zeros(len(most))
    program.col_upper_ = np.where(gains > 0, most, np.inf)  # limits of the others serve only the certificate
    program.row_lower_, program.row_upper_ = limits
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    starts = np.concatenate(([0], np.cumsum(np.bincount(at, minlength=len(limits[0])))))
    program.a_matrix_.start_ = starts.astype(np.int32)
    program.a_matrix_.index_ = of.astype(np.int32)
    program.a_matrix_.value_ = much
    solver = highspy.Highs()  # type: ignore[no-untyped-call]
    for option, value in (
        ("output_flag", False),
        ("solver", "ipm"),
        ("run_crossover", "off"),
        ("threads", 1),
        ("ipm_iteration_limit", MOST_ITERATIONS),
    ):
        solver.setOptionValue(option, value)
    if solver.passModel(program) == highspy.HighsStatus.kError:
        raise ValueError("HiGHS rejects this program")
    solver.run()
    return -np.asarray(solver.getSolution().row_dual)
