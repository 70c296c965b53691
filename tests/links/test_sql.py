"""Released databases of every shape satisfy their constraints in SQLite and DuckDB; planted faults do not."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import dpscale as dp
from dpscale.job import Job
from tests.links.shapes import SHAPES, make_frames, write_shape
from tests.links.sql import Tables, load, read_tables

LOADED = ("public composite key", "two public parents", "two links to one public table", "pairs with composite key",
          "pairs within a table", "self link", "chain of one to one", "two private parents", "below a household",
          "public snowflake", "key of the parent", "pairs with attributes", "numbered children",
          "private composite key")  # fmt: skip


def released(folder: Path, name: str) -> tuple[Job, Tables]:
    path = write_shape(folder, SHAPES[name], make_frames(SHAPES[name], {}, 2), 50.0)
    return Job.read(path), read_tables(dp.run(path, folder / "run").path / "synthetic")


@pytest.mark.parametrize("name", [name if name in LOADED else pytest.param(name, marks=pytest.mark.slow)
                                  for name in SHAPES])  # fmt: skip
def test_rows_of_shape_load(tmp_path: Path, name: str) -> None:
    load(*released(tmp_path, name))


def with_column(table: pa.Table, name: str, values: Any) -> pa.Table:
    return table.set_column(table.schema.get_field_index(name), name, values)


def plant_null(table: pa.Table) -> pa.Table:
    return with_column(table, "root_id", pa.nulls(table.num_rows, pa.int64()))


def plant_orphan(table: pa.Table) -> pa.Table:
    return with_column(table, "root_id", pc.add(table["root_id"], 10_000))


def plant_second_child(table: pa.Table) -> pa.Table:
    return with_column(table, "root_id", pa.array([table["root_id"][0].as_py()] * table.num_rows))


def plant_duplicate_key(table: pa.Table) -> pa.Table:
    return with_column(table, "k", pa.array([0] * table.num_rows))


@pytest.mark.parametrize("fault", [plant_null, plant_orphan, plant_second_child, plant_duplicate_key])
def test_planted_fault_is_refused(shop: tuple[Job, Tables], fault: Callable[[pa.Table], pa.Table]) -> None:
    job, tables = shop
    load(job, tables)
    with pytest.raises((sqlite3.IntegrityError, duckdb.ConstraintException, AssertionError)):
        load(job, tables | {"card": fault(tables["card"])})


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Tables]:
    job, tables = released(tmp_path_factory.mktemp("cards"), "one to one")
    assert tables["card"].num_rows > 1
    return job, tables


def test_repeated_pair_is_refused(tmp_path: Path) -> None:
    job, tables = released(tmp_path, "pairs")
    with pytest.raises(sqlite3.IntegrityError):
        load(job, tables | {"pairs": pa.concat_tables([tables["pairs"], tables["pairs"].slice(0, 1)])})
