"""Data layout: size, time and number of the files of a path, from their listing alone."""

import os

import fsspec
import pytest

from dpscale.base.errors import DataError, TransientError
from dpscale.records.origin import differing, layout
from tests.messages import refused


def test_layout_covers_the_files_that_are_read(tmp_path):
    for name, size, time in (("a.parquet", 10, 5), ("year=1/b.csv", 20, 7), (".hidden.parquet", 40, 9),
                             ("_SUCCESS", 80, 9), ("_tmp/c.parquet", 160, 9), ("notes.txt", 320, 9)):  # fmt: skip
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(size))
        os.utime(path, ns=(time, time))
    assert layout(str(tmp_path)) == {"size": 30, "time": 7, "number": 2}
    assert layout(f"{tmp_path}/*.parquet") == {"size": 10, "time": 5, "number": 1}
    assert layout(str(tmp_path / "a.parquet")) == {"size": 10, "time": 5, "number": 1}


def test_layout_of_missing_path_is_none(tmp_path):
    assert layout(str(tmp_path / "gone")) is None
    assert layout(str(tmp_path)) is None
    assert layout("memory://gone/away") is None


def test_layout_of_other_file_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(DataError):
        layout(str(tmp_path / "notes.txt"))


@pytest.fixture
def memory_store():
    store = fsspec.filesystem("memory")
    for name, size in (("a.parquet", 10), ("sub/b.csv", 20), ("_log/c.parquet", 40), (".d.parquet", 80)):
        store.pipe(f"/layouts/{name}", bytes(size))
    yield store
    store.rm("/layouts", recursive=True)


def test_layout_in_store_equals_listing(memory_store):
    first = layout("memory://layouts")
    assert (first["size"], first["number"]) == (30, 2)
    assert first["time"] == max(int(memory_store.info(f"/layouts/{name}")["created"].timestamp() * 1e9)
                                for name in ("a.parquet", "sub/b.csv"))  # fmt: skip
    assert layout("memory://layouts") == first
    memory_store.pipe("/layouts/a.parquet", bytes(11))
    assert "size" in differing(first, layout("memory://layouts"))
    assert layout("memory://layouts/*.parquet")["number"] == 1
    assert layout("memory://layouts/a.parquet")["size"] == 11


def test_failing_store_is_transient_without_text(monkeypatch):
    monkeypatch.setattr(fsspec.filesystem("memory").__class__, "find", lambda *_, **__: 1 / 0)
    with refused(TransientError) as caught:
        layout("memory://layouts")
    assert "division" not in str(caught.value)
