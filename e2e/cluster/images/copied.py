"""Files of the checkout at their places in an image, as a layer: what a Dockerfile's COPY says."""

import hashlib
import shutil
import tempfile
from pathlib import Path, PurePath

from images.archive import write_layer
from images.debian import CACHE
from images.dockerfile import Recipe
from images.members import KEPT, forget_all_but

LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info")
"""As in .dockerignore."""


def copied_layer(recipe: Recipe, checkout: Path) -> Path:
    """The layer, in the cache by its content."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as unfinished:
        root = Path(unfinished, "root")
        root.mkdir()
        for *sources, place in recipe.copies:
            for source in sources:
                _copy(checkout / source, root / PurePath(place).relative_to("/"))
        made = Path(unfinished, "layer")
        write_layer(made, [(path, PurePath(path.name)) for path in sorted(root.iterdir())])
        layer = made.rename(CACHE / f"copied-{hashlib.sha256(made.read_bytes()).hexdigest()[:12]}.tar")
    forget_all_but(KEPT, "copied")
    return layer


def _copy(folder: Path, place: Path) -> None:
    """What is in a folder, into another: as COPY has it where the place ends in a slash."""
    place.mkdir(parents=True, exist_ok=True)
    shutil.copytree(folder, place, ignore=LEFT_OUT, dirs_exist_ok=True)
