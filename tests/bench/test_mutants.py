"""The mutation probe finds what tests miss, and changes nothing of the tree that it is asked about."""

import subprocess
from pathlib import Path

import pytest
from mutants.__main__ import judged, score, summary
from mutants.mutations import mutants_of
from mutants.selection import changed_lines, of_package, sampled
from mutants.trial import MANY, RedBaseline, Tree, Verdict, rounds_for

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
def test_a_place_and_what_could_stand_there(source: str, found: list[str]) -> None:
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
def test_what_nobody_relies_on_is_left_alone(source: str) -> None:
    assert changes(source) == []


def test_survivors_are_what_the_tests_do_not_say(project: Path) -> None:
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
    tree = Tree(project, project.parent / "copy")
    bound_s = 3.0 if verdict is Verdict.TIMED_OUT else 120.0
    assert tree.verdict(mutant, [["tests/parcels/test_sizes.py"]], bound_s) is verdict


def test_a_mutant_that_cannot_be_imported_is_killed_where_the_source_can_be(project: Path) -> None:
    (mutant, *_) = mutants_of("parcels/src/penstock_parcels/sizes.py", b"LARGE = 3\n")
    (project / mutant.path).write_text("LARGE = 3\nassert LARGE == 1 + 2\n")
    tests = project / "tests/parcels/test_sizes.py"
    tests.write_text("import penstock_parcels.sizes\ndef test(): pass\n")
    tree = Tree(project, project.parent / "copy")
    assert tree.verdict(mutant, [["tests/parcels/test_sizes.py"]]) is Verdict.KILLED
    assert tree.verdict(mutant, [["tests/parcels/test_missing.py"]]) is Verdict.BROKEN


def test_mutants_that_were_not_judged_count_neither_way() -> None:
    mutant = mutants_of("x.py", b"LIMIT = 3\n")[0]
    killed, survived = (mutant, Verdict.KILLED), (mutant, Verdict.SURVIVED)
    unjudged = [(mutant, Verdict.BROKEN), (mutant, Verdict.TIMED_OUT)]
    assert score([killed, survived, *unjudged]) == score([killed, survived]) == 0.5
    assert summary("parcels", [killed, survived, *unjudged]) == (
        "parcels: 1 of 2 killed, 50.0%; not judged: 1 timed out, 1 broken"
    )
    assert score(unjudged) == 1


def test_paths_that_contain_an_excluded_part_are_left_out(project: Path) -> None:
    (project / "parcels/src/penstock_parcels/labels.py").write_text("WIDTH = 3\n")
    everything = of_package(project, "parcels")
    assert {Path(mutant.path).name for mutant in everything} == {"__init__.py", "labels.py"}
    chosen = of_package(project, "parcels", ["parcels/labels"])
    assert chosen == [mutant for mutant in everything if mutant.path.endswith("__init__.py")]


def test_a_line_is_judged_by_the_tests_that_run_it_and_one_that_none_runs_by_those_of_its_file_first() -> (
    None
):
    ran, imported = mutants_of("x.py", b"LIMIT = 3\ndef f(): return LIMIT\n")[::-1]
    runs = {"x.py": {1: frozenset[str](), 2: frozenset({"t/a.py::b", "t/a.py::a"})}}
    assert rounds_for(ran, runs, ["t"]) == [["t/a.py::a", "t/a.py::b"]]
    assert rounds_for(imported, runs, ["t"]) == [["t/a.py::a", "t/a.py::b"], ["t"]]
    assert rounds_for(imported, {}, ["t"]) == [["t"]]
    both = {"x.py": {2: frozenset({"slow/b.py::a", "t/a.py::b"})}}
    assert rounds_for(ran, both, ["t", "slow"]) == [["t/a.py::b"], ["slow/b.py::a"]]
    assert rounds_for(imported, both, ["t", "slow"]) == [["t/a.py::b"], ["slow/b.py::a"], ["t"], ["slow"]]
    many = {"x.py": {2: frozenset(f"t/a.py::{number}" for number in range(MANY + 1))}}
    assert rounds_for(ran, many, ["t"]) == [["t/a.py"]]


def test_compiled_code_is_judged_as_it_is_written(project: Path) -> None:
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


def test_nothing_is_said_where_the_tests_are_red(project: Path) -> None:
    (project / "tests/parcels/test_parcels.py").write_text("def test(): assert False")
    with pytest.raises(RedBaseline):
        judged(project, "parcels", ["tests/parcels"], of_package(project, "parcels"), jobs=1)


def test_lines_that_have_changed_are_known(project: Path) -> None:
    path = "parcels/src/penstock_parcels/__init__.py"
    assert changed_lines(project, "HEAD") == {}
    (project / path).write_text(SOURCE.replace("price = 5", "price = 5\n    price = price * 1"))
    assert changed_lines(project, "HEAD") == {path: {8}}


def test_a_sample_is_the_same_for_the_same_seed() -> None:
    mutants = mutants_of("x.py", SOURCE.encode())
    assert sampled(mutants, 4, seed=1) == sampled(mutants, 4, seed=1) != sampled(mutants, 4, seed=2)
    assert sampled(mutants, 1000, seed=1) == mutants
