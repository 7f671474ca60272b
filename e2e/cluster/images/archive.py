"""Writes an image as a docker-archive: layers, a configuration, and a manifest that names both.

Owners and dates are omitted, so equal trees have equal bytes and digests.

  archive.py NAME OUT.tar COMMAND SOURCE:PLACE...     an image with only these files
"""

import hashlib
import io
import json
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath

Config = Mapping[str, object]
"""Docker's configuration of an image: Env, Entrypoint, User, Labels."""


def write_layer(out: Path, contents: Iterable[tuple[Path, PurePath]]) -> None:
    """Write a layer of files and folders, given with their paths in the image."""
    with tarfile.open(out, "w") as archive:
        for source, place in contents:
            _add(archive, source, place)


def _add(archive: tarfile.TarFile, source: Path, place: PurePath) -> None:
    archive.add(source, arcname=str(place), recursive=False, filter=_without_owner)
    if source.is_dir() and not source.is_symlink():
        for path in sorted(source.iterdir()):
            _add(archive, path, place / path.name)


def _without_owner(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info


def write_archive(out: Path, name: str, layers: Sequence[Path], config: Config) -> None:
    """Write the image for `ctr images import` and `docker load`."""
    ids = [_digest(layer) for layer in layers]
    diff_ids = [f"sha256:{layer}" for layer in ids]
    image = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        }
    ).encode()
    config_name = f"{hashlib.sha256(image).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": [name], "Layers": [f"{layer}.tar" for layer in ids]}]
    with tarfile.open(out, "w") as archive:
        for layer, digest in zip(layers, ids, strict=True):
            archive.add(layer, arcname=f"{digest}.tar", filter=_without_owner)
        _add_bytes(archive, config_name, image)
        _add_bytes(archive, "manifest.json", json.dumps(manifest).encode())


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _add_bytes(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def main(name: str, out: str, command: str, *files: str) -> None:
    """Write an image of static binaries."""
    contents = [
        (Path(source), PurePath(place.lstrip("/"))) for source, place in (f.split(":") for f in files)
    ]
    with tempfile.NamedTemporaryFile(suffix=".tar") as layer:
        write_layer(Path(layer.name), contents)
        write_archive(Path(out), name, [Path(layer.name)], {"Entrypoint": [command], "WorkingDir": "/"})


if __name__ == "__main__":
    main(*sys.argv[1:])
