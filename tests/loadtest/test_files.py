"""Files that appear whole or not at all."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from loadtest.files import read_text, written_whole
from services.runtime.errors import UserError


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "new" / "a.txt"
    with written_whole(file) as stream:
        stream.write("first\n")
        assert not file.exists()
    with pytest.raises(ZeroDivisionError), written_whole(file) as stream:
        stream.write(f"half {1 / 0}")
    assert file.read_text() == "first\n"
    assert [path.name for path in file.parent.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("absent.txt", None, "No such file or directory"),
        ("a.txt", b"\xff", "not a UTF-8 text file"),
        ("a.txt.gz", b"plain", "Not a gzipped file"),
        ("a.txt.gz", gzip.compress(b"toner")[:-9], "cut short or damaged"),
        ("a.txt.gz", gzip.compress(b"")[:10] + b"\xff" * 4, "cut short or damaged"),
    ],
)
def test_a_text_that_cannot_be_read_is_a_sentence(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=rf"{name}: .*{words}") as caught:
        read_text(tmp_path / name)
    assert "Errno" not in str(caught.value)


@pytest.mark.parametrize("name", ["file/below.txt", "folder", ".", "n" * 300])
def test_a_place_that_cannot_be_written_is_a_sentence(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below a file the clean-up itself failed, and the user saw three tracebacks."""
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    Path("folder").mkdir()
    with pytest.raises(UserError, match="cannot write"), written_whole(Path(name)) as stream:
        stream.write("x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]
