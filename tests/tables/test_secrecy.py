"""No error tells anything of a record: not a value, not its row, not how many."""

from __future__ import annotations

import pickle
import traceback

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.engine import LocalEngine
from dpscale.engine.bounding import rows_beyond
from dpscale.engine.counting import partition_groups, plan_passes, run_pass

NUMBER = 918273
PLANTED = ("pl4nted", str(NUMBER))
ROW = 4711
TABLES = {
    "integer": {"kind": "integer", "low": 0, "high": 9},
    "clipped": {"kind": "integer", "low": 0, "high": 9, "outside": "clip"},
    "bins": {"kind": "bins", "edges": [0, 1, 2]},
    "texts": {"kind": "categories", "values": ["0", "1"]},
    "numbers": {"kind": "categories", "values": [0, 1]},
}
COLUMNS = {
    "integers": lambda rows: pa.array([0] * rows + [NUMBER]),
    "floats": lambda rows: pa.array([0.0] * rows + [NUMBER + 0.5]),
    "not a number": lambda rows: pa.array([float(NUMBER)] * rows + [float("nan")]),
    "texts": lambda rows: pa.array(["0"] * rows + ["pl4nted"]),
    "dictionary": lambda rows: pa.array(["0"] * rows + ["pl4nted"]).dictionary_encode(),
    "not utf8": lambda rows: pa.array([b"0"] * rows + [b"pl4nted\xff"]).view(pa.string()),
    "blobs": lambda rows: pa.array([b"0"] * rows + [b"pl4nted\xff"]),
}


def told(error):
    shown = "".join(traceback.format_exception(error))
    return "\n".join([str(error), repr(error), shown, repr(pickle.loads(pickle.dumps(error)))])


def check(error, *more):
    assert isinstance(error, dp.DpscaleError)
    assert error.field
    assert "\n" not in str(error)
    message = told(error)
    for secret in (*PLANTED, str(ROW), str(ROW + 1), *more):
        assert secret not in message.replace(f"line {secret}", "")


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_a_refused_value_is_never_told(tmp_path, kind, column, scheduler):
    domain = dp.Domain.from_dict({"attributes": {"a": TABLES[kind], "b": {"kind": "coded", "size": 2}}})
    values = COLUMNS[column](ROW)
    pq.write_table(pa.table({"a": values, "b": [1] * (ROW + 1)}), tmp_path / "x.parquet")
    partitions = dp.Table.open(tmp_path, domain).partitions
    engine = LocalEngine(scheduler, workers=2)
    if kind == "clipped" and column in ("integers", "floats"):
        return
    with pytest.raises(dp.DataError) as caught:
        run_pass(engine, plan_passes(domain, [("a",)], 1000, 2)[0], partition_groups(partitions, 2))
    check(caught.value)


@pytest.mark.parametrize("line", ["pl4nted,1,1", "pl4nted", '"pl4nted', "918273.5,1", ",pl4nted"])
def test_a_refused_csv_is_never_told(tmp_path, line):
    domain = dp.Domain({"a": 2, "b": 2})
    (tmp_path / "x.csv").write_text("a,b\n" + "1,1\n" * ROW + line + "\n")
    with pytest.raises(dp.DataError) as caught:
        dp.count_marginals(dp.Table.open(tmp_path, domain), [("a", "b")])
    check(caught.value)


@pytest.mark.parametrize("column", ["not a number", "blobs"])
def test_a_refused_unit_is_never_told(tmp_path, column):
    domain = dp.Domain({"b": 2})
    pq.write_table(pa.table({"u": COLUMNS[column](ROW), "b": [1] * (ROW + 1)}), tmp_path / "x.parquet")
    groups = partition_groups(dp.Table.open(tmp_path, domain).partitions, 1)
    with pytest.raises(dp.DataError) as caught:
        rows_beyond(LocalEngine("synchronous"), domain, groups, "u", 1, ROW + 1, 1 << 30)
    check(caught.value)
