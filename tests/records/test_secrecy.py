"""Errors reveal nothing about a record: neither a value, nor its row, nor the number of rows."""

from __future__ import annotations

import pickle
import traceback

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.engine.contribution_bounds import rows_beyond
from dpscale.engine.counting import partition_groups, plan_passes, run_pass
from dpscale.engine.schedulers import LocalEngine
from tests.messages import refused

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
    "lists": lambda rows: pa.array([["0"]] * rows + [["pl4nted"]]),
}


def error_texts(error):
    shown = "".join(traceback.format_exception(error))
    return "\n".join([str(error), repr(error), shown, repr(pickle.loads(pickle.dumps(error)))])


def assert_no_leak(error, *more):
    assert isinstance(error, dp.DpscaleError)
    assert error.field
    assert "\n" not in str(error)
    message = error_texts(error)
    for secret in (*PLANTED, str(ROW), str(ROW + 1), *more):
        assert secret not in message.replace(f"line {secret}", "")


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("column", COLUMNS)
@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_refused_value_is_not_revealed(tmp_path, kind, column, scheduler):
    domain = dp.Domain.from_dict({"attributes": {"a": TABLES[kind], "b": {"kind": "coded", "size": 2}}})
    values = COLUMNS[column](ROW)
    pq.write_table(pa.table({"a": values, "b": [1] * (ROW + 1)}), tmp_path / "x.parquet")
    partitions = dp.Table.open(tmp_path, domain).partitions
    engine = LocalEngine(scheduler, workers=2)
    if kind == "clipped" and column in ("integers", "floats"):
        return
    with pytest.raises(dp.DataError) as caught:
        run_pass(engine, plan_passes(domain, [("a",)], 1000, 2)[0], partition_groups(partitions, 2))
    assert_no_leak(caught.value)


@pytest.mark.parametrize("line", ["pl4nted,1,1", "pl4nted", '"pl4nted', "918273.5,1", ",pl4nted"])
def test_refused_csv_line_is_not_revealed(tmp_path, line):
    domain = dp.Domain({"a": 2, "b": 2})
    (tmp_path / "x.csv").write_text("a,b\n" + "1,1\n" * ROW + line + "\n")
    with pytest.raises(dp.DataError) as caught:
        dp.count_marginals(dp.Table.open(tmp_path, domain), [("a", "b")])
    assert_no_leak(caught.value)


@pytest.mark.parametrize("column", ["not a number", "lists"])
def test_refused_unit_is_not_revealed(tmp_path, column):
    domain = dp.Domain({"b": 2})
    pq.write_table(pa.table({"u": COLUMNS[column](ROW), "b": [1] * (ROW + 1)}), tmp_path / "x.parquet")
    groups = partition_groups(dp.Table.open(tmp_path, domain).partitions, 1)
    with pytest.raises(dp.DataError) as caught:
        rows_beyond(LocalEngine("synchronous"), domain, groups, "u", 1, ROW + 1, 1 << 30)
    assert_no_leak(caught.value)


# What a user hands over by mistake may be records too


FRAME = pd.DataFrame({"39": [NUMBER], "pl4nted": ["pl4nted"]})
TEXT = "39,pl4nted\n" + f"{NUMBER},1\n" * 3
HANDED = {"frame": FRAME, "arrow": pa.table({"pl4nted": [NUMBER]}), "array": np.array([[NUMBER, 1]]),
          "list": [NUMBER, "1"], "text": TEXT, "dict": FRAME.to_dict(), "series": FRAME["39"]}  # fmt: skip
JOB = {"data": {"path": "x", "domain": "y"}, "privacy": {"rho": 1.0}, "workload": [{"family": "marginal", "degree": 1}]}
DOORS = {
    "path of a table": lambda given: dp.Table.open(given, dp.Domain({"a": 2})),
    "paths of a table": lambda given: dp.Table.open([given], dp.Domain({"a": 2})),
    "job": lambda given: dp.run(given) if not isinstance(given, dict) else refuse(),
    "data": lambda given: dp.run(JOB | {"data": given}) if not isinstance(given, dict) else refuse(),
    "data.path": lambda given: dp.run(JOB | {"data": {"path": given, "domain": 1}}),
    "data.domain": lambda given: dp.run(JOB | {"data": {"path": "x", "domain": given}}),
    "degree": lambda given: dp.run(JOB | {"workload": [{"family": "marginal", "degree": given}]}),
    "options": lambda given: dp.run(JOB | {"mechanism": {"name": "hdmm", "seed": given}}),
    "domain": lambda given: dp.Domain.read(given),
    "size": lambda given: dp.Domain({"a": given}),
    "kind": lambda given: dp.Domain.from_dict({"attributes": {"a": {"kind": given}}}),
    "low": lambda given: dp.Domain.from_dict({"attributes": {"a": {"kind": "integer", "low": given, "high": 9}}}),
    "nulls": lambda given: dp.Domain.from_dict({"attributes": {"a": {"kind": "coded", "size": 2, "nulls": given}}}),
}


def refuse():
    raise dp.JobError("job", "a dict, whose keys are settings")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("given", HANDED)
def test_records_passed_as_setting_are_not_revealed(tmp_path, monkeypatch, door, given):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(dp.DpscaleError) as caught:
        DOORS[door](HANDED[given])
    for text in (str(caught.value), repr(caught.value)):
        assert "pl4nted" not in text
        assert str(NUMBER) not in text
        assert "\n" not in text


@pytest.mark.parametrize("name", ["x.csv", "x.parquet"])
@pytest.mark.parametrize("setting", ["job", "domain"])
def test_data_file_passed_as_settings_file_is_not_revealed(tmp_path, name, setting):
    """The errors of TOML name repeated keys and undecodable bytes."""
    if name == "x.csv":
        (tmp_path / name).write_text("pl4nted = 1\npl4nted = 918273\n")
    else:
        FRAME.to_parquet(tmp_path / name)
    with refused(dp.DpscaleError) as caught:
        dp.run(tmp_path / name) if setting == "job" else dp.Domain.read(tmp_path / name)
    assert "pl4nted" not in error_texts(caught.value).replace("pl4nted = ", "")
    assert "0x" not in str(caught.value)


@pytest.mark.parametrize("unit", [False, True])
def test_first_record_of_csv_without_header_is_not_revealed(tmp_path, unit):
    """Regression test: the record was printed as the columns of the file."""
    (tmp_path / "x.csv").write_text("pl4nted,918273,1\npl4nted,5,0\n")
    table = dp.Table.open(tmp_path / "x.csv", dp.Domain({"a": 2, "b": 2}))
    with refused(dp.DataError) as caught:
        table.partitions[0].kind("a") if unit else dp.count_marginals(table, [("a",)])
    assert_no_leak(caught.value)


def test_library_error_in_counting_reveals_only_its_type(tmp_path, monkeypatch):
    from dpscale.counting import count

    def fail(*_):
        raise pa.ArrowInvalid(f"Float value {NUMBER} was truncated converting to int64")

    pq.write_table(pa.table({"a": [1]}), tmp_path / "x.parquet")
    monkeypatch.setattr(count, "encode", fail)
    with refused(dp.TransientError) as caught:
        dp.count_marginals(dp.Table.open(tmp_path, dp.Domain({"a": 2})), [("a",)])
    assert_no_leak(caught.value)
    assert caught.value.__context__ is None


def test_failing_thread_reveals_only_error_type(capfd):
    import threading

    from dpscale.cli.group import _quiet_threads

    def fail_in_thread():
        raise MemoryError(f"Unable to allocate an array with shape ({NUMBER},)")

    with _quiet_threads():
        thread = threading.Thread(target=fail_in_thread)
        thread.start()
        thread.join()
    output = capfd.readouterr().err
    assert output == "dpscale: a thread or a destructor failed with MemoryError\n"
