"""Every target of the Dockerfile can be built as it is read here, and may do no more than it must."""

import tomllib
from pathlib import Path

import pytest
from images.copied import copy_content
from images.dockerfile import Recipe, read_recipe, targets
from penstock_operator.objects.engine_container import PLUGIN_FOLDER, PLUGIN_SOURCE

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "Dockerfile"
PLUGIN = "vllm-plugin"
MEMBERS = {
    "operator": "operator",
    "router": "router",
    "picker": "picker",
    "sidecar": "replica-sidecar",
    "simulator": "simulator",
}
"""Folders of the distributions that targets install."""


@pytest.fixture(params=MEMBERS)
def target(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def recipe(target: str) -> Recipe:
    return read_recipe(DOCKERFILE, target)


def test_there_is_one_for_each_process_of_a_cluster() -> None:
    assert targets(DOCKERFILE) == [*MEMBERS, PLUGIN]


def test_its_process_is_a_command_of_the_distribution_that_is_installed(target: str, recipe: Recipe) -> None:
    project = tomllib.loads((ROOT / MEMBERS[target] / "pyproject.toml").read_text())["project"]
    _, distribution, command = recipe.install
    assert (distribution, recipe.entrypoint) == (project["name"], [command])
    assert command in project["scripts"]


def test_it_runs_as_an_unprivileged_user(recipe: Recipe) -> None:
    assert recipe.user == "65532:65532"


def test_it_looks_for_compiled_code_where_its_build_left_it(target: str, recipe: Recipe) -> None:
    assert {name: recipe.env.get(name) for name in recipe.build_env} == recipe.build_env
    assert bool(recipe.build_env) == (target in {"sidecar", "simulator"}), "those that plan batches"


def test_its_labels_name_it_and_its_version(target: str, recipe: Recipe) -> None:
    labels = {name.removeprefix("org.opencontainers.image."): said for name, said in recipe.labels.items()}
    assert (labels["title"], labels["version"]) == (f"penstock-{target}", "dev")
    assert labels["description"]


def test_every_base_is_an_argument() -> None:
    lines = [line.split() for line in DOCKERFILE.read_text().splitlines() if line.startswith("FROM ")]
    stages = {name for _, _, _, name in lines}
    assert all(base.startswith("${") for _, base, _, _ in lines if base not in stages)


def test_a_build_stage_that_installs_nothing_is_no_recipe(tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(
        'FROM a AS build\nRUN true\nFROM b AS it\nUSER 1\nCOPY --from=build /x /x\nENTRYPOINT ["x"]\n'
    )
    with pytest.raises(ValueError, match="must run /src/images/install once"):
        read_recipe(path, "it")


def test_an_unknown_target_is_no_recipe() -> None:
    with pytest.raises(ValueError, match="no target database"):
        read_recipe(DOCKERFILE, "database")


def test_the_plug_ins_image_has_what_the_operator_copies_and_a_base_that_copies() -> None:
    recipe = read_recipe(DOCKERFILE, PLUGIN)
    assert recipe.entrypoint == ["cp", "-r", f"{PLUGIN_SOURCE}/.", PLUGIN_FOLDER]
    assert (recipe.base, recipe.user) == ("docker.io/library/busybox", "65532:65532")
    (copy,) = recipe.copies
    assert copy.folder == f"{PLUGIN_SOURCE}/"
    assert {package.name for source in copy.sources for package in (ROOT / source).iterdir()} >= {
        "penstock_core",
        "penstock_proto",
        "penstock_vllm",
    }


def test_every_user_of_the_plug_ins_image_can_read_its_files(tmp_path: Path) -> None:
    checkout, image = tmp_path / "checkout", tmp_path / "image"
    (checkout / "package").mkdir(parents=True, mode=0o700)
    (checkout / "package" / "module.py").touch(mode=0o600)
    (copy,) = read_recipe(DOCKERFILE, PLUGIN).copies
    copy_content(checkout, image, copy.mode)
    modes = {path.stat().st_mode & 0o777 for path in (image, *image.rglob("*"))}
    assert modes == {0o755}


def test_the_plug_ins_image_holds_all_that_the_plug_in_is_made_of_and_nothing_else() -> None:
    (copy,) = read_recipe(DOCKERFILE, PLUGIN).copies
    copied = {Path(source).parent.name for source in copy.sources}
    needed = {"vllm-plugin"}
    for member in ("vllm-plugin", "core", "proto"):
        project = tomllib.loads((ROOT / member / "pyproject.toml").read_text())["project"]
        words = (word.partition("[")[0] for word in project["dependencies"])
        needed |= {word.removeprefix("penstock-") for word in words if word.startswith("penstock-")}
    assert copied == needed
