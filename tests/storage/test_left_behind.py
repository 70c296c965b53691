"""Partial files of killed processes are removed when no process writes any more."""

from dpscale.storage.files import flush_names, remove_partial


def test_partial_files_of_killed_processes_are_removed(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"whole")
    (tmp_path / ".b.parquet.0123.partial").write_bytes(b"ha")
    remove_partial(tmp_path)
    flush_names(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet"]


def test_nested_partial_files_are_removed_and_files_of_other_processes_are_not(tmp_path):
    (tmp_path / "answers/one").mkdir(parents=True)
    for name in ("answers/one/.b.parquet.01.partial", ".manifest.json.02.partial", ".driver.json.03.partial"):
        (tmp_path / name).write_bytes(b"ha")
    remove_partial(tmp_path, spared=("driver.json",))
    remaining = sorted(path.name for path in tmp_path.rglob("*") if path.is_file())
    assert remaining == [".b.parquet.01.partial", ".driver.json.03.partial"]
    remove_partial(tmp_path / "answers", nested=True)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".driver.json.03.partial"]
