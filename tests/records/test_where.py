"""Row filters against pandas queries in every format; files that cannot match are not opened."""

import datetime as dt
import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings, strategies as st

import dpscale as dp
from dpscale.base.expressions import SIGNS
from dpscale.engine.frames import frame_table
from dpscale.engine.schedulers import LocalEngine
from dpscale.job import Job
from dpscale.records.origin import layout, snapshot, stamps
from dpscale.records.where import Condition, Where, matching, read_where
from tests.messages import refused
from tests.runs.small import table as job_table, write_job

DOMAIN = dp.Domain({"a": 4, "b": 3})
AT = pd.Timestamp("2025-01-04 01:00")
ROWS = 2000


def frame():
    rng = np.random.default_rng(3)
    return pd.DataFrame({
        "a": rng.integers(0, 4, ROWS), "b": rng.integers(0, 3, ROWS), "year": rng.integers(2020, 2026, ROWS),
        "town": rng.choice(["Köln", "Ulm", "O'Hara", ""], ROWS), "share": np.round(rng.normal(0, 2, ROWS), 1),
        "big": rng.integers(2**53, 2**53 + 3, ROWS), "some thing": rng.random(ROWS) < 0.5,
        "day": pd.to_datetime("2025-01-01") + pd.to_timedelta(rng.integers(0, 9 * 24, ROWS), "h"),
    })  # fmt: skip


FILTERS = {  # ours, and pandas' words for it
    "year = 2025": "year == 2025",
    "year != 2025 and a >= 2": "year != 2025 and a >= 2",
    "year in (2021, 2022.0, 1999)": "year in (2021, 2022, 1999)",
    "share < -0.5 and share > -1.5e0": "share < -0.5 and share > -1.5",
    "share <= 0.3 and share >= 0.3": "share == 0.3",
    f"big = {2**53 + 1}": f"big == {2**53 + 1}",
    "town = 'Ulm'": "town == 'Ulm'",
    "town in (\"O'Hara\", 'Köln') and b != 0": "town in (\"O'Hara\", 'Köln') and b != 0",
    "town = 'O''Hara'": 'town == "O\'Hara"',
    "town > 'L' and town <= 'Ulm'": "town > 'L' and town <= 'Ulm'",
    "`some thing` = true": "`some thing` == True",
    "day < 2025-01-03": "day < '2025-01-03'",
    "day >= 2025-01-03T05:00 and day != 2025-01-04T01:00:00": "day >= '2025-01-03 05:00' and day != @AT",
    "a = 9": "a == 9",
}


def expected_counts(text):
    rows = frame().query(FILTERS[text], global_dict={"AT": AT})
    return np.histogram2d(rows.a, rows.b, [np.arange(5) - 0.5, np.arange(4) - 0.5])[0]


def count_pairs(table):
    return dp.count_marginals(table, [("a", "b")])["a", "b"]


def write_frame(folder, kind):
    rows = pa.Table.from_pandas(frame(), preserve_index=False)
    for number, part in enumerate((rows.slice(0, 700), rows.slice(700))):
        at = folder / f"{number}.{kind}"
        if kind == "parquet":
            pq.write_table(part, at, row_group_size=300, use_dictionary=["town"])
        elif kind == "arrow":
            feather.write_feather(part, at, compression="uncompressed")
        else:
            part.to_pandas().to_csv(at, index=False)
    return folder


@pytest.fixture(scope="module")
def folders_by_kind(tmp_path_factory):
    return {kind: write_frame(tmp_path_factory.mktemp(kind), kind) for kind in ("parquet", "arrow", "csv")}


def open_filtered(kind, where, folders_by_kind):
    if kind == "frame":
        return frame_table(frame(), DOMAIN, ["a", "b"], LocalEngine("synchronous"), where)
    return dp.Table.open(folders_by_kind[kind], DOMAIN, where=where).split()


@pytest.mark.parametrize("text", FILTERS)
@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv", "frame"])
def test_filtered_rows_equal_pandas_query(kind, text, folders_by_kind):
    if kind == "csv" and text.startswith("big"):
        pytest.skip("texts are read as floats, which tell whole numbers apart up to 2^53")
    where = read_where(text)
    np.testing.assert_array_equal(count_pairs(open_filtered(kind, where, folders_by_kind)), expected_counts(text))


def test_null_matches_no_condition():
    column = pa.array([1.0, None, float("nan"), 3.0])
    for text, right in (("x = 1", [1, 0, 0, 0]), ("x != 1", [0, 0, 0, 1]), ("x in (1, 3)", [1, 0, 0, 1])):
        assert matching(read_where(text).conditions[0], column).tolist() == list(map(bool, right))
    texts = pa.array(["3", " 3.0 ", "three", None, "NA"])
    assert matching(read_where("x != 4").conditions[0], texts).tolist() == [True, True, False, False, False]
    texts = pa.array([None, "a", "b"]).dictionary_encode()
    assert matching(read_where("x != 'a'").conditions[0], texts).tolist() == [False, False, True]


SECOND = dt.timedelta(seconds=1)
MOMENT = dt.datetime(2025, 3, 4, 5, 6, 7)


@pytest.mark.parametrize("column", [
    pa.array([MOMENT - SECOND, MOMENT, MOMENT + SECOND, None], pa.timestamp(unit, zone))
    for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")] + [
    pa.array(["2025-03-04 05:06:06.9", "2025-03-04T05:06:07", "2025-03-04T06:06:08+01:00", "2025-02-30"])])  # fmt: skip
def test_timestamps_of_every_unit(column):
    sides = {"=": [0, 1, 0, 0], "<": [1, 0, 0, 0], ">=": [0, 1, 1, 0], "!=": [1, 0, 1, 0]}
    for sign, right in sides.items():
        one = read_where(f"x {sign} 2025-03-04T05:06:07").conditions[0]
        assert matching(one, column).tolist() == list(map(bool, right))


def test_dates_of_every_type():
    days = pa.array([dt.date(2025, 3, 3), dt.date(2025, 3, 4), None])
    for column in (days, days.cast(pa.date64()), days.cast(pa.string())):
        assert matching(read_where("x >= 2025-03-04").conditions[0], column).tolist() == [False, True, False]


LITERALS = st.one_of(
    st.integers(-(2**63) + 1, 2**63 - 1), st.floats(-(2.0**53), 2.0**53), st.text(max_size=9),
    st.booleans(), st.datetimes(dt.datetime(1, 1, 1)).map(lambda moment: moment.replace(microsecond=0)),
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.text(min_size=1, max_size=9), st.sampled_from(SIGNS), LITERALS), min_size=1, max_size=3))
@example([("a`b", "=", "it's"), ("in", "<", -0.0)])
def test_where_text_round_trip(conditions):
    made = Where(tuple(Condition(column, sign, (value,)) for column, sign, value in conditions))
    again = read_where(str(made))
    assert str(read_where(str(again))) == str(again)
    assert [one.values for one in again.conditions] == [one.values for one in made.conditions]
    assert again.columns == made.columns


@pytest.mark.parametrize(("text", "message"), [
    ("year == 2025", "'==' at character 6; expected =, !=, <, <=, >, >= or in (…); write a single ="),
    ("year = 2025 or a = 1", "'or' at character 13; expected and; for several values of a column write in (…)"),
    ("year = 'x", '"\'" at character 8;'),
    ("year", "it ends too early; expected =, !=, <, <=, >, >= or in (…)"),
    ("year in (1, 'x')", "number and text together at character 10; expected values of one type in a list"),
    ("year = 2025-02-30", "'2025-02-30' at character 8; expected a valid date"),
    ("2025 = year", "'2025' at character 1; expected the name of a column"),
    ("not a = 1", "'not' at character 1; expected the name of a column, in `…` if it contains blanks; write !="),
    ("__import__('os')", "'(' at character 11; expected =, !="),
    ("x = 1e999", "'1e999' at character 5; expected numbers below 1e308"),
])  # fmt: skip
def test_invalid_where_text_is_refused_with_position(text, message):
    with pytest.raises(dp.DataError) as error:
        read_where(text)
    assert str(error.value).startswith(f"data.where: {message}")
    data = {"path": "x", "domain": "y", "where": text}
    content = {"data": data, "privacy": {"rho": 1}, "workload": [{"family": "prefix"}]}
    with pytest.raises(dp.JobError) as error:
        Job.read(content)
    assert str(error.value).startswith(f"data.where: {message}")


@pytest.mark.parametrize(("text", "message"), [
    ("aa = 2", "no column 'aa'; expected columns of the data, in the same case; did you mean 'a'?"),
    ("year = '2025'", "a text for column 'year' of type int64; expected a number; write numbers and dates without"),
    ("day = 20250101", "a number for column 'day' of type timestamp[us]; expected a date; write texts in quotes, and"),
    ("share = 2025-01-01", "a date for column 'share' of type double; expected a number; write numbers plainly"),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["parquet", "frame"])
def test_condition_of_wrong_type_is_refused(text, message, kind, folders_by_kind):
    where = read_where(text)
    with pytest.raises(dp.DataError) as error:
        open_filtered(kind, where, folders_by_kind)
    assert str(error.value).replace("[ns]", "[us]").startswith(f"data.where: {message}")


def write_hive(folder):
    for (year, town), rows in frame().groupby(["year", "town"]):
        at = folder / f"year={year}" / f"town={town or '__HIVE_DEFAULT_PARTITION__'}" / "x.parquet"
        at.parent.mkdir(parents=True)
        rows.drop(columns=["year", "town"]).to_parquet(at)
    return folder


def test_hive_folders_that_cannot_match_are_not_opened(tmp_path):
    text = "year in (2021, 2023) and town != 'Ulm' and a >= 1"
    right = frame().query("year in (2021, 2023) and town not in ('Ulm', '') and a >= 1")  # a null matches nothing
    for path in write_hive(tmp_path).rglob("*.parquet"):
        if ("2021" not in str(path) and "2023" not in str(path)) or "=Ulm" in str(path) or "HIVE" in str(path):
            path.write_bytes(b"broken")  # root reads what nobody may
    domain = dp.Domain.from_dict({"attributes": {
        "year": {"kind": "integer", "low": 2020, "high": 2025}, "a": {"kind": "coded", "size": 4}}})  # fmt: skip
    table = dp.Table.open(tmp_path, domain, where=read_where(text)).split()
    assert len(table.files) == 4 == layout(str(tmp_path), read_where(text))["number"]
    counts = dp.count_marginals(table, [("year", "a")])["year", "a"]
    np.testing.assert_array_equal(counts, np.histogram2d(right.year, right.a, [range(2020, 2027), range(5)])[0])
    before = snapshot(table), snapshot(table, footers=True), stamps(table), layout(str(tmp_path), read_where(text))
    os.truncate(tmp_path / "year=2020" / "town=Ulm" / "x.parquet", 3)
    again = dp.Table.open(tmp_path, domain, where=read_where(text)).split()
    assert before == (snapshot(again), snapshot(again, footers=True), stamps(again),
                      layout(str(tmp_path), read_where(text)))  # fmt: skip
    with refused(dp.DataError):
        dp.Table.open(tmp_path, domain, where=read_where("year = 1999"))


def test_values_of_unmatched_rows_are_ignored(tmp_path):
    rows = frame()
    rows.loc[rows.year < 2022, "a"] = 99  # outside the domain
    rows.to_parquet(tmp_path / "x.parquet")
    right = np.histogram2d(*rows.query("year >= 2022")[["a", "b"]].to_numpy().T, [range(5), range(4)])[0]
    np.testing.assert_array_equal(count_pairs(dp.Table.open(tmp_path, DOMAIN, where=read_where("year >= 2022"))), right)
    with refused(dp.DataError):
        count_pairs(dp.Table.open(tmp_path, DOMAIN, where=read_where("year >= 2021")))


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_job_with_units_counts_matching_rows(tmp_path, scheduler):
    """At nearly no noise the answers equal those of a table without the other rows; the filter is part of the job."""
    rows = job_table().assign(year=lambda table: 2020 + table.index % 3)
    answers = {}
    for name, part, where in (("all", rows, "year  =  2021"), ("some", rows[rows.year == 2021], None)):
        folder = tmp_path / name
        (folder / "data").mkdir(parents=True)
        part.to_parquet(folder / "data" / "x.parquet", index=False)
        data = {"path": "data", "domain": "domain.toml", "privacy_unit": "person", "max_rows_per_unit": 1}
        job = write_job(folder, data=data | ({"where": where} if where else {}), engine={"scheduler": scheduler},
                        privacy={"privacy_cost": 1e11, "dataset": "x", "allow_weak_privacy": True})  # fmt: skip
        release = dp.run(job, folder / "run")
        answers[name] = np.rint(release.marginal(("age", "code")))
        assert release.manifest.get("where") == (where and "year = 2021")
    np.testing.assert_array_equal(answers["all"], answers["some"])
    changed = write_job(tmp_path / "all", data=data | {"where": "year = 2022"}, engine={"scheduler": scheduler})
    with refused(dp.JobError):
        dp.run(changed, tmp_path / "all" / "run")
