"""Base images, made of Debian's packages.

`runtime` is Debian 13 with its own Python 3.13 and has the packages of gcr.io/distroless/python3-debian13: no
shell, no package manager. `build` also has a shell and binutils, for the stage that installs. `busybox` is
one static binary with many names. All are cached as folders; base images also as layers. Packages come from
the host's own mirror of Debian, whatever the host's release.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath

from images.archive import write_layer

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock" / "images"
VERSION = "2"  # part of the cache key; changes with the code below

RELEASE, PYTHON = "trixie", "python3.13"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"

RUNTIME = """
base-files ca-certificates libbz2-1.0 libc6 libdb5.3t64 libexpat1 libffi8 libgcc-s1 liblzma5 libncursesw6
libpython3.13-minimal libpython3.13-stdlib libreadline8t64 libsqlite3-0 libssl3t64 libstdc++6 libtinfo6
libuuid1 libzstd1 media-types netbase python3.13 python3.13-minimal tzdata zlib1g
"""
BUILD = """
binutils binutils-common binutils-x86-64-linux-gnu coreutils dash findutils libacl1 libattr1 libbinutils
libcap2 libctf-nobfd0 libctf0 libgmp10 libgprofng0 libjansson4 libpcre2-8-0 libselinux1 libsframe1 libsystemd0
sed
"""
BUSYBOX = ("busybox-static",)
UNUSED = ("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/lintian", "usr/share/bug")


def base_layer(base: str) -> Path:
    """Return a base image as a layer. Raises KeyError for an unknown one."""
    tree = BASES[base]()
    layer = tree.with_suffix(".tar")
    if not layer.exists():
        unfinished = layer.with_suffix(f".{os.getpid()}")
        write_layer(unfinished, ((path, PurePath(path.name)) for path in sorted(tree.iterdir())))
        unfinished.rename(layer)
    return layer


def build_tree() -> Path:
    """Return a root folder for chroot, with the packages of the build stage."""
    return _tree("build", [*RUNTIME.split(), *BUILD.split()], _configure)


def _tree(name: str, packages: Sequence[str], configure: Callable[[Path], None]) -> Path:
    key = hashlib.sha256(" ".join([VERSION, *packages]).encode()).hexdigest()[:12]
    tree = CACHE / f"{name}-{key}"
    if not tree.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as unfinished:
            root = Path(unfinished, "root")
            root.mkdir(mode=0o755)
            _unpack(root, packages)
            configure(root)
            root.rename(tree)
    return tree


def _unpack(root: Path, packages: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory() as debs:
        command = ["apt-get", *_of_release(), "download", "-qq", *packages]
        subprocess.run(command, cwd=debs, check=True, stdout=sys.stderr)
        for name in ("bin", "sbin", "lib", "lib64"):
            (root / "usr" / name).mkdir(parents=True, exist_ok=True)
            (root / name).symlink_to(f"usr/{name}")
        for deb in sorted(Path(debs).glob("*.deb")):
            files = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], check=True, stdout=subprocess.PIPE)
            unpack = ["tar", "-x", "--keep-directory-symlink", "-C", str(root)]
            subprocess.run(unpack, input=files.stdout, check=True)
    for path in UNUSED:
        shutil.rmtree(root / path, ignore_errors=True)


def _of_release() -> list[str]:
    """Return apt-get's options for the packages of `RELEASE`, whose lists are apart from the host's."""
    folder = CACHE / f"apt-{RELEASE}"
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    sources = folder / "sources.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {_mirror()} {RELEASE} main\n")
    settings = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    subprocess.run(["apt-get", *options, "update", "-qq"], check=True, stdout=sys.stderr)
    return options


def _mirror() -> str:
    """Return the address of the host's mirror of Debian."""
    host_release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", f"Codename: {host_release}"]
    found = subprocess.run([*command, "Component: main"], check=True, stdout=subprocess.PIPE, text=True)
    if not found.stdout:
        raise SystemExit(f"apt knows no mirror of Debian {host_release}: run apt-get update")
    return found.stdout.split()[0]


def _name_applets(root: Path) -> None:
    """Link the names of busybox's commands to its binary."""
    (root / "usr/bin").mkdir(exist_ok=True)
    subprocess.run(["chroot", str(root), "/bin/busybox", "--install", "-s", "/bin"], check=True)


def _configure(root: Path) -> None:
    """Do the work of the packages' own scripts."""
    etc = root / "etc"
    (etc / "passwd").write_text(
        "root:x:0:0::/root:/sbin/nologin\nnonroot:x:65532:65532::/home/nonroot:/sbin/nologin\n"
    )
    (etc / "group").write_text("root:x:0:\nnonroot:x:65532:\n")
    (etc / "nsswitch.conf").write_text("hosts: files dns\n")
    (root / "home/nonroot").mkdir(parents=True)
    (root / "tmp").mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    (etc / "ssl/certs").mkdir(parents=True, exist_ok=True)
    (etc / "ssl/certs/ca-certificates.crt").write_text("".join(c.read_text() for c in certificates))
    for name in ("python", "python3"):
        (root / "usr/bin" / name).symlink_to(PYTHON)
    if (root / "bin/dash").exists() and not (root / "bin/sh").exists():
        (root / "bin/sh").symlink_to("dash")
    subprocess.run(["ldconfig", "-r", root], check=True)
    python = ["chroot", str(root), f"/usr/bin/{PYTHON}", "-m", "compileall", "-q", f"/usr/lib/{PYTHON}"]
    subprocess.run(python, check=True)


BASES: dict[str, Callable[[], Path]] = {
    "gcr.io/distroless/python3-debian13": lambda: _tree("runtime", RUNTIME.split(), _configure),
    "docker.io/library/busybox": lambda: _tree("busybox", BUSYBOX, _name_applets),
}
