"""Release from Python: a domain, queries and a budget without files, and data of every kind."""

import difflib
import itertools
import subprocess
import sys
import warnings

import dask.dataframe as dd
import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.api.planning import ARGUMENTS
from dpscale.api.public import SpentWarning
from dpscale.mechanisms import MECHANISMS, mechanism
from tests.messages import refused

ROWS = 400


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSCALE_DATA", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)
    warnings.simplefilter("ignore", SpentWarning)
    return tmp_path / "user"


def taxi_domain():
    return dp.Domain(borough=["Bronx", "Queens"], fare=dp.bins(0, 100, 25), day=dp.dates("2019-03", "2019-05", "month"))


def taxi_frame():
    rng = np.random.default_rng(0)
    days = pd.to_datetime("2019-03-01") + pd.to_timedelta(rng.integers(0, 90, ROWS), "D")
    columns = {"borough": rng.choice(["Bronx", "Queens"], ROWS), "fare": rng.uniform(0, 99, ROWS), "day": days}
    return pd.DataFrame({**columns, "person": rng.integers(0, 100, ROWS)})


def taxi_plan(**changes):
    budget = {"epsilon": 10.0, "delta": 1e-9, "unit": "person", "rows_per_unit": 10} | changes
    return dp.plan([["borough", "fare"], ["day"]], taxi_domain(), **budget)


def test_release_from_a_frame_answers_tables_sums_and_quantiles(data_folder):
    plan, frame = taxi_plan(), taxi_frame()
    with pytest.warns(SpentWarning, match=r"dataset 'default' has spent epsilon 10(\.\d+)? at delta 1e-09"):
        release = dp.run(plan, data=frame)
    exact = frame.groupby("borough").size().to_numpy()
    table = release.table("borough")
    most = 6 * table["std_error"].max()
    assert most < exact.min()
    assert table["estimate"].to_numpy() == pytest.approx(exact, abs=most)
    assert release.marginal("borough") == pytest.approx(exact, abs=most)
    assert release.answer("borough", query=[1, 0])[0] == pytest.approx(exact[0], abs=most)
    assert len(release.quantile("fare", [0.25, 0.5, 0.75], by="borough")) == 6
    sums = release.sum("fare", by="borough")
    assert ((sums["low"] <= (own := frame.groupby("borough")["fare"].sum().to_numpy())) & (own <= sums["high"])).all()
    assert release.sum("fare").estimate == pytest.approx(sums["estimate"].sum())
    assert release.path.is_relative_to(data_folder / "runs")
    assert (data_folder / "ledger.sqlite").exists()


def test_finished_release_is_answered_beside_a_ledger_that_has_no_entry_of_it(tmp_path, monkeypatch):
    first = dp.run(taxi_plan(ledger="ledger.sqlite"), data=taxi_frame())
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.warns(SpentWarning, match="has no entry of dataset 'default': they were charged on another one"):
        again = dp.run(taxi_plan(ledger="ledger.sqlite"), data=taxi_frame())
    assert again.path == first.path
    assert not (tmp_path / "elsewhere" / "ledger.sqlite").exists()


def test_sum_of_bins_has_closed_form(data_folder):
    """Without noise to speak of, the sum is that of midpoints, between those of lower and upper edges."""
    frame = pd.DataFrame({"x": np.repeat([5.0, 15.0, 35.0], 100)})
    plan = dp.plan([["x"]], dp.Domain(x=dp.bins(0, 40, 10)), epsilon=20, delta=1e-3)
    found = dp.run(plan, data=frame).sum("x")
    assert found.estimate == pytest.approx(100 * (5 + 15 + 35), rel=0.05)
    assert found.low == pytest.approx(100 * (0 + 10 + 30), rel=0.1)
    assert found.high == pytest.approx(100 * (10 + 20 + 40), rel=0.1)


@pytest.mark.parametrize("kind", ["polars", "lazy", "arrow", "dask", "duckdb", "capsule", "file"])
def test_every_kind_of_data_gives_the_same_counts(kind, tmp_path):
    frame = taxi_frame()
    table = pa.Table.from_pandas(frame)
    pq.write_table(table, tmp_path / "taxi.parquet")

    class Capsule:
        def __arrow_c_stream__(self, requested_schema=None):
            return table.__arrow_c_stream__(requested_schema)

    data = {"polars": lambda: pl.from_pandas(frame), "lazy": lambda: pl.from_pandas(frame).lazy(),
            "arrow": lambda: table, "dask": lambda: dd.from_pandas(frame, npartitions=2),
            "duckdb": lambda: duckdb.query(f"SELECT * FROM '{tmp_path}/taxi.parquet'"),
            "capsule": Capsule, "file": lambda: tmp_path / "taxi.parquet"}[kind]()  # fmt: skip
    release = dp.run(taxi_plan(epsilon=20.0, delta=1e-3), data=data)
    exact = frame.groupby("borough").size().to_numpy()
    assert release.marginal("borough") == pytest.approx(exact, abs=40)


def test_plan_states_errors_unit_and_ledger_before_data(data_folder):
    plan = taxi_plan()
    assert plan.errors["queries"].tolist() == [8, 3]
    assert (plan.errors["error"] > 0).all()
    assert "all rows of one person, of which at most 10 are counted" in repr(plan)
    assert "attack risk: detection rate of at most " in repr(plan)
    assert "protects: one row" in repr(dp.plan([["day"]], taxi_domain(), epsilon=1))
    assert str(data_folder / "ledger.sqlite") in plan._repr_html_()
    assert not (data_folder / "ledger.sqlite").exists()


def test_errors_of_a_plan_are_those_of_the_release():
    plan = taxi_plan()
    release = dp.run(plan, data=taxi_frame())
    errors = release.table("day")["std_error"].to_numpy()
    assert plan.errors["error"].iloc[1] == pytest.approx(float(np.sqrt((errors**2).mean())), rel=1e-6)


def test_releases_under_one_name_add_up_and_another_frame_needs_a_new_release():
    plan, frame = taxi_plan(epsilon=1.0), taxi_frame()
    first = dp.run(plan, data=frame)
    assert dp.run(plan, data=frame).path == first.path
    with refused(dp.DataError):
        dp.run(plan, data=frame.assign(fare=1.0))
    with pytest.warns(SpentWarning, match=r"epsilon 1\.[3-9]"):
        assert dp.run(plan, data=frame.assign(fare=1.0), fresh=True).path != first.path


def test_workload_job_and_path_are_queries_too(tmp_path):
    domain = taxi_domain()
    work = dp.Workload(domain).add("prefix", attributes=[["fare"]]).add("marginal", degree=2, weight=2.0)
    work.add_queries(("borough",), [[1.0, -1.0]])
    plan = dp.plan(work, epsilon=1.0, delta=1e-9)
    assert plan.measurements.workload.digest == work.digest
    plan.write(tmp_path / "job.toml")
    content = {**plan.content, "data": {"domain": "job.domain.toml"}}
    assert dp.plan(tmp_path / "job.toml").measurements.digest == plan.measurements.digest
    assert dp.plan(content).measurements.digest == plan.measurements.digest
    assert dp.run(dp.plan(tmp_path / "job.toml"), run_dir="out", data=taxi_frame()).path == tmp_path / "out"


@pytest.mark.parametrize("family", ["sum", "mean", "variance"])
def test_workloads_with_numbers_are_planned(family):
    domain = dp.Domain.from_dict({"attributes": {"a": {"kind": "coded", "size": 3}},
                                  "numbers": {"pay": {"low": 0, "high": 14}}})  # fmt: skip
    work = dp.Workload(domain).add("marginal", degree=1).add(family, of="pay", attributes=[["a"], []], weight=3.7)
    plan = dp.plan(work, epsilon=1.0, delta=1e-9)
    assert plan.content["workload"][1] | {"attributes": [["a"], []], "weight": 3.7} == plan.content["workload"][1]
    assert plan.errors["queries"].sum() == work.query_count == 7


def test_workloads_with_products_are_planned():
    domain = dp.Domain.from_dict({"attributes": {"a": {"kind": "coded", "size": 3}, "b": {"kind": "boolean"}}})
    texts = {"a": ["a < 1", "a = 2"], "b": "identity"}
    work = dp.Workload(domain).add("product", predicates=texts, weight=2.0)
    work.add("product", predicates={"a": np.eye(3)[:2], "b": "total"}, label="first")
    plan = dp.plan(work, epsilon=1.0, delta=1e-9)
    assert plan.measurements.workload.digest == work.digest
    assert plan.content["workload"][0]["predicates"] == texts


def test_names_alone_are_sets_of_one_attribute():
    plan = dp.plan(["borough", "day"], taxi_domain(), epsilon=1.0)
    assert plan.errors["sets"].tolist() == [2]


def test_workload_without_budget_is_planned_at_unit_cost():
    work = dp.Workload(dp.Domain(a=3, b=4)).add("marginal", degree=2)
    assert dp.plan(work, "identity").rmse() == dp.plan(work, mechanism="identity").rmse()
    assert dp.plan([["a", "b"]], dp.Domain(a=3, b=4), mechanism="identity").rmse() == dp.plan(work, "identity").rmse()


def unnamed_job_plan():
    content = taxi_plan().content
    privacy = {name: value for name, value in content["privacy"].items() if name != "dataset"}
    return dp.plan({**content, "privacy": privacy})


WRONG = {
    "no domain": (lambda: dp.plan([["a"]], epsilon=1), "plan.domain: missing"),
    "no sets": (lambda: dp.plan([], taxi_domain(), epsilon=1), "no attribute sets"),
    "a frame without a name": (lambda: dp.run(unnamed_job_plan(), data=taxi_frame()), "privacy.dataset"),
    "records as queries": (lambda: dp.plan(taxi_frame()["borough"], taxi_domain(), epsilon=1), "a Series"),
    "a number": (lambda: dp.plan(3, taxi_domain(), epsilon=1), "expected a Workload, a list of attribute sets"),
    "an unknown name": (lambda: dp.plan([["borow"]], taxi_domain(), epsilon=1).errors, "borough"),
    "epsilon of 0": (lambda: dp.plan([["day"]], taxi_domain(), epsilon=0), "privacy.epsilon"),
    "delta without epsilon": (lambda: dp.plan([["day"]], taxi_domain(), delta=1e-9), "plan.delta: given without"),
    "rows without unit": (lambda: dp.plan([["day"]], taxi_domain(), epsilon=1, rows_per_unit=3), "add unit="),
    "a budget beside a job": (lambda: dp.plan({"workload": []}, epsilon=1), "given together with a job"),
    "a mechanism": (lambda: dp.plan([["day"]], taxi_domain(), mechanism="hdm", epsilon=1).errors, "hdmm"),
    "no data": (lambda: dp.run(taxi_plan()), "run.data: missing"),
    "data of another type": (lambda: dp.run(taxi_plan(), data=3), "a pandas, Polars or Dask DataFrame"),
    "a plan without a budget": (lambda: dp.run(dp.plan([["day"]], taxi_domain()), data=taxi_frame()), "add epsilon="),
    "a misspelt argument": (lambda: dp.plan([["day"]], taxi_domain(), epsilon=1, rows_per_units=3),
                            "plan.rows_per_units: unknown argument"),
    "a misspelt budget": (lambda: dp.plan([["day"]], taxi_domain(), epsilom=1), "did you mean 'epsilon'?"),
    "nulls of another kind": (lambda: dp.Domain(fare=dp.bins(0, 10, 5, nulls="keep")), "attributes.fare.nulls"),
    "bins that do not fit": (lambda: dp.bins(0, 10, 3), "bins.width"),
    "bins in disorder": (lambda: dp.bins(10, 0, 1), "low below high"),
    "a bin of text": (lambda: dp.bins("0", 10, 1), "bins.low"),
    "dates in disorder": (lambda: dp.Domain(day=dp.dates("2019-05", "2019-03", "month")), "swap them"),
    "a column of None": (lambda: dp.Domain(a=None), "attributes.a"),
    "values twice": (lambda: dp.Domain(a=["x", "x"]), "a value twice"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_calls_get_one_sentence_and_spend_nothing(case, data_folder):
    call, says = WRONG[case]
    with pytest.raises(dp.DpscaleError) as error:
        call()
    assert says in str(error.value)
    assert not (data_folder / "ledger.sqlite").exists()


def test_no_option_of_a_mechanism_is_taken_for_a_misspelt_argument():
    options = {key for name in MECHANISMS for key in mechanism(name).Options.model_fields}
    assert {"gap", "rounds"} <= options
    assert not [name for name in (*options, "noise", "each", "most_cells")
                if difflib.get_close_matches(name, ARGUMENTS, 1, 0.8)]  # fmt: skip


def test_a_plan_has_a_run_for_a_frame_and_for_each_file(data_folder, tmp_path):
    plan, frame = taxi_plan(), taxi_frame()
    places = {dp.run(plan, data=frame).path}
    for name in ("one.parquet", "two.parquet"):
        frame.to_parquet(tmp_path / name)
        places |= {dp.run(plan, data=tmp_path / name).path, dp.run(plan, data=tmp_path / name).path}
    assert len(places) == 3


def test_every_spelling_of_a_path_is_the_same_release(data_folder, tmp_path):
    plan = taxi_plan()
    taxi_frame().to_parquet(tmp_path / "one.parquet")
    (tmp_path / "link").symlink_to(tmp_path)
    spellings = ["one.parquet", "./one.parquet", tmp_path / "one.parquet", f"file://{tmp_path}/one.parquet",
                 f"../{tmp_path.name}/one.parquet", "link/one.parquet"]  # fmt: skip
    assert len({dp.run(plan, data=one).path for one in spellings}) == 1


def test_nulls_of_a_frame_are_refused_counted_or_dropped(data_folder):
    frame = pd.DataFrame({"fare": [1.0, 2.0, None, 7.0] * 500, "day": [None, *["2019-03-01"] * 3] * 500})
    budget = {"epsilon": 20, "delta": 1e-3, "dataset": "nulls"}
    with refused(dp.DataError):
        dp.run(dp.plan([["fare"]], dp.Domain(fare=dp.bins(0, 10, 5)), **budget), data=frame)
    domain = dp.Domain(
        fare=dp.bins(0, 10, 5, nulls="category"), day=dp.dates("2019-03", "2019-04", "month", nulls="drop")
    )
    release = dp.run(dp.plan([["fare"], ["day"]], domain, **budget), data=frame)
    assert np.abs(release.marginal("fare") - [500, 500, 500]).max() < 10


SCRIPT = """
import itertools, sys
{imports}
import dpscale as dp
domain = dp.Domain(a=["x", "y"])
plan = dp.plan([["a"]], domain, epsilon=1)
assert callable(dp.run) and callable(dp.plan) and plan.errors is not None and dp.Release.open and dp.bins and dp.dates
"""
MODULES = ("dpscale.api.release", "dpscale.api.planning", "dpscale.api.public", "dpscale.mechanisms", "dpscale.plans",
           "dpscale.runs.opening")  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("first", MODULES)
def test_names_do_not_depend_on_the_order_of_imports(first, tmp_path):
    orders = [first, *(name for name in MODULES if name != first)]
    script = SCRIPT.format(imports="\n".join(f"import {name}" for name in orders))
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


@pytest.mark.parametrize(("low", "high", "width"), list(itertools.product((-1, 0), (1, 2.5), (0.5, 0.25))))
def test_edges_of_bins_are_exact(low, high, width):
    edges = dp.bins(low, high, width)["edges"]
    assert edges[0] == low
    assert edges[-1] == high
    assert np.diff(edges) == pytest.approx(width, abs=0)
