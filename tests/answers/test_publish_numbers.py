"""Published statistics of numbers: equal to those of the release, near the data, and suppressed for empty groups."""

import json

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from tests.numbers.small import NUMBERS, SIZES, exact_sums, make_frame, write_job

WORKLOAD = [
    {"family": "marginal", "attributes": [["a", "b"]]},
    {"family": "sum", "of": "pay", "attributes": [["a"], ["a", "b"], []]},
    {"family": "mean", "of": "wait", "attributes": [["a"], []]},
    {"family": "variance", "of": "pay", "attributes": [["b"]]},
    {"family": "prefix", "record_weight": "pay", "attributes": [["a"]], "weight": 0.5},
]
EMPTY = 3  # value of a that no record has


@pytest.fixture(scope="module")
def frame():
    frame = make_frame()
    frame["a"] %= EMPTY
    return frame


@pytest.fixture(scope="module")
def release(tmp_path_factory, frame):
    folder = tmp_path_factory.mktemp("published")
    job = write_job(folder, WORKLOAD, engine={"scheduler": "synchronous", "seed": 7})
    for path in (folder / "data").glob("*"):
        path.unlink()
    frame.to_parquet(folder / "data/0.parquet", index=False)
    return dp.run(job, run_dir=folder / "run")


def publish(release, out, *more):
    done = CliRunner().invoke(main, ["publish", str(release.path), "--out", str(out), "--json", *more])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def published(release, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "published"
    publish(release, out, "--format", "csv", "--format", "parquet", "--format", "xlsx")
    return out


def read(folder, statistic):
    (path,) = [one for one in folder.glob("csv/*.csv") if one.stem.partition("-")[2] == statistic]
    return pd.read_csv(path, keep_default_na=False, na_values=[""])


@pytest.mark.parametrize(("statistic", "number", "by"), [
    ("sum", "pay", ["a"]), ("sum", "pay", ["a", "b"]), ("sum", "pay", []), ("sum", "wait", ["a"]),
    ("mean", "pay", ["a"]), ("mean", "pay", ["b"]), ("mean", "wait", ["a"]), ("mean", "wait", []),
    ("std", "pay", ["b"]), ("variance", "pay", ["b"]),
])  # fmt: skip
def test_published_values_equal_those_of_the_release(release, published, statistic, number, by):
    found = read(published, "-".join([statistic, number, *by]))
    if statistic == "variance":
        expected = release.table(by, family="variance-pay")
    else:
        expected = getattr(release, statistic)(number, by=by)
    within = expected["std_error"].min() / 100
    for column, other in (("value", "estimate"), ("low", "low"), ("high", "high"), ("std_error", "std_error")):
        np.testing.assert_allclose(found[column], expected[other], atol=within)
    margin = np.maximum(expected["high"] - expected["estimate"], expected["estimate"] - expected["low"])
    np.testing.assert_allclose(found["margin"], margin, atol=within)
    assert found[by].equals(expected[by])


def test_published_sums_are_near_the_data(published, frame):
    for number, by in (("pay", ["a"]), ("pay", ["a", "b"]), ("wait", ["a"])):
        found = read(published, "-".join(["sum", number, *by]))
        exact = exact_sums(frame, by, number, NUMBERS[number])
        assert (np.abs(found["value"] - exact.reshape(-1)) < 5 * found["std_error"]).all()
    running = read(published, "sum-pay-2-a")
    exact = exact_sums(frame, ["a"], "pay", NUMBERS["pay"]).cumsum()
    assert running.columns[0] == "a_at_most"
    assert (np.abs(running["value"] - exact) < 5 * running["std_error"]).all()


def test_groups_that_may_be_empty_have_no_mean(release, published):
    """A group is suppressed unless its number of records is 1.96 standard errors above 0; one in 40 empty ones is."""
    means, sums = read(published, "mean-pay-a"), read(published, "sum-pay-a")
    records, errors = np.array([release.answer(("a",), query=cell) for cell in np.eye(SIZES["a"])]).T
    empty = records < 1.959964 * errors
    assert empty[:EMPTY].tolist() == [False] * EMPTY
    assert (means["flag"] == "suppressed").tolist() == empty.tolist()
    assert (empty == means[["value", "margin", "low", "high", "std_error"]].isna().T).all(axis=None)
    assert sums["value"].notna().all()
    assert ((sums["flag"] == "unreliable") == (sums["std_error"] > 0.5 * sums["value"].abs())).all()


def test_groups_have_their_published_counts(published):
    counts = read(published, "a-b")
    assert read(published, "sum-pay-a-b")["count"].tolist() == counts["count"].tolist()
    assert len(counts) == SIZES["a"] * SIZES["b"]
    assert "count" not in read(published, "mean-wait")


def test_every_format_names_statistics_units_and_ranges(published):
    title = "mean of wait by a, in units of wait; values are clipped to 0 … 3"
    assert title in (published / "README.txt").read_text()
    assert "'suppressed' if the group cannot" in (published / "README.txt").read_text()
    (path,) = published.glob("parquet/*-mean-wait-a.parquet")
    assert pq.read_schema(path).metadata[b"statistic"].decode() == title
    about = pd.read_excel(published / "tables.xlsx", sheet_name="about", header=None)[0]
    assert about.str.endswith(title).sum() == 1
    sheet = pd.read_excel(published / "tables.xlsx", sheet_name=path.stem)
    assert sheet["value"].tolist() == pytest.approx(read(published, "mean-wait-a")["value"].tolist(), nan_ok=True)
    book = pd.read_csv(published / "codebook.csv")
    assert book[book.kind == "number"].label.tolist() == [
        "from -20 to 100 in steps of 1", "from 0 to 3 in steps of 0.25"]  # fmt: skip


def test_selected_sets_have_their_numbers(release, tmp_path):
    names = publish(release, tmp_path / "out", "--set", "b")["files"]
    statistics = {name.partition("-")[2] for name in names if name.startswith("csv/")}
    assert {"mean-pay-b.csv", "std-pay-b.csv", "sum-pay.csv"} <= statistics
    assert not any(name.endswith("-a.csv") for name in statistics)


def test_a_total_alone_is_published(tmp_path):
    job = write_job(tmp_path, [{"family": "sum", "of": "pay", "attributes": [[]]}])
    release = dp.run(job, run_dir=tmp_path / "run")
    publish(release, tmp_path / "out")
    assert read(tmp_path / "out", "sum-pay")["value"][0] == pytest.approx(release.sum("pay").estimate, rel=1e-3)


def test_listed_sums_are_published_with_the_set_of_their_attributes(tmp_path):
    predicates = {"a": ["a >= 2", "a = 0"], "pay": "sum"}
    workload = [{"family": "marginal", "degree": 1}, {"family": "product", "predicates": predicates}]
    release = dp.run(write_job(tmp_path, workload), run_dir=tmp_path / "run")
    publish(release, tmp_path / "out")
    found = read(tmp_path / "out", "product-a-pay")
    assert found["a"].tolist() == ["a >= 2", "a = 0"]
    exact = exact_sums(make_frame(), ["a"], "pay", NUMBERS["pay"])
    assert (np.abs(found["value"] - [exact[2:].sum(), exact[0]]) < 5 * found["std_error"]).all()
