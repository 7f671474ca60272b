"""The mutation probe finds behaviour that no test asserts, and does not change the tree."""

import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from mutants.__main__ import ROOT, judged, score, summary
from mutants.baseline import (
    FACTOR,
    FEW,
    GRACE_S,
    LEAST_PATIENCE_S,
    MANY,
    PATIENCE_FACTOR,
    Baseline,
    RoundOfTests,
)
from mutants.equivalent import EquivalentMark, InvalidMark, marked, marks_of
from mutants.mutations import Mutant, mutants_of
from mutants.selection import changed_lines, of_package, sampled
from mutants.trial import RedBaseline, Tree, Verdict

SOURCE = '''
"""How much a parcel costs."""

def cost(weight: int = 0) -> int:
    if weight < 0:
        raise ValueError(f"{weight} is less than {0}")
    price = 5
    if weight > 10:
        price += 3
    return price
'''
TESTS = """
import pytest
from penstock_parcels import cost

def test_light():
    assert cost() == cost(1) == 5

def test_heavy():
    assert cost(12) == 8

def test_negative():
    with pytest.raises(ValueError):
        cost(-1)
"""
SURVIVORS = ["0 -> (1)", "weight > 10 -> (weight >= 10)", "10 -> (11)"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository of one package."""
    root = tmp_path / "project"
    for name, text in {
        "parcels/src/penstock_parcels/__init__.py": SOURCE,
        "tests/parcels/test_parcels.py": TESTS,
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["parcels/src"]\n',
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "-c", "user.name=t", "-c", "user.email=t@t", "commit", "--quiet", "--message=all")
    return root


def git(root: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=root, check=True)


def asked(baseline: Baseline, mutant: Mutant, folders: list[str]) -> list[list[str]]:
    return [list(each.tests) for each in baseline.rounds_for(mutant, folders)]


def changes(source: str) -> list[str]:
    return [f"{mutant.was} -> {mutant.text}" for mutant in mutants_of("x.py", source.encode())]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("a < b", ["a < b -> (a <= b)"]),
        ("a is None", ["a is None -> (a is not None)"]),
        ("a and b", ["a and b -> (a or b)"]),
        ("x = a * b", ["a * b -> (a / b)"]),
        ("x = not a", ["not a -> (a)"]),
        ("x = [True, 2, 0.0]", ["True -> (False)", "2 -> (3)", "0.0 -> (1.0)"]),
        ("self.x = a", ["self.x = a -> pass"]),
        ("x += a", ["x += a -> pass"]),
        ("f(a)", ["f(a) -> pass"]),
        ("def f():\n    return a", ["return a -> return None"]),
        ("def f():\n    return False", ["False -> (True)"]),
        ("LIMIT = 3", ["3 -> (4)"]),
        ("LIMIT = OTHER * 3\n'It follows another.'", ["OTHER * 3 -> (OTHER / 3)", "3 -> (4)"]),
        ("STRICT = True\n'It decides.'", ["True -> (False)"]),
        ("for a in b:\n    if c:\n        continue", ["c -> False"]),
        ("ü = 'ß'; x = a + 1", ["a + 1 -> (a - 1)", "1 -> (2)"]),
    ],
)
def test_a_place_and_its_possible_mutations(source: str, found: list[str]) -> None:
    assert changes(source) == found


@pytest.mark.parametrize(
    "source",
    [
        '"""Of 3 things."""',
        "x: Literal[3]",
        "log.info(f(3))",
        "from a import b",
        "x = f'{3}'",
        "assert a < b",
        "x = zip(a, b, strict=True)",
        "def f(a: Literal[3]) -> Literal[4]: ...",
        'PATIENCE_S = 3 * 2**4\n"""A setting."""',
        'LOW, HIGH = -3, 4\n"""Settings."""',
        'BOUNDS = Bounds(3, seconds=4.0)\n"""Settings."""',
    ],
)
def test_code_without_an_observable_effect_is_not_mutated(source: str) -> None:
    assert changes(source) == []


def test_mutants_survive_if_no_test_asserts_the_behaviour(project: Path) -> None:
    mutants = of_package(project, "parcels")
    found = judged(project, "parcels", ["tests/parcels"], mutants, jobs=1)
    survivors = [f"{mutant.was} -> {mutant.text}" for mutant, verdict in found if verdict == "survived"]
    assert survivors == SURVIVORS
    assert score(found) == 1 - len(SURVIVORS) / len(mutants)
    assert (project / "parcels/src/penstock_parcels/__init__.py").read_text() == SOURCE


HALVES = """
from os import kill, getpid
from signal import SIGKILL
from time import sleep
import penstock_parcels.sizes as sizes

def test():
    {when}
"""


@pytest.mark.parametrize(
    ("when", "verdict"),
    [
        ("assert sizes.LARGE == 3", Verdict.KILLED),
        ("assert sizes.LARGE", Verdict.SURVIVED),
        ("sizes.LARGE == 3 or exec('raise KeyboardInterrupt')", Verdict.BROKEN),
        ("sizes.LARGE == 3 or kill(getpid(), SIGKILL)", Verdict.BROKEN),
        ("sizes.LARGE == 3 or sleep(1000)", Verdict.TIMED_OUT),
    ],
)
def test_only_a_failed_test_kills_a_mutant(project: Path, when: str, verdict: Verdict) -> None:
    (project / "parcels/src/penstock_parcels/sizes.py").write_text("LARGE = 3\n")
    (project / "tests/parcels/test_sizes.py").write_text(HALVES.format(when=when))
    (mutant,) = of_package(project, "parcels", ["__init__"])
    bound_s = 3.0 if verdict is Verdict.TIMED_OUT else 120.0
    with closing(Tree.of(project, project.parent / "copy", ["tests/parcels"])) as tree:
        assert tree.verdict(mutant, [RoundOfTests(["tests/parcels/test_sizes.py"], bound_s)]) is verdict


def test_a_mutant_that_cannot_be_imported_is_killed_if_the_source_can(project: Path) -> None:
    (mutant, *_) = mutants_of("parcels/src/penstock_parcels/sizes.py", b"LARGE = 3\n")
    (project / mutant.path).write_text("LARGE = 3\nassert LARGE == 1 + 2\n")
    tests = project / "tests/parcels/test_sizes.py"
    tests.write_text("import penstock_parcels.sizes\ndef test(): pass\n")
    with closing(Tree.of(project, project.parent / "copy", ["tests/parcels"])) as tree:
        assert tree.verdict(mutant, [RoundOfTests(["tests/parcels/test_sizes.py"], 120.0)]) is Verdict.KILLED
        assert (
            tree.verdict(mutant, [RoundOfTests(["tests/parcels/test_missing.py"], 120.0)]) is Verdict.BROKEN
        )


def test_mutants_that_were_not_judged_count_neither_way() -> None:
    mutant = mutants_of("x.py", b"LIMIT = 3\n")[0]
    killed, survived = (mutant, Verdict.KILLED), (mutant, Verdict.SURVIVED)
    unjudged = [(mutant, verdict) for verdict in (Verdict.BROKEN, Verdict.TIMED_OUT, Verdict.EQUIVALENT)]
    assert score([killed, survived, *unjudged]) == score([killed, survived]) == 0.5
    assert summary("parcels", [killed, survived, *unjudged]) == (
        "parcels: 1 of 2 killed, 50.0%; not judged: 1 timed out, 1 broken, 1 equivalent"
    )
    assert score(unjudged) == 1


def test_paths_that_contain_an_excluded_part_are_left_out(project: Path) -> None:
    (project / "parcels/src/penstock_parcels/labels.py").write_text("WIDTH = 3\n")
    everything = of_package(project, "parcels")
    assert {Path(mutant.path).name for mutant in everything} == {"__init__.py", "labels.py"}
    chosen = of_package(project, "parcels", ["parcels/labels"])
    assert chosen == [mutant for mutant in everything if mutant.path.endswith("__init__.py")]


def test_a_line_is_judged_by_tests_that_run_it_or_else_by_those_of_its_file() -> None:
    ran, imported = mutants_of("x.py", b"LIMIT = 3\ndef f(): return LIMIT\n")[::-1]
    runs = {"x.py": {1: frozenset[str](), 2: frozenset({"t/a.py::b", "t/a.py::a"})}}
    assert asked(Baseline(runs), ran, ["t"]) == [["t/a.py::a", "t/a.py::b"]]
    assert asked(Baseline(runs), imported, ["t"]) == [["t/a.py::a", "t/a.py::b"], ["t"]]
    assert asked(Baseline({}), imported, ["t"]) == [["t"]]
    both = Baseline({"x.py": {2: frozenset({"slow/b.py::a", "t/a.py::b"})}})
    assert asked(both, ran, ["t", "slow"]) == [["t/a.py::b"], ["slow/b.py::a"]]
    assert asked(both, imported, ["t", "slow"]) == [["t/a.py::b"], ["slow/b.py::a"], ["t"], ["slow"]]


def test_the_fastest_of_many_tests_run_first() -> None:
    ran = mutants_of("x.py", b"def f(): return 3\n")[0]
    names = [f"t/a.py::{number:03}" for number in range(MANY + 1)]
    seconds = {name: float(-number) for number, name in enumerate(names)}
    baseline = Baseline({"x.py": {1: frozenset(names)}}, seconds)
    assert asked(baseline, ran, ["t"]) == [names[: -FEW - 1 : -1], ["t/a.py"]]
    fewer = Baseline({"x.py": {1: frozenset(names[:MANY])}}, seconds)
    assert asked(fewer, ran, ["t"]) == [names[MANY - 1 : MANY - FEW - 1 : -1], names[:MANY]]
    fewest = Baseline({"x.py": {1: frozenset(names[:FEW])}}, seconds)
    assert asked(fewest, ran, ["t"]) == [names[:FEW]]


def test_tests_may_take_a_multiple_of_their_time_without_a_mutant() -> None:
    ran, imported = mutants_of("x.py", b"LIMIT = 3\ndef f(): return LIMIT\n")[::-1]
    runs = {"x.py": {2: frozenset({"t/a.py::a", "t/a.py::b"})}}
    waits_s = LEAST_PATIENCE_S + GRACE_S
    baseline = Baseline(runs, {"t/a.py::a": 2.0, "t/a.py::b": 3.0, "t/b.py::a": 4.0})
    assert baseline.rounds_for(ran, ["t"]) == [RoundOfTests(["t/a.py::a", "t/a.py::b"], FACTOR * 5 + waits_s)]
    everything = baseline.rounds_for(imported, ["t"])[-1]
    assert everything == RoundOfTests(["t"], FACTOR * 9 + waits_s)
    slow = Baseline({}, {"t/a.py::a": 10.0 * LEAST_PATIENCE_S}).rounds_for(imported, ["t"])[0]
    assert slow.patience_s == PATIENCE_FACTOR * 10 * LEAST_PATIENCE_S < slow.bound_s


def test_the_duration_of_each_test_is_recorded(project: Path) -> None:
    with closing(Tree.of(project, project.parent / "copy", ["tests/parcels"])) as tree:
        baseline = tree.baseline("parcels", jobs=1)
    names = {f"tests/parcels/test_parcels.py::test_{name}" for name in ("light", "heavy", "negative")}
    assert set(baseline.seconds) == names
    assert baseline.runs["parcels/src/penstock_parcels/__init__.py"][9] == {
        "tests/parcels/test_parcels.py::test_heavy"
    }


MARK = """
[[equivalent]]
file = "{file}"
line = "price = 5"
change = "5 -> (6)"
why = "Nobody pays."
"""


def test_a_marked_mutant_is_not_tried(project: Path, tmp_path: Path) -> None:
    file = tmp_path / "equivalent.toml"
    file.write_text(MARK.format(file="parcels/src/penstock_parcels/__init__.py"))
    mutants = of_package(project, "parcels")
    equivalent = marked(project, mutants, marks_of(file))
    assert [mutant.change for mutant in equivalent] == ["5 -> (6)"]
    found = judged(project, "parcels", ["tests/parcels"], mutants, jobs=1, equivalent=equivalent)
    assert {mutant for mutant, verdict in found if verdict is Verdict.EQUIVALENT} == equivalent


@pytest.mark.parametrize("line", ["price = 7", "price"])
def test_a_mark_without_a_match_is_an_error(project: Path, line: str) -> None:
    mark = EquivalentMark("parcels/src/penstock_parcels/__init__.py", line, "5 -> (6)", "Nobody pays.")
    with pytest.raises(InvalidMark, match="matches 0"):
        marked(project, of_package(project, "parcels"), [mark])


def test_a_mark_that_matches_more_mutants_than_its_count_is_an_error(project: Path) -> None:
    (project / "parcels/src/penstock_parcels/sizes.py").write_text("EDGES = [3, 3]\n")
    mark = EquivalentMark(
        "parcels/src/penstock_parcels/sizes.py", "EDGES = [3, 3]", "3 -> (4)", "Nobody measures."
    )
    with pytest.raises(InvalidMark, match="matches 2"):
        marked(project, of_package(project, "parcels"), [mark])
    assert len(marked(project, of_package(project, "parcels"), [replace(mark, times=2)])) == 2


def test_each_mark_has_its_mutant() -> None:
    marks = marks_of()
    packages = {mark.file.partition("/")[0] for mark in marks}
    mutants = [mutant for package in packages for mutant in of_package(ROOT, package)]
    assert len(marked(ROOT, mutants, marks)) == sum(mark.times for mark in marks)


def test_compiled_code_is_judged_by_its_source(project: Path) -> None:
    """The test sees compiling switched off for mutants of a file with compiled code, and for no other."""
    folder = project / "parcels/src/penstock_parcels"
    (folder / "loops.py").write_text("# from penstock_core.compilation.jit import compiled\ntwice = 1 + 1\n")
    (project / "tests/parcels/test_parcels.py").write_text(
        "import os, penstock_parcels, penstock_parcels.loops\n"
        "def test(): assert 'NUMBA_DISABLE_JIT' not in os.environ\n"
    )
    mutants = of_package(project, "parcels")
    found = judged(project, "parcels", ["tests/parcels"], mutants, jobs=1)
    noticed = {Path(mutant.path).name for mutant, verdict in found if verdict == "killed"}
    assert noticed == {"loops.py"}


def test_mutants_are_not_judged_if_the_tests_fail_without_them(project: Path) -> None:
    (project / "tests/parcels/test_parcels.py").write_text("def test(): assert False")
    with pytest.raises(RedBaseline):
        judged(project, "parcels", ["tests/parcels"], of_package(project, "parcels"), jobs=1)


def test_changed_lines_are_found(project: Path) -> None:
    path = "parcels/src/penstock_parcels/__init__.py"
    assert changed_lines(project, "HEAD") == {}
    (project / path).write_text(SOURCE.replace("price = 5", "price = 5\n    price = price * 1"))
    assert changed_lines(project, "HEAD") == {path: {8}}


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    mutants = mutants_of("x.py", SOURCE.encode())
    assert sampled(mutants, 4, seed=1) == sampled(mutants, 4, seed=1) != sampled(mutants, 4, seed=2)
    assert sampled(mutants, 1000, seed=1) == mutants
