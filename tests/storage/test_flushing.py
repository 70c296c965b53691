"""Files that wait for the disk together: whole or not there, flushed before they have their names."""

import os

import pytest

from dpscale.storage import flushing
from dpscale.storage.files import flush_names, remove_partial
from dpscale.storage.flushing import Together


def write(files, path, content=b"whole"):
    with files.writing(path) as file:
        file.write(content)


def write_all(folder, letters, broken=False):
    with Together() as files:
        for letter in letters:
            write(files, folder / letter)
        if broken:
            write(files, folder / "z", b"half" * (1 // 0))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_files_have_their_names_at_the_end_and_old_ones_stay_until_then(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    with Together() as files:
        write(files, tmp_path / "a")
        write(files, tmp_path / "made/b")
        assert (tmp_path / "a").read_bytes() == b"old"
        assert not (tmp_path / "made/b").exists()
    assert names(tmp_path) == ["a", "made"]
    assert (tmp_path / "a").read_bytes() == (tmp_path / "made/b").read_bytes() == b"whole"


@pytest.mark.parametrize(("limit", "value"), [("MOST_FILES", 2), ("LARGE_BYTES", 5), ("MOST_SECONDS", -1.0)])
def test_enough_of_them_do_not_wait_for_the_end(tmp_path, monkeypatch, limit, value):
    monkeypatch.setattr(flushing, limit, value)
    with Together() as files:
        for name in "ab":
            write(files, tmp_path / name)
        assert names(tmp_path) == ["a", "b"]


def test_every_file_is_flushed_before_any_has_its_name(tmp_path, monkeypatch):
    done = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *given, real=real, name=name: (done.append(name), real(*given)))
    write_all(tmp_path, "abc")
    assert done == ["fsync"] * 3 + ["replace"] * 3


def test_after_an_error_nothing_that_waited_is_left(tmp_path):
    with pytest.raises(ZeroDivisionError):
        write_all(tmp_path, "ab", broken=True)
    assert names(tmp_path) == []


def test_an_error_of_the_disk_leaves_whole_files_or_none(tmp_path, monkeypatch):
    """The third flush fails: none has its name, and nothing is left."""
    real, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_all(tmp_path, "abcd")
    assert names(tmp_path) == []


def test_half_written_files_of_the_dead_are_removed(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"whole")
    (tmp_path / ".b.parquet.0123.partial").write_bytes(b"ha")
    remove_partial(tmp_path)
    flush_names(tmp_path)
    assert names(tmp_path) == ["a.parquet"]
