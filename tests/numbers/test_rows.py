"""Synthetic rows with numbers: sums by group near the estimates, on every engine and in any number of parts."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tomli_w

import dpscale as dp
from dpscale.runs.stages import synthesize
from dpscale.synthesis import draw
from tests.messages import refused
from tests.numbers.small import NUMBERS, make_domain, write_job
from tests.real_data import DATA, needs_real_data
from tests.selection import mostly_slow

WORKLOAD = [
    {"family": "marginal", "degree": 2},
    {"family": "sum", "of": "pay", "attributes": [["a"], ["b"], []]},
    {"family": "mean", "of": "wait", "attributes": [["a", "b"]]},
    {"family": "variance", "of": "pay", "attributes": [["a"]]},
]
MEASURED = [("pay", ["a"]), ("pay", ["b"]), ("wait", ["a"]), ("wait", ["b"]), ("wait", ["a", "b"])]


def description(release):
    return json.loads((release.path / "synthetic/_rows.json").read_text())


def distances(release, rows, weight=None):
    """Return the distances of the sums of rows from the estimates, in standard errors, by number and attributes."""
    weights = pd.Series(np.ones(len(rows))) if weight is None else rows[weight]
    scale = weights.sum() / description(release)["total"]
    found = {}
    for number, by in MEASURED:
        estimate = release.sum(number, by=by)
        sums = (rows[number] * weights).groupby([rows[one] for one in by]).sum().to_numpy()
        found[number, *by] = np.abs(sums / scale - estimate["estimate"].to_numpy()) / estimate["std_error"].to_numpy()
    return found


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    return dp.run(write_job(folder, WORKLOAD, synthesize={}), run_dir=folder / "run")


def test_sums_of_rows_equal_the_estimates(release):
    rows = release.synthetic().compute().reset_index(drop=True)
    assert list(rows.columns) == ["a", "b", "pay", "wait"]
    assert {name: max(own) for name, own in distances(release, rows).items() if max(own) > 0.2} == {}  # rounding
    described = description(release)["numbers"]
    assert described["pay"]["groups"] == 8
    assert described["wait"]["sets"] == 4
    assert described["pay"]["max"] < 0.1
    assert abs(rows["wait"].isna().mean() - 0.2) < 0.05


def test_deviations_of_rows_equal_the_estimates(tmp_path):
    """With little noise, because no rows of the range may have a noisy variance."""
    privacy = {"privacy_cost": 1e4, "dataset": "numbers", "allow_weak_privacy": True}
    release = dp.run(write_job(tmp_path, WORKLOAD, synthesize={}, privacy=privacy), run_dir=tmp_path / "run")
    rows = release.synthetic().compute()
    np.testing.assert_allclose(rows.groupby("a").pay.std(), release.std("pay", by="a")["estimate"], rtol=0.06)


def test_rows_have_the_sums_of_bounded_totals(tmp_path):
    """The cells of such a number stand for a third of its bound, but values of rows may reach the bound."""
    content = make_domain({"pay": {"high": 300, "per_unit": "total"}}).to_dict()
    data = {"path": "data", "domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 3}
    workload = [{"family": "sum", "of": "pay", "attributes": [["a"], []]}, {"family": "marginal", "degree": 2}]
    job = write_job(tmp_path, workload, synthesize={}, data=data)
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(content))
    one = dp.run(job, run_dir=tmp_path / "run")
    rows, sums = one.synthetic().compute(), one.sum("pay", by=["a"])
    assert (np.abs(rows.groupby("a").pay.sum().to_numpy() - sums["estimate"]) < 3 * sums["std_error"]).all()
    assert rows["pay"].abs().max() <= 300


def test_values_are_steps_of_the_range(release):
    rows = release.synthetic().compute()
    for name, table in NUMBERS.items():
        values = rows[name].dropna()
        assert values.between(table["low"], table["high"]).all()
        assert ((values / table.get("step", 1)) % 1 == 0).all()
    assert rows["pay"].dtype == np.int64


@pytest.mark.parametrize("scheduler", mostly_slow(["threads", "processes"], {"threads"}))
def test_engines_write_the_same_rows(tmp_path, monkeypatch, scheduler):
    """With small parts, which are drawn, counted and stored before their values are drawn."""
    if scheduler == "threads":
        monkeypatch.setattr(draw, "LEAST_ROWS", 100)
    files = []
    for engine in ("synchronous", scheduler):
        changes = {"synthesize": {"parts": 4}, "engine": {"scheduler": engine, "seed": 5}}
        one = dp.run(write_job(tmp_path, WORKLOAD, f"{engine}.toml", **changes), run_dir=tmp_path / engine)
        files.append([path.read_bytes() for path in sorted((one.path / "synthetic").iterdir())])
    assert len(files[0]) == 5
    assert files[0] == files[1]
    if scheduler == "threads":
        rows = one.synthetic().compute().reset_index(drop=True)
        assert max(max(own) for own in distances(one, rows).values()) < 3
    assert not list(one.path.glob("model/*/row-cells-*"))


def test_parts_are_counted_once_for_all_parts(tmp_path, monkeypatch):
    """If parts aimed at their share of the table's sums instead, those with few rows of a group would differ."""
    monkeypatch.setattr(draw, "LEAST_ROWS", 20)
    counted = []
    monkeypatch.setattr(
        synthesize, "count_part", lambda *given, own=synthesize.count_part: counted.append(1) or own(*given)
    )
    one = dp.run(write_job(tmp_path, WORKLOAD, synthesize={"parts": 20}), run_dir=tmp_path / "run")
    rows = one.synthetic().compute().reset_index(drop=True)
    assert len(counted) == 20
    assert np.median(np.concatenate(list(distances(one, rows).values()))) < 1


@pytest.mark.parametrize("changes", [{"weights": True, "rows": 300}, {"format": "csv", "rows": 1200}])
def test_weighted_and_longer_tables_have_the_sums(tmp_path, changes):
    one = dp.run(write_job(tmp_path, WORKLOAD, synthesize=changes), run_dir=tmp_path / "run")
    rows = one.synthetic().compute().reset_index(drop=True)
    found = distances(one, rows, "weight" if "weights" in changes else None)
    assert max(max(own) for own in found.values()) < 2
    assert np.median(np.concatenate(list(found.values()))) < 0.3


def test_columns_of_one_input_column_have_one_value(tmp_path):
    """The number `pay` and the bins `level` are read from the same column."""
    content = make_domain().to_dict()
    content["attributes"]["level"] = {"kind": "bins", "edges": [-20, 0, 20, 50, 100], "outside": "clip", "from": "pay"}
    job = write_job(tmp_path, [{"family": "marginal", "degree": 2}, {"family": "sum", "of": "pay", "degree": 1}],
                    synthesize={})  # fmt: skip
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(content))
    one = dp.run(job, run_dir=tmp_path / "run")
    rows = one.synthetic().compute().reset_index(drop=True)
    assert (rows["level"] == rows["pay"]).mean() > 0.98  # the others are 100, which is no value below the last edge
    levels = np.digitize(rows["level"], [0, 20, 50])
    estimates = one.sum("pay", by="level")
    sums = np.bincount(levels, rows["pay"], 4)
    low, high = np.bincount(levels, minlength=4) * np.array([-20, 0, 20, 50]), np.bincount(levels) * [0, 20, 50, 100]
    aims = np.clip(estimates["estimate"] * len(rows) / description(one)["total"], low, high)
    assert (np.abs(sums - aims) < 3 * estimates["std_error"]).all()


def test_rows_of_a_total_alone_are_refused(tmp_path):
    job = write_job(tmp_path, [{"family": "sum", "of": "pay", "attributes": [[]]}], synthesize={})
    with refused(dp.PlanError):
        dp.run(job, run_dir=tmp_path / "run")


@needs_real_data
@pytest.mark.slow
def test_sums_of_flights_in_rows_are_nearer_to_the_estimates_than_their_noise(tmp_path):
    """Delays by airport and carrier at epsilon 1, in four parts, with 8,000 nulls and values beyond the range."""
    path = DATA / "more/nycflights13.parquet"
    flights = pd.read_parquet(path, columns=["carrier", "origin", "month", "distance", "dep_delay"])
    content = {
        "attributes": {
            "carrier": {"kind": "categories", "values": sorted(flights.carrier.unique())},
            "origin": {"kind": "categories", "values": sorted(flights.origin.unique())},
            "month": {"kind": "integer", "low": 1, "high": 12},
            "distance": {"kind": "bins", "edges": [0, 500, 1000, 2000, 3000], "outside": "clip"},
        },
        "numbers": {"dep_delay": {"low": -30, "high": 300, "nulls": "skip"},
                    "miles": {"low": 0, "high": 3000, "from": "distance"}},
    }  # fmt: skip
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(content))
    sets = {"dep_delay": [["carrier", "origin"], ["month"]], "miles": [["carrier"], []]}
    job = {
        "data": {"path": str(path), "domain": str(tmp_path / "domain.toml")},
        "privacy": {"epsilon": 1.0, "delta": 1e-8, "dataset": "flights", "allow_weak_privacy": True},
        "workload": [{"family": "marginal", "degree": 2},
                     *({"family": "mean", "of": name, "attributes": own} for name, own in sets.items())],
        "engine": {"scheduler": "threads", "seed": 1},
        "synthesize": {},
    }  # fmt: skip
    one = dp.run(job, run_dir=tmp_path / "run")
    rows = one.synthetic().compute().reset_index(drop=True)
    scale = len(rows) / description(one)["total"]
    for name, own in sets.items():
        for by in filter(None, own):
            estimate, seen = one.sum(name, by=by), one.mean(name, by=by)["estimate"].notna()
            found = rows.groupby(by)[name].sum().rename("found").reset_index()
            sums = (
                estimate[by].astype({one: found[one].dtype for one in by}).merge(found, "left")["found"].fillna(0)
                / scale
            )
            apart = ((sums - estimate["estimate"]) / estimate["std_error"])[seen]
            print(
                f"{name} by {', '.join(by)}: {seen.sum()} groups, rms {np.sqrt((apart**2).mean()):.3f} standard errors"
            )
            assert abs(apart.mean()) < (0.3 if name == "dep_delay" else 5)
            assert np.sqrt((apart**2).mean()) < (1.0 if name == "dep_delay" else 10)  # distances fit the rows' bins
    assert abs(rows["dep_delay"].isna().mean() - flights["dep_delay"].isna().mean()) < 1e-3
    assert (rows["miles"] == rows["distance"]).mean() > 0.99


@pytest.mark.parametrize("types", ["own", "input"])
def test_numbers_of_rows_have_the_types_of_the_input_if_stated(tmp_path, types):
    """Without `types`, and without a type in the file, whole numbers have 64 bits and others are real."""
    kinds = {"i": pa.int16(), "d": pa.decimal128(8, 2), "f": pa.float32(), "t": pa.string(), "a": pa.int8()}
    steps = {"i": 1, "d": 0.25, "f": 0.25, "t": 0.25}
    values = np.arange(400) % 40
    table = {name: pa.array(values * steps[name]).cast(kinds[name], safe=False) for name in steps}
    pq.write_table(pa.table(table | {"a": pa.array(values % 2, pa.int8())}), tmp_path / "data.parquet")
    domain = {"attributes": {"a": {"kind": "coded", "size": 2}},
              "numbers": {name: {"low": 0, "high": 40, "step": step} for name, step in steps.items()}}  # fmt: skip
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(domain))
    job = {
        "data": {"path": str(tmp_path / "data.parquet"), "domain": str(tmp_path / "domain.toml")},
        "privacy": {"epsilon": 5, "dataset": "d", "ledger": str(tmp_path / "ledger.sqlite")},
        "workload": [{"family": "mean", "of": name, "attributes": [["a"]]} for name in steps],
        "synthesize": {"rows": 200, "types": types},
    }
    release = dp.run(job, tmp_path / "run")
    schema = pq.read_schema(next(release.path.glob("synthetic/part-*.parquet")))
    own = {"i": pa.int64(), "d": pa.float64(), "f": pa.float64(), "t": pa.float64(), "a": pa.int64()}
    assert dict(zip(schema.names, schema.types, strict=True)) == (kinds if types == "input" else own)
    assert schema.names[0] == "a"
