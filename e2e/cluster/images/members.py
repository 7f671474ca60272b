"""/opt/penstock of one distribution, as a layer: what its build stage in the Dockerfile makes.

The command runs in Debian's own tree with the checkout in /src, uv from this machine and uv's cache: in a
mount namespace of its own, so that nothing of it is left afterwards. A layer is kept for as long as nothing
changes that it is made of: the lock, the sources of its members, the installing script, the recipe.
"""

import hashlib
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePath

from images.archive import write_layer
from images.debian import CACHE, build_tree
from images.dockerfile import Recipe

PASSED_ON = ("UV_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
"""What of this machine's environment reaches packages' indexes."""

KEPT = 3
"""Layers of a name in the cache, the newest."""

CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"

IN_ROOT = """
set -eu
root=$1 checkout=$2 opt=$3 uv=$4 cache=$5; shift 5
mkdir -p "$root/src" "$root/opt/penstock" "$root/proc" "$root/dev" "$root/root/.cache/uv"
touch "$root/usr/bin/uv"
mount --bind "$checkout" "$root/src"
mount -o remount,ro,bind "$root/src"
mount --bind "$opt" "$root/opt/penstock"
mount --bind "$uv" "$root/usr/bin/uv"
mount --bind "$cache" "$root/root/.cache/uv"
mount --bind /etc/resolv.conf "$root/etc/resolv.conf"
mount --bind "$(readlink -f /etc/ssl/certs/ca-certificates.crt)" "$root/etc/ssl/certs/ca-certificates.crt"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
exec chroot "$root" "$@"
"""


def member_layer(recipe: Recipe, checkout: Path) -> Path:
    """The layer that the recipe's command makes of a checkout."""
    layer = CACHE / f"{recipe.install[1]}-{_key(recipe, checkout)}.tar"
    if not layer.exists():
        root = build_tree()
        with tempfile.TemporaryDirectory(dir=CACHE) as unfinished:
            opt = Path(unfinished, "opt")
            opt.mkdir(mode=0o755)
            _install(root, checkout, opt, recipe)
            write_layer(Path(unfinished, "layer"), [(opt, PurePath("opt/penstock"))])
            Path(unfinished, "layer").rename(layer)
        forget_all_but(KEPT, recipe.install[1])
    return layer


def forget_all_but(number: int, name: str) -> None:
    """Only the newest layers of a name stay in the cache."""
    layers = sorted(CACHE.glob(f"{name}-{'?' * 12}.tar"), key=lambda path: path.stat().st_mtime)
    for layer in layers[:-number]:
        layer.with_suffix(".packed.json").unlink(missing_ok=True)
        layer.unlink()


def _key(recipe: Recipe, checkout: Path) -> str:
    made_of = [checkout / "uv.lock", checkout / "images/install", *_sources(recipe.install[1], checkout)]
    digest = hashlib.sha256(repr((build_tree().name, recipe)).encode())
    for path in made_of:
        digest.update(str(path.relative_to(checkout)).encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _sources(distribution: str, checkout: Path) -> list[Path]:
    """Every file of the members that a distribution is made of: itself and those it needs."""
    export = [
        "export",
        "--frozen",
        "--quiet",
        "--no-dev",
        "--no-hashes",
        "--no-annotate",
        "--package",
        distribution,
    ]
    lines = _said_by_uv(*export, folder=checkout).splitlines()
    members = [line.removeprefix("-e ") for line in lines if line.startswith(("./", "-e ./"))]
    files = (path for member in members for path in (checkout / member / "src").rglob("*"))
    pyprojects = [checkout / member / "pyproject.toml" for member in members]
    return sorted([*pyprojects, *(path for path in files if path.is_file() and path.suffix != ".pyc")])


def _install(root: Path, checkout: Path, opt: Path, recipe: Recipe) -> None:
    for name in ("resolv.conf", "ssl/certs/ca-certificates.crt"):
        (root / "etc" / name).touch()
    enter = ["unshare", "--mount", "sh", "-c", IN_ROOT, "sh"]
    places = map(str, [root, checkout, opt, _uv(), _uv_cache()])
    command = [*enter, *places, *recipe.install]
    ran = subprocess.run(command, env=_environment(recipe.build_env), check=False, stdout=sys.stderr)
    if ran.returncode:
        raise SystemExit(f"image: {shlex.join(recipe.install)}: exit code {ran.returncode}")


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    reached = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    own = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "SSL_CERT_FILE": CERTIFICATES}
    return {**reached, **own, **given}


def _uv() -> Path:
    """uv's own binary: what lies on PATH may be a script that looks for it."""
    return Path(_said_by_uv("run", "--no-project", "printenv", "UV"))


def _uv_cache() -> Path:
    return Path(_said_by_uv("cache", "dir"))


def _said_by_uv(*arguments: str, folder: Path | None = None) -> str:
    command = [*shlex.split(os.environ.get("UV_COMMAND", "uv")), *arguments]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
