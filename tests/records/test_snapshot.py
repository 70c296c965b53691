"""The snapshot id depends on the name and content of each file, and on nothing else."""

from __future__ import annotations

import os
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.engine.schedulers import LocalEngine
from dpscale.records.origin import snapshot
from tests.messages import refused

DOMAIN = dp.Domain({"a": 4})


@pytest.fixture
def folder(tmp_path):
    for name in ("year=1/x.parquet", "year=2/x.parquet", "y.parquet"):
        (tmp_path / "t" / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"a": [0, 1, 2]}), tmp_path / "t" / name)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "t" / "z.pq")
    return tmp_path / "t"


def take_snapshot(path, **options):
    return snapshot(dp.Table.open(path, DOMAIN), **options)


@pytest.fixture(params=[False, True], ids=["content", "footers"])
def footers(request):
    return request.param


def test_order_and_location_of_files_do_not_matter(folder, footers):
    before = take_snapshot(folder, footers=footers)
    files = sorted(folder.rglob("*.*"), reverse=True)
    assert take_snapshot(files, footers=footers) == before
    shutil.move(folder, folder.parent / "elsewhere")
    assert take_snapshot(folder.parent / "elsewhere", footers=footers) == before


def test_scheduler_and_splitting_do_not_matter(folder, footers):
    table = dp.Table.open(folder, DOMAIN)
    before = snapshot(table, footers)
    for scheduler in ("threads", "synchronous"):
        assert snapshot(table.split(), footers, LocalEngine(scheduler).each("snapshot")) == before


def test_file_name_changes_snapshot(folder, footers):
    before = take_snapshot(folder, footers=footers)
    os.rename(folder / "y.parquet", folder / "y2.parquet")
    assert take_snapshot(folder, footers=footers) != before


@pytest.mark.parametrize("path", ["year=1", "year=1/x.parquet", "year=1/*.parquet"])
def test_hive_folder_name_changes_snapshot(folder, footers, path):
    before = take_snapshot(str(folder / path), footers=footers)
    os.rename(folder / "year=1", folder / "year=3")
    assert take_snapshot(str(folder / path.replace("year=1", "year=3")), footers=footers) != before


def test_set_of_files_changes_snapshot(folder, footers):
    before = take_snapshot(folder, footers=footers)
    shutil.copy(folder / "y.parquet", folder / "w.parquet")
    more = take_snapshot(folder, footers=footers)
    os.remove(folder / "z.pq")
    assert len({before, more, take_snapshot(folder, footers=footers)}) == 3


def test_swapped_contents_change_snapshot(folder, footers):
    pq.write_table(pa.table({"a": [3, 3, 3]}), folder / "y.parquet")
    before = take_snapshot(folder, footers=footers)
    os.rename(folder / "y.parquet", folder / "kept")
    os.rename(folder / "year=1" / "x.parquet", folder / "y.parquet")
    os.rename(folder / "kept", folder / "year=1" / "x.parquet")
    assert take_snapshot(folder, footers=footers) != before


def test_every_byte_changes_snapshot(folder):
    path = folder / "y.parquet"
    content = path.read_bytes()
    seen = {take_snapshot(folder)}
    for place in range(0, len(content), 37):
        changed = bytearray(content)
        changed[place] ^= 1
        path.write_bytes(changed)
        seen.add(take_snapshot(folder))
    assert len(seen) == 1 + len(range(0, len(content), 37))


def test_footer_snapshot_detects_statistics_and_csv_changes(folder):
    seen = {take_snapshot(folder, footers=True)}
    pq.write_table(pa.table({"a": [0, 1, 3]}), folder / "y.parquet")
    seen.add(take_snapshot(folder, footers=True))
    for text in ("a\n1\n", "a\n2\n"):
        (folder / "z.csv").write_text(text)
        seen.add(take_snapshot(folder / "z.csv", footers=True))
    assert len(seen) == 4


@pytest.mark.parametrize("content", [b"", b"PAR1", b"\xff" * 30])
def test_footer_snapshot_of_invalid_parquet(folder, content):
    (folder / "y.parquet").write_bytes(content)
    assert len(take_snapshot(folder, footers=True)) == 64


def test_missing_file_is_named(folder):
    table = dp.Table.open(folder, DOMAIN)
    os.remove(folder / "y.parquet")
    with refused(dp.DataError):
        snapshot(table)
