"""Files that are renewed in place: when they are read, and the effect of an invalid renewal."""

from pathlib import Path

import pytest
from penstock_runtime.renewed_files import RenewedFiles
from structlog.testing import capture_logs


class Pair:
    """Two files that belong together where they begin with the same letter."""

    def __init__(self, folder: Path) -> None:
        self.files = (folder / "cert", folder / "key")

    def write(self, *contents: str) -> None:
        """As many of the files as there are contents."""
        for file, content in zip(self.files, contents, strict=False):
            new = file.with_suffix(".new")
            new.write_text(content)
            new.rename(file)

    def read(self) -> str:
        cert, key = (file.read_text() for file in self.files)
        if cert[0] != key[0]:
            raise OSError(22, "no pair", str(self.files[0]))
        return cert


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    pair = Pair(tmp_path)
    pair.write("a1", "a2")
    return pair


def test_unchanged_files_are_not_reported(pair: Pair) -> None:
    renewed = RenewedFiles(pair.files, pair.read)
    assert (renewed.value, renewed.reload()) == ("a1", None)


def test_renewed_files_are_reported_once(pair: Pair) -> None:
    renewed = RenewedFiles(pair.files, pair.read)
    pair.write("b1", "b2")
    assert (renewed.reload(), renewed.reload(), renewed.value) == ("b1", None, "b1")


def test_a_partial_renewal_takes_effect_when_it_is_complete(pair: Pair) -> None:
    renewed = RenewedFiles(pair.files, pair.read)
    pair.write("b1")
    assert (renewed.reload(), renewed.value) == (None, "a1")
    pair.write("b1", "b2")
    assert renewed.reload() == "b1"


def test_a_renewal_while_the_files_are_read_is_read_again(pair: Pair) -> None:
    def read_slowly() -> str:
        value = pair.read()
        if value == "b1":
            pair.write("c1", "c2")
        return value

    renewed = RenewedFiles(pair.files, read_slowly)
    pair.write("b1", "b2")
    assert (renewed.reload(), renewed.value) == (None, "a1")
    assert renewed.reload() == "c1"


def test_the_same_error_is_logged_once(pair: Pair) -> None:
    renewed = RenewedFiles(pair.files, pair.read)
    pair.files[1].unlink()
    with capture_logs() as logs:
        assert [renewed.reload() for _ in range(3)] == [None] * 3
    assert [(line["event"], line["why"]) for line in logs] == [
        ("files not renewed", "No such file or directory")
    ]
    assert renewed.value == "a1"


def test_files_that_cannot_be_read_initially_are_an_error(pair: Pair) -> None:
    pair.write("b1")
    with pytest.raises(OSError, match="no pair"):
        RenewedFiles(pair.files, pair.read)
