"""A package's tests without mutants: which tests run a line, and their durations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mutants.mutations import Mutant

FEW = 20
"""Number of fast tests that run first; most mutants need no others."""
MANY = 400
"""Above this number, tests are selected by file."""
FACTOR, GRACE_S = 5.0, 10.0
"""Timeout of a mutant's tests: a factor on their unmutated duration, plus a patience and a constant."""
LEAST_PATIENCE_S, PATIENCE_FACTOR = 20.0, 3.0
"""Patience, a test's wait for a condition: minimum, and factor on the longest unmutated test."""

Runs = Mapping[str, Mapping[int, frozenset[str]]]
"""Path -> line -> tests that run it."""


@dataclass(frozen=True, slots=True)
class RoundOfTests:
    """Tests that run together, their timeout, and how long a test waits for a condition.

    The patience is below the timeout, so that a test that waits in vain fails and detects the mutant.
    """

    tests: Sequence[str]
    bound_s: float
    patience_s: float = LEAST_PATIENCE_S


@dataclass(frozen=True, slots=True)
class Baseline:
    """seconds: test -> duration with its fixtures."""

    runs: Runs
    seconds: Mapping[str, float] = field(default_factory=dict)

    def rounds_for(self, mutant: Mutant, of_package: Sequence[str]) -> list[RoundOfTests]:
        """Return the tests that judge a mutant: those that run its line, or those of its file and then all.

        of_package: the package's test folders, fast ones first.
        """
        lines = self.runs.get(mutant.path, {})
        if names := lines.get(mutant.line):
            return [*self._of_few(names), *self._by_folder(names, of_package)]
        of_file = frozenset[str]().union(*lines.values())
        all_of_them = [self._round([folder]) for folder in of_package]
        return [*self._of_few(of_file), *self._by_folder(of_file, of_package), *all_of_them]

    def _of_few(self, names: frozenset[str]) -> list[RoundOfTests]:
        quickest = sorted(names, key=lambda name: (self.seconds.get(name, 0.0), name))
        return [self._round(quickest[:FEW])] if len(names) > FEW else []

    def _by_folder(self, names: frozenset[str], folders: Sequence[str]) -> list[RoundOfTests]:
        """Return a round for each folder that has some of these tests."""
        rounds = ([name for name in names if name.startswith(folder)] for folder in folders)
        return [self._round(_named(found)) for found in rounds if found]

    def _round(self, tests: Sequence[str]) -> RoundOfTests:
        within = tuple(tests)
        usual_s = sum(seconds for name, seconds in self.seconds.items() if name.startswith(within))
        patience_s = max(LEAST_PATIENCE_S, PATIENCE_FACTOR * max(self.seconds.values(), default=0.0))
        return RoundOfTests(tests, FACTOR * usual_s + patience_s + GRACE_S, patience_s)


def _named(names: Sequence[str]) -> list[str]:
    """Return the tests by name, or by file if there are many."""
    return sorted({name.partition("::")[0] for name in names} if len(names) > MANY else names)
