"""Certificates of an authority made for a test."""

import subprocess
import tempfile
from pathlib import Path


def make_certificates(folder: Path, name: str = "IP:127.0.0.1") -> None:
    """Write a CA and one identity that it has signed for a name, replacing earlier files at once."""
    new = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    with tempfile.TemporaryDirectory(dir=folder) as made:
        for command in (
            f"{new} -subj /CN=ca -keyout ca.key -out ca.pem",
            f"{new} -subj /CN=node -addext subjectAltName={name} -CA ca.pem -CAkey ca.key "
            "-keyout node.key -out node.pem",
        ):
            subprocess.run(["openssl", *command.split()], cwd=made, check=True, capture_output=True)
        for file in Path(made).iterdir():
            file.rename(folder / file.name)
