"""Rows of SELECT statements: figures against single linear queries, finished rows, units, merged cells and periods."""

import duckdb
import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale.answers import selections
from dpscale.answers.conclusions import Ratio, over
from dpscale.base.errors import JobError
from dpscale.workload.merging import merge_cells
from tests.messages import refused

DOMAIN = dp.Domain.from_dict({
    "attributes": {
        "age": {"kind": "integer", "low": 0, "high": 11},
        "sex": {"kind": "categories", "values": ["F", "M"]},
        "region": {"kind": "categories", "values": ["N", "S", "W"], "nulls": "category"},
    },
    "numbers": {"fare": {"low": 0, "high": 50, "step": 0.5, "nulls": "skip"}},
})  # fmt: skip
TEXT = """
-- name: regions
SELECT region, COUNT(*) AS n, AVG(fare) AS fare, COUNT(*) FILTER (WHERE age < 4) / COUNT(*) AS young
FROM t WHERE sex = 'F' GROUP BY region;
-- name: both
SELECT region, COUNT(*) FILTER (WHERE age < 4) - COUNT(*) FILTER (WHERE sex = 'M') AS difference,
       SUM(CASE WHEN age < 4 THEN 1 ELSE 0 END) / SUM(CASE WHEN sex = 'F' THEN 1 ELSE 0 END) AS ratio
FROM t GROUP BY region;
-- name: sorted
SELECT age, sex, COUNT(*) AS n FROM t GROUP BY age, sex HAVING COUNT(*) > 10 AND age <= 8
ORDER BY n DESC LIMIT 5 OFFSET 1;
-- name: spread
SELECT sex, STDDEV_SAMP(fare) AS deviation, VAR_POP(age) AS variance, ROUND(AVG(age), 1) AS mean, MEDIAN(age) AS middle
FROM t GROUP BY ROLLUP (sex);
-- name: none
SELECT COUNT(*) AS n, GROUPING(region) AS level, region FROM t GROUP BY GROUPING SETS ((region), ())
"""


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(3)
    made = pd.DataFrame({
        "age": rng.integers(0, 12, 900), "sex": rng.choice(["F", "M"], 900, p=[0.6, 0.4]),
        "region": rng.choice(["N", "S", "W", None], 900), "fare": rng.integers(0, 101, 900) / 2,
    })  # fmt: skip
    made.loc[rng.random(900) < 0.1, "fare"] = np.nan
    return made


@pytest.fixture(scope="module")
def release(frame, tmp_path_factory):
    return dp.sql(TEXT, {"t": frame}, DOMAIN, epsilon=5, delta=1e-9,
                  ledger=tmp_path_factory.mktemp("sql") / "ledger.sqlite")  # fmt: skip


@pytest.mark.parametrize("name", ["regions", "both", "spread", "none"])
def test_figures_are_those_of_arrays_over_all_attributes(release, monkeypatch, name):
    quick = release.query(name)
    monkeypatch.setattr(selections.GroupedQueries, "combined", lambda *_: None)
    pd.testing.assert_frame_equal(quick, release.query(name), rtol=1e-6, atol=1e-7)


def test_counts_have_estimates_and_errors_of_single_queries(release):
    row = release.query("regions").iloc[1]
    query = np.zeros((2, 4))
    query[0, 1] = 1
    estimate, error = release.answer(("sex", "region"), query=query)
    assert (row.n, row.n_std_error) == pytest.approx((estimate, error), rel=1e-9)
    assert row.n_high - row.n == pytest.approx(1.959964 * error, rel=1e-6)


def test_mean_and_share_have_intervals_of_ratios(release):
    row = release.query("regions").iloc[0]
    records = over(release.answered, ["age < 4 and sex = 'F' and region = 'N'"])
    queries = [records.spread("age < 4 and sex = 'F' and region = 'N'"), records.spread("sex = 'F' and region = 'N'")]
    values, covariance = records.moments(queries)
    share = Ratio.of(values[0], covariance[0, :, 0], (0.0, 1.0), sampled=False)
    ends = np.clip(share.limits(1.959963984540054), 0, 1)
    assert (row.young, row.young_low, row.young_high) == pytest.approx((share.value, *ends), rel=1e-6)
    assert row.fare_low < row.fare < row.fare_high
    cells = np.zeros((12, 2, 4))  # the error of t/n is that of t - θn divided by n
    cells[:, 0, 0] = (np.arange(12) < 4) - share.value
    _, error = release.answer(("age", "sex", "region"), query=cells)
    assert row.young_std_error == pytest.approx(error / values[0, 1], rel=1e-6)


def test_difference_of_means_has_the_interval_of_the_release(frame, tmp_path):
    text = """-- name: d
    SELECT AVG(age) FILTER (WHERE sex = 'F') - AVG(age) FILTER (WHERE sex = 'M') AS d,
           100 * (AVG(CASE WHEN age < 3 THEN 1 ELSE 0 END) FILTER (WHERE sex = 'F')
                  - AVG(CASE WHEN age < 3 THEN 1 ELSE 0 END) FILTER (WHERE sex = 'M')) AS share FROM t"""
    release = dp.sql(text, {"t": frame}, dp.Domain(age=12, sex=["F", "M"]), epsilon=3, delta=1e-9,
                     ledger=tmp_path / "ledger.sqlite")  # fmt: skip
    row = release.query("d").iloc[0]
    share = release.difference("sex = 'F'", "sex = 'M'", share="age < 3")
    assert (row.share, row.share_low, row.share_high) == pytest.approx([100 * one for one in share[:3]], rel=1e-6)
    mean = release.difference("sex = 'F'", "sex = 'M'", mean="age")
    assert (row.d, row.d_low, row.d_high) == pytest.approx(tuple(mean[:3]), rel=1e-6)
    assert row.d_std_error == pytest.approx((row.d_high - row.d_low) / 2 / 1.96, rel=0.1)


def test_intervals_cover_and_those_of_a_tenth_of_the_error_do_not(release, frame):
    exact = duckdb.connect().register("t", frame)
    inside, narrow = [], []
    for name, text in zip(["regions", "both"], TEXT.split(";")[:2], strict=True):
        truth, mine = exact.execute(text).df().set_index("region"), release.query(name).set_index("region")
        for column in truth.columns:
            found = mine.loc[truth.index]
            difference = truth[column] - found[column]
            low, high = (found[f"{column}_{end}"] for end in ("low", "high"))
            half = np.where(difference < 0, found[column] - low, high - found[column])
            inside.append(difference.abs() <= 3 * half)  # six standard errors
            narrow.append(difference.abs() <= 0.1 * found[f"{column}_std_error"])
    assert np.all(inside)
    assert np.mean(narrow) < 0.6


def test_having_order_and_limit_follow_from_estimates(release):
    whole, found = release.table(("age", "sex")), release.query("sorted")
    kept = whole[(whole.estimate > 10) & (whole.age <= 8)].sort_values("estimate", ascending=False)[1:6]
    assert found.n.tolist() == pytest.approx(kept.estimate.tolist())
    assert found.age.tolist() == kept.age.tolist()


def test_rows_of_a_larger_grouping_set_have_null_and_its_bit(release):
    found = release.query("none")
    assert found.level.tolist() == [0, 0, 0, 0, 1]
    assert found.region.isna().tolist() == [False, False, False, True, True]
    assert found.n[:4].sum() == pytest.approx(found.n[4])


def test_rounded_interval_contains_the_interval(release):
    found, exact = release.query("spread"), release.mean("age")
    assert found["mean"].iloc[-1] == pytest.approx(exact.estimate, abs=0.0501)
    assert found.mean_low.iloc[-1] <= exact.low <= exact.high <= found.mean_high.iloc[-1]


def test_files_have_the_rows_and_the_text(release):
    import pyarrow.parquet as pq

    for name in ("regions", "both", "sorted", "spread", "none"):
        table = pq.read_table(release.path / "answers" / "queries" / f"{name}.parquet")
        pd.testing.assert_frame_equal(table.to_pandas(), release.query(name))
        assert table.schema.metadata[b"sql"].decode() in TEXT
    assert [one.name for one in (release.path / "answers").iterdir() if one.is_dir()] == ["queries"]


def test_unknown_statement_is_refused(release):
    with refused(JobError):
        release.query("region")


def test_distinct_units_have_intervals_and_their_charge(frame, tmp_path):
    people = frame.assign(person=np.arange(len(frame)) // 2)
    text = "SELECT sex, COUNT(DISTINCT person) AS persons, COUNT(*) AS n FROM t GROUP BY sex"
    release = dp.sql(text, {"t": people}, DOMAIN, epsilon=5, delta=1e-9, unit="person", rows_per_unit=2,
                     ledger=tmp_path / "ledger.sqlite")  # fmt: skip
    found, units = release.query("query-1"), release.units("sex")
    assert found.persons.tolist() == pytest.approx(units.estimate.tolist())
    assert found.persons_low.tolist() == pytest.approx(units.low.tolist())
    truth = people.groupby("sex").person.nunique()
    assert (found.persons - truth.to_numpy()).abs().max() < 8 * found.persons_std_error.max()


def test_cells_that_no_statement_distinguishes_are_merged():
    domain = dp.Domain(code=70_000, sex=["F", "M"])
    text = (
        "SELECT CASE WHEN code < 100 THEN 'a' WHEN code < 30000 THEN 'b' ELSE 'c' END AS g, COUNT(*) FROM t GROUP BY g"
    )
    workload = dp.Workload(domain).add_sql(f"{text};\nSELECT sex, COUNT(*) FROM t WHERE code >= 100 GROUP BY sex")
    merged = merge_cells(workload)
    assert merged is not None
    assert merged.sizes == {"code": 3}
    small = dp.Workload(dp.Domain(code=3, sex=["F", "M"])).add_sql(
        "SELECT code, COUNT(*) FROM t GROUP BY code; SELECT sex, COUNT(*) FROM t WHERE code >= 1 GROUP BY sex"
    )
    assert dp.plan(workload).rmse() == pytest.approx(dp.plan(small).rmse(), rel=1e-4)


@pytest.mark.parametrize("mechanism", ["aim-grem", "residual-planner", "query-smasher"])
def test_other_mechanisms_answer_statements(frame, tmp_path, mechanism):
    text = "SELECT sex, COUNT(*) AS n, AVG(age) AS mean FROM t WHERE age >= 3 GROUP BY sex"
    release = dp.sql(text, {"t": frame}, dp.Domain(age=12, sex=["F", "M"]), epsilon=5, delta=1e-9,
                     mechanism=mechanism, ledger=tmp_path / "ledger.sqlite")  # fmt: skip
    found, truth = release.query("query-1"), frame[frame.age >= 3].groupby("sex").age.agg(["size", "mean"])
    assert found.n.tolist() == pytest.approx(truth["size"].tolist(), abs=60)
    assert found["mean"].tolist() == pytest.approx(truth["mean"].tolist(), abs=1)


def test_expected_errors_of_columns_are_those_of_an_even_table(tmp_path):
    cells = [(age, sex, region, fare / 2) for age in range(12) for sex in "FM" for region in ("N", "S", "W", None)
             for fare in range(101)]  # fmt: skip
    even, privacy = pd.DataFrame(cells, columns=["age", "sex", "region", "fare"]), {"epsilon": 19, "delta": 1e-9}
    text = TEXT.replace("MEDIAN(age)", "QUANTILE_CONT(age, 0.3)")  # a median of an even table is between two cells
    planned = dp.plan(text, DOMAIN, **privacy).column_errors(len(even)).set_index(["statement", "column"])
    made = dp.sql(text, {"t": even}, DOMAIN, **privacy, ledger=tmp_path / "ledger.sqlite")
    assert [name for name, _ in planned.index] == ["regions"] * 2 + ["both"] + ["spread"] * 4
    for (name, column), row in planned.iterrows():
        errors = made.query(name)[f"{column}_std_error"].to_numpy()
        assert row.rows == len(errors)
        assert (row.error, row.worst) == pytest.approx((np.sqrt((errors**2).mean()), errors.max()), rel=0.05), column
        assert row.missing == 0


def test_expected_errors_shrink_with_the_records_until_they_are_too_few():
    text = "SELECT region, AVG(fare) AS fare FROM t GROUP BY region"
    plan = dp.plan(text, DOMAIN, epsilon=1, delta=1e-9)
    many, more, few = (plan.column_errors(rows).iloc[0] for rows in (100_000, 200_000, 4))
    assert many.error == pytest.approx(2 * more.error, rel=1e-6)
    assert many.error == plan.column_errors().iloc[0].error
    assert (few.missing, few.error) == (4, None)
    counts = "SELECT region, COUNT(*) FILTER (WHERE age < 4) / COUNT(*) AS young FROM t GROUP BY region"
    assert dp.plan(counts, DOMAIN, "aim-grem", epsilon=1, delta=1e-9).column_errors().empty


def test_statements_in_a_plan_need_a_domain_and_a_budget():
    with refused(JobError):
        dp.plan("SELECT COUNT(*) FROM t", epsilon=1)
    with refused(JobError):
        dp.plan("SELECT COUNT(*) FROM t", DOMAIN, epsilon=1, cut=0.1)
