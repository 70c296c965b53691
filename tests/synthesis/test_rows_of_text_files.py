"""Rows in CSV are read as they were written: every label, null and type, and tables without rows have none."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w

import dpscale as dp
from tests.records.test_random_tables import LABELS

ATTRIBUTES = {
    "t": {"kind": "categories", "values": LABELS, "nulls": "category"},
    "n": {"kind": "categories", "values": [1, 2, 30]},
    "b": {"kind": "boolean", "nulls": "category"},
    "e": {"kind": "bins", "edges": [0, 0.5, 2.5], "nulls": "category"},
    "d": {"kind": "date", "by": "month", "low": "2024-01", "high": "2024-03", "nulls": "category"},
    "i": {"kind": "integer", "low": 0, "high": 3, "nulls": "category"},
}


def release(folder, table, attributes, epsilon=1e7, method=None, **rows):
    folder.mkdir()
    pq.write_table(table, folder / "a.parquet")
    (folder / "d.toml").write_text(tomli_w.dumps({"attributes": attributes}))
    job = {"data": {"domain": str(folder / "d.toml"), "path": str(folder / "a.parquet")},
           "engine": {"scheduler": "synchronous"},
           "privacy": {"epsilon": epsilon, "delta": 1e-6, "allow_weak_privacy": True, "dataset": "rows",
                       "ledger": str(folder / "l.sqlite")},
           "workload": [{"family": "marginal", "degree": 1}], "synthesize": rows or {"method": "auto"}}  # fmt: skip
    if method:
        job["mechanism"] = {"name": method}
    return dp.run(job, folder / "run")


def every_value(rows=1900):
    """Return a table in which each label, and a null, occurs."""
    random = np.random.default_rng(0)
    labels = [*LABELS, None]
    return pa.table({
        "t": [labels[row % len(labels)] for row in range(rows)],
        "n": random.choice([1, 2, 30], rows),
        "b": [[True, False, None][row % 3] for row in range(rows)],
        "e": [[0.25, 1.5, None][row % 3] for row in range(rows)],
        "d": pa.array([[pd.Timestamp("2024-01-03").date(), pd.Timestamp("2024-03-03").date(), None][row % 3]
                       for row in range(rows)]),
        "i": [[0, 3, None][row % 3] for row in range(rows)],
    })  # fmt: skip


def known(values):
    """Return the distinct values of a column with None for a null."""
    return {None if pd.isna(value) else value for value in values}


def test_every_label_survives_in_every_format(tmp_path):
    read = {}
    for form in ("parquet", "csv"):
        found = release(tmp_path / form, every_value(), ATTRIBUTES, format=form)
        read[form] = found.synthetic().compute()
        assert known(read[form].t) == {*LABELS, None}
        assert known(read[form].b) == {True, False, None}
        assert known(read[form].i) == {0, 3, None}
        assert None in known(read[form].d)
        assert None in known(read[form].e)
        assert len(read[form]) == 1900
    assert read["csv"].dtypes.to_dict() == read["parquet"].dtypes.to_dict()


def test_rows_of_one_column_with_nulls(tmp_path):
    attributes = {"t": ATTRIBUTES["t"]}
    found = release(tmp_path / "one", every_value().select(["t"]), attributes, format="csv")
    assert found.synthetic().compute().t.isna().sum() == 100


def test_codes_with_zeros_stay_texts(tmp_path):
    values = ["01", "1", "1.0", "1e0"]
    table = pa.table({"c": values * 50, "x": [0, 1] * 100})
    attributes = {"c": {"kind": "categories", "values": values}, "x": {"kind": "coded", "size": 2}}
    found = release(tmp_path / "codes", table, attributes, format="csv", parts=3)
    assert found.synthetic().compute().c.value_counts().to_dict() == dict.fromkeys(values, 50)


@pytest.mark.parametrize("method", ["weighted-residuals", "aim-grem", "aim-pgm"])
@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_table_without_records_has_no_rows(tmp_path, method, form):
    table = pa.table({"x": pa.array([], pa.int64()), "y": pa.array([], pa.int64())})
    attributes = {"x": {"kind": "coded", "size": 2}, "y": {"kind": "coded", "size": 3}}
    found = release(tmp_path / "none", table, attributes, method=method, format=form)
    rows = found.synthetic().compute()
    assert len(rows) == 0
    assert list(rows.columns) == ["x", "y"]


def test_quantile_of_a_group_without_records_is_missing_with_a_reason(tmp_path):
    """In each run as for the mean; a run tells the group from an empty one with probability 1/40."""
    table = pa.table({"g": ["a"] * 500, "q": np.random.default_rng(0).uniform(0, 5, 500)})
    attributes = {
        "g": {"kind": "categories", "values": ["a", "never"]},
        "q": {"kind": "bins", "edges": [0, 1, 2, 5, 10]},
    }
    job = dp.plan([["g", "q"]], dp.Domain.from_dict({"attributes": attributes}), epsilon=1)
    reasons = []
    for seed in range(20):
        ran = dp.run(job, data=table.to_pandas(), run_dir=tmp_path / f"run{seed}", fresh=True)
        quantile, mean = ran.quantile("q", [0.5], by="g"), ran.mean("q", by="g")
        assert quantile.estimate.isna().tolist() == mean.estimate.isna().tolist()
        reasons += [] if pd.notna(quantile.estimate.iloc[1]) else [quantile.reason.iloc[1]]
    assert reasons
    assert all("not distinguishable from zero" in reason for reason in reasons)
