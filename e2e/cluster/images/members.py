"""Makes a layer of one distribution's /opt/penstock, as its build stage in the Dockerfile does.

The command runs in a Debian root with the checkout in /src, this machine's uv and uv's cache, in its own
mount namespace, so that no mounts remain. A layer is cached until the lock file, the sources of its members,
the install script or the recipe change.
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

FORWARDED_PREFIXES = ("UV_", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
"""Prefixes of environment variables that the command gets, to reach package indexes."""

KEPT_LAYERS = 3
"""Number of layers of one name that stay in the cache."""

CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"

INSTALL_SCRIPT = """
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
    """Return the layer that the recipe's command makes of a checkout."""
    layer = CACHE / f"{recipe.install[1]}-{_key(recipe, checkout)}.tar"
    if not layer.exists():
        root = build_tree()
        with tempfile.TemporaryDirectory(dir=CACHE) as unfinished:
            opt = Path(unfinished, "opt")
            opt.mkdir(mode=0o755)
            _install(root, checkout, opt, recipe)
            write_layer(Path(unfinished, "layer"), [(opt, PurePath("opt/penstock"))])
            Path(unfinished, "layer").rename(layer)
        remove_old_layers(KEPT_LAYERS, recipe.install[1])
    return layer


def remove_old_layers(number: int, name: str) -> None:
    """Remove all but the newest layers of a name from the cache."""
    layers = sorted(CACHE.glob(f"{name}-{'?' * 12}.tar"), key=lambda path: path.stat().st_mtime)
    for layer in layers[:-number]:
        layer.with_suffix(".packed.json").unlink(missing_ok=True)
        layer.unlink()


def _key(recipe: Recipe, checkout: Path) -> str:
    inputs = [checkout / "uv.lock", checkout / "images/install", *_sources(recipe.install[1], checkout)]
    digest = hashlib.sha256(repr((build_tree().name, recipe)).encode())
    for path in inputs:
        digest.update(str(path.relative_to(checkout)).encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:12]


def _sources(distribution: str, checkout: Path) -> list[Path]:
    """Return the files of a distribution and of the members that it depends on."""
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
    lines = _uv_output(*export, folder=checkout).splitlines()
    members = [line.removeprefix("-e ") for line in lines if line.startswith(("./", "-e ./"))]
    files = (path for member in members for path in (checkout / member / "src").rglob("*"))
    pyprojects = [checkout / member / "pyproject.toml" for member in members]
    return sorted([*pyprojects, *(path for path in files if path.is_file() and path.suffix != ".pyc")])


def _install(root: Path, checkout: Path, opt: Path, recipe: Recipe) -> None:
    for name in ("resolv.conf", "ssl/certs/ca-certificates.crt"):
        (root / "etc" / name).touch()
    enter = ["unshare", "--mount", "sh", "-c", INSTALL_SCRIPT, "sh"]
    places = map(str, [root, checkout, opt, _uv(), _uv_cache()])
    command = [*enter, *places, *recipe.install]
    ran = subprocess.run(command, env=_environment(recipe.build_env), check=False, stdout=sys.stderr)
    if ran.returncode:
        raise SystemExit(f"image: {shlex.join(recipe.install)}: exit code {ran.returncode}")


def _environment(given: Mapping[str, str]) -> dict[str, str]:
    forwarded = {name: value for name, value in os.environ.items() if name.startswith(FORWARDED_PREFIXES)}
    own = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "SSL_CERT_FILE": CERTIFICATES}
    return {**forwarded, **own, **given}


def _uv() -> Path:
    """Return the path of uv's binary; the one on PATH may be a wrapper script."""
    return Path(_uv_output("run", "--no-project", "printenv", "UV"))


def _uv_cache() -> Path:
    return Path(_uv_output("cache", "dir"))


def _uv_output(*arguments: str, folder: Path | None = None) -> str:
    command = [*shlex.split(os.environ.get("UV_COMMAND", "uv")), *arguments]
    return subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
