"""Partial files of killed processes are removed when no process writes any more."""

from dpscale.storage.files import flush_names, remove_partial


def test_partial_files_of_killed_processes_are_removed(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"whole")
    (tmp_path / ".b.parquet.0123.partial").write_bytes(b"ha")
    remove_partial(tmp_path)
    flush_names(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet"]
