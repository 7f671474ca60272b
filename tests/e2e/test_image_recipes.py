"""Every Dockerfile can be built as it is read here, and makes an image that may not do more than it must."""

import tomllib
from pathlib import Path

import pytest
from images.dockerfile import read_recipe
from penstock_operator.objects.engine_container import PLUGIN_FOLDER, PLUGIN_SOURCE

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = ROOT / "vllm-plugin" / "Dockerfile"
DOCKERFILES = [path for path in sorted(ROOT.glob("*/Dockerfile")) if "images/install" in path.read_text()]


@pytest.fixture(params=DOCKERFILES, ids=lambda path: path.parent.name)
def dockerfile(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_there_is_one_for_each_process_of_a_cluster() -> None:
    assert {"operator", "router", "picker", "replica-sidecar", "simulator"} <= {
        path.parent.name for path in DOCKERFILES
    }


def test_its_process_is_a_command_of_the_distribution_beside_it(dockerfile: Path) -> None:
    project = tomllib.loads((dockerfile.parent / "pyproject.toml").read_text())["project"]
    recipe = read_recipe(dockerfile)
    _, distribution, command = recipe.install
    assert (distribution, recipe.entrypoint) == (project["name"], [command])
    assert command in project["scripts"]


def test_it_runs_as_an_unprivileged_user(dockerfile: Path) -> None:
    assert read_recipe(dockerfile).user == "65532:65532"


def test_it_looks_for_compiled_code_where_its_build_left_it(dockerfile: Path) -> None:
    recipe = read_recipe(dockerfile)
    assert {name: recipe.env.get(name) for name in recipe.build_env} == recipe.build_env


def test_its_bases_and_version_are_arguments(dockerfile: Path) -> None:
    text = dockerfile.read_text()
    bases = [line.split()[1] for line in text.splitlines() if line.startswith("FROM ")]
    assert all(base.startswith("${") for base in bases)
    assert read_recipe(dockerfile).labels["org.opencontainers.image.version"] == "dev"


def test_a_build_stage_that_installs_nothing_is_no_recipe(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text('FROM a AS build\nRUN true\nFROM b\nUSER 1\nENTRYPOINT ["x"]\n')
    with pytest.raises(ValueError, match="must run /src/images/install once"):
        read_recipe(path)


def test_the_plug_ins_image_has_what_the_operator_copies_and_a_base_that_copies() -> None:
    recipe = read_recipe(PLUGIN)
    assert recipe.entrypoint == ["cp", "-r", f"{PLUGIN_SOURCE}/.", PLUGIN_FOLDER]
    assert (recipe.base, recipe.user) == ("docker.io/library/busybox", "65532:65532")
    ((*sources, place),) = recipe.copies
    assert place == f"{PLUGIN_SOURCE}/"
    assert {package.name for source in sources for package in (ROOT / source).iterdir()} >= {
        "penstock_core",
        "penstock_proto",
        "penstock_vllm",
    }


def test_the_plug_ins_image_holds_all_that_the_plug_in_is_made_of_and_nothing_else() -> None:
    ((*sources, _),) = read_recipe(PLUGIN).copies
    copied = {Path(source).parent.name for source in sources}
    needed = {"vllm-plugin"}
    for member in ("vllm-plugin", "core", "proto"):
        project = tomllib.loads((ROOT / member / "pyproject.toml").read_text())["project"]
        words = (word.partition("[")[0] for word in project["dependencies"])
        needed |= {word.removeprefix("penstock-") for word in words if word.startswith("penstock-")}
    assert copied == needed
