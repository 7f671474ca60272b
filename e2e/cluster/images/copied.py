"""Makes a layer of files that the Dockerfile copies from the checkout."""

import hashlib
import shutil
import tempfile
from pathlib import Path, PurePath

from images.archive import write_layer
from images.debian import CACHE
from images.dockerfile import Recipe
from images.members import KEPT_LAYERS, remove_old_layers

IGNORED = shutil.ignore_patterns("__pycache__", "*.egg-info")
"""As in .dockerignore."""


def copied_layer(recipe: Recipe, checkout: Path) -> Path:
    """Return the layer, which is cached by its content."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as unfinished:
        root = Path(unfinished, "root")
        root.mkdir()
        for copy in recipe.copies:
            for source in copy.sources:
                copy_content(checkout / source, root / PurePath(copy.folder).relative_to("/"), copy.mode)
        made = Path(unfinished, "layer")
        write_layer(made, [(path, PurePath(path.name)) for path in sorted(root.iterdir())])
        layer = made.rename(CACHE / f"copied-{hashlib.sha256(made.read_bytes()).hexdigest()[:12]}.tar")
    remove_old_layers(KEPT_LAYERS, "copied")
    return layer


def copy_content(folder: Path, place: Path, mode: int | None) -> None:
    """Copy the content of a folder into another one, as COPY does for a target that ends in a slash."""
    place.mkdir(parents=True, exist_ok=True)
    shutil.copytree(folder, place, ignore=IGNORED, dirs_exist_ok=True)
    if mode is not None:
        for copied in (place, *place.rglob("*")):
            copied.chmod(mode)
