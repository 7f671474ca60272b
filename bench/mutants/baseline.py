"""What the tests of a package do without any mutant: which of them run a line, and how long they take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mutants.mutations import Mutant

FEW = 20
"""So many tests, the quickest, are asked first: most mutants need no more."""
MANY = 400
"""More tests than these are named by their files."""
FACTOR, GRACE_S = 5.0, 10.0
"""A mutant's tests may take so many times what they take without it, one patience, and so much more."""
LEAST_PATIENCE_S, PATIENCE_FACTOR = 20.0, 3.0
"""How long a test waits for a condition: at least, and in times of the longest test without a mutant."""

Runs = Mapping[str, Mapping[int, frozenset[str]]]
"""Path -> line -> the tests that run it."""


@dataclass(frozen=True, slots=True)
class Round:
    """Tests that are asked at once, how long they may take, and how long one of them waits for a condition.

    The patience is below the bound: a test that waits without success fails, and detects the mutant.
    """

    tests: Sequence[str]
    bound_s: float
    patience_s: float = LEAST_PATIENCE_S


@dataclass(frozen=True, slots=True)
class Baseline:
    """seconds: test -> what it takes with its fixtures."""

    runs: Runs
    seconds: Mapping[str, float] = field(default_factory=dict)

    def rounds_for(self, mutant: Mutant, of_package: Sequence[str]) -> list[Round]:
        """The tests that judge a mutant: those that run its line, or those of its file and then all.

        of_package: the package's folders of tests, in the order in which they are asked: quick ones first.
        """
        lines = self.runs.get(mutant.path, {})
        if names := lines.get(mutant.line):
            return [*self._of_few(names), *self._by_folder(names, of_package)]
        of_file = frozenset[str]().union(*lines.values())
        all_of_them = [self._round([folder]) for folder in of_package]
        return [*self._of_few(of_file), *self._by_folder(of_file, of_package), *all_of_them]

    def _of_few(self, names: frozenset[str]) -> list[Round]:
        quickest = sorted(names, key=lambda name: (self.seconds.get(name, 0.0), name))
        return [self._round(quickest[:FEW])] if len(names) > FEW else []

    def _by_folder(self, names: frozenset[str], folders: Sequence[str]) -> list[Round]:
        """A round for each folder that has some of these tests."""
        rounds = ([name for name in names if name.startswith(folder)] for folder in folders)
        return [self._round(_named(found)) for found in rounds if found]

    def _round(self, tests: Sequence[str]) -> Round:
        within = tuple(tests)
        usual_s = sum(seconds for name, seconds in self.seconds.items() if name.startswith(within))
        patience_s = max(LEAST_PATIENCE_S, PATIENCE_FACTOR * max(self.seconds.values(), default=0.0))
        return Round(tests, FACTOR * usual_s + patience_s + GRACE_S, patience_s)


def _named(names: Sequence[str]) -> list[str]:
    """Tests by their names, or, where they are many, by their files."""
    return sorted({name.partition("::")[0] for name in names} if len(names) > MANY else names)
