"""Files of statistical offices, read by independent readers: pyaxis, pyjstat and pysdmx."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.answers.statistical_files import Cube, Dimension, cube_of, json_stat, px_text, sdmx_text
from tests.runs.small import table, write_job, write_table

pyaxis = pytest.importorskip("pyaxis.pyaxis", reason="pyaxis reads PC-Axis")
pyjstat = pytest.importorskip("pyjstat.pyjstat", reason="pyjstat reads JSON-stat")
pysdmx_io = pytest.importorskip("pysdmx.io", reason="pysdmx reads SDMX-CSV")
FORMATS = ("csv", "px", "json-stat", "sdmx-csv")


def publish(run: Path, out: Path, *more: str) -> Path:
    formats = [word for name in FORMATS for word in ("--format", name)]
    done = CliRunner().invoke(main, ["publish", str(run), "--out", str(out), *formats, *more])
    assert done.exit_code == 0, done.output
    return out


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("statistical")
    write_table(place / "data", table())
    return dp.run(write_job(place), place / "run").path


@pytest.fixture(scope="module")
def published(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish(run, tmp_path_factory.mktemp("out") / "published")


def expected(published: Path, name: str = "001-age-sex") -> pd.DataFrame:
    """Return the published table of counts, by its labels."""
    found = pd.read_csv(published / "csv" / f"{name}.csv", keep_default_na=False, dtype=str)
    return found.set_index(["age", "sex"])


def read_cells(path: Path) -> pd.DataFrame:
    """Return dimensions and values; those that are not published are two points."""
    return pyaxis.parse(str(path), encoding="utf-8")["DATA"].fillna({"DATA": ".."})


def read_px(path: Path) -> pd.DataFrame:
    found = read_cells(path)
    return found.pivot_table(index=["age", "sex"], columns="measure", values="DATA", aggfunc="first", sort=False)


def test_pc_axis_has_values_intervals_and_flags(published: Path) -> None:
    found, wanted = read_px(published / "px" / "001-age-sex.px"), expected(published)
    assert found.index.tolist() == wanted.index.tolist()
    assert found["value"].astype(float).tolist() == wanted["count"].astype(float).tolist()
    assert found["standard error"].astype(float).to_numpy() == pytest.approx(
        wanted["std_error"].astype(float), abs=0.01
    )
    assert (found["unreliable (1) or not (0)"].astype(float) == (wanted["flag"] == "unreliable")).all()
    low, high = (found[f"{end} end of the 95 % interval"].astype(float) for end in ("lower", "upper"))
    assert (low >= 0).all()
    assert (low <= high).all()
    above = (low > 0).to_numpy()
    width, error = (high - low).to_numpy()[above], wanted["std_error"].astype(float).to_numpy()[above]
    assert width == pytest.approx(2 * 1.959964 * error, abs=0.05), "an interval is low to high"
    assert (high - low <= 2 * 1.96 * wanted["std_error"].astype(float).to_numpy() + 0.1).all()


def test_pc_axis_has_the_keywords_that_it_requires(published: Path) -> None:
    text = (published / "px" / "001-age-sex.px").read_text("utf-8")
    lines = text.split("\n")
    for keyword in (
        "MATRIX",
        "SUBJECT-CODE",
        "SUBJECT-AREA",
        "DECIMALS",
        "TITLE",
        "CONTENTS",
        "UNITS",
        "STUB",
        "HEADING",
    ):
        assert any(line.startswith(f"{keyword}=") for line in lines), keyword
    assert max(map(len, lines)) <= 256
    assert "Post-processing of a differentially private release" in text


def test_json_stat_is_read_with_labels_and_status(published: Path) -> None:
    text = (published / "json-stat" / "001-age-sex.json").read_text("utf-8")
    frame = pyjstat.Dataset.read(text).write("dataframe")
    found = frame.pivot_table(index=["age", "sex"], columns="measure", values="value", sort=False)
    wanted = expected(published)
    assert [tuple(map(str, row)) for row in found.index] == wanted.index.tolist()
    assert found["value"].tolist() == wanted["count"].astype(float).tolist()
    content = json.loads(text)
    assert content["role"] == {"metric": ["measure"]}
    assert content["dimension"]["measure"]["category"]["unit"]["value"]["label"] == "records"
    marked = {int(place) // content["size"][-1] for place in content["status"]}
    assert marked == set(np.flatnonzero((wanted["flag"] == "unreliable").to_numpy()))


def test_sdmx_csv_is_read_with_its_attributes(published: Path) -> None:
    path = published / "sdmx-csv" / "001-age-sex.csv"
    (dataset,) = pysdmx_io.read_sdmx(str(path), validate=False).data
    assert dataset.short_urn == "Dataflow=DPSCALE:T_001_AGE_SEX(1.0)"
    wanted = expected(published)
    assert dataset.data["OBS_VALUE"].astype(float).tolist() == wanted["count"].astype(float).tolist()
    assert (dataset.data["OBS_STATUS"] == "U").tolist() == (wanted["flag"] == "unreliable").tolist()
    codes = pd.read_csv(path.with_name("codelists.csv"), dtype=str, keep_default_na=False)
    labels = {
        dimension: dict(zip(own["code"], own["label"], strict=True)) for dimension, own in codes.groupby("dimension")
    }
    ages, sexes = (dataset.data[name].astype(str).map(labels[name]) for name in ("AGE", "SEX"))
    found = list(zip(ages, sexes, strict=True))
    assert found == wanted.index.tolist()


def test_minimum_hides_small_counts_in_every_format(run: Path, tmp_path: Path) -> None:
    whole = publish(run, tmp_path / "whole")
    counts = expected(whole)["count"].astype(int)
    least = int(counts.median())
    out, small = publish(run, tmp_path / "out", "--minimum", str(least)), counts < least
    assert 0 < small.sum() < len(small)
    wanted = expected(out)
    assert ((wanted["flag"] == "minimum") == small).all()
    assert ((wanted["count"] == "") == small).all()
    assert ((wanted["std_error"] == "") == small).all()
    assert (wanted["count"][~small] == expected(whole)["count"][~small]).all()
    assert ((read_px(out / "px" / "001-age-sex.px")["value"] == "..") == small).all()
    content = json.loads((out / "json-stat" / "001-age-sex.json").read_text())
    assert sum(mark == "Q" for mark in content["status"].values()) == content["size"][-1] * small.sum()
    assert [one is None for one in content["value"][:: content["size"][-1]]] == small.tolist()
    rows = pd.read_csv(out / "sdmx-csv" / "001-age-sex.csv")
    assert ((rows["OBS_STATUS"] == "Q") == small.to_numpy()).all()
    assert rows["CONF_LOW"].isna().tolist() == small.tolist()
    for text in ((out / "README.txt").read_text(), " ".join(content["note"])):
        assert f"Counts below {least}" in text
        assert "Margins may determine a count that is not shown" in text


def small_cube(labels: list[str]) -> Cube:
    values = np.array([[1.0, np.nan], [2.5, 4.0]])
    status = np.array([["A", "Q"], ["U", "A"]])
    dimensions = [Dimension("a", 'title; "of" a', labels), Dimension("b", "b", ["x", "y"])]
    return Cube(
        "001-a-b", "Values by a", "EUR", dimensions, {"value": values, "std_error": values / 10}, status, ["n;o"]
    )


@pytest.mark.parametrize(
    "labels", [["N", "S"], ["ä; b", 'c "d"'], ["same", "same;"], ["x" * 300, "=1+1"], ["x" * 300, "x" * 299]]
)
def test_labels_of_all_kinds_are_kept(labels: list[str], tmp_path: Path) -> None:
    cube = small_cube(labels)
    (tmp_path / "a.px").write_text(px_text(cube, "r"), "utf-8", newline="")
    found = read_cells(tmp_path / "a.px")
    assert found["DATA"].tolist()[::3] == ["1.00", "..", "2.50", "4.00"]
    shown = list(dict.fromkeys(found["title, 'of' a"]))
    assert len(shown) == 2
    frame = pyjstat.Dataset.read(json.dumps(json_stat(cube, "r"))).write("dataframe")
    assert list(dict.fromkeys(frame['title; "of" a'])) == list(dict.fromkeys(labels))
    (tmp_path / "a.csv").write_text(sdmx_text(cube, "r"))
    (dataset,) = pysdmx_io.read_sdmx(str(tmp_path / "a.csv"), validate=False).data
    assert dataset.data["OBS_STATUS"].tolist() == ["A", "Q", "U", "A"]


def test_values_of_json_stat_are_the_numbers_of_the_cube() -> None:
    assert json.dumps(json_stat(small_cube(["N", "S"]), "r")["value"]) == "[1, 0.1, null, null, 2.5, 0.25, 4, 0.4]"


def test_infinite_standard_errors_are_missing() -> None:
    """A standard deviation whose estimate is 0 has one."""
    found = {"sex": ["F", "M"], "value": [0.0, 2.0], "std_error": [np.inf, 0.5], "flag": ["unreliable", ""]}
    cube = cube_of("001-std-fee-sex", pa.table(found), "std of fee", "EUR", [], {})
    assert json_stat(cube, "r")["value"] == [0, None, 2, 0.5]
    assert json_stat(cube, "r")["status"] == {"0": "U", "1": "U"}
    assert "inf" not in px_text(cube, "r").split("DATA=")[1]
    assert [row.split(",")[6] for row in sdmx_text(cube, "r").splitlines()] == ["STD_ERROR", "", "0.5"]


def test_numbers_have_their_unit_and_range(tmp_path: Path) -> None:
    source = np.random.default_rng(1)
    frame = pd.DataFrame({"sex": source.choice(["F", "M"], 900), "fee": source.integers(0, 50, 900)})
    (tmp_path / "d.toml").write_text(
        '[attributes.sex]\nkind = "categories"\nvalues = ["F", "M"]\n[numbers.fee]\nlow = 0\nhigh = 50\n'
    )
    frame.to_csv(tmp_path / "fees.csv", index=False)
    job = {"data": {"path": str(tmp_path / "fees.csv"), "domain": str(tmp_path / "d.toml")},
           "privacy": {"epsilon": 4.0, "delta": 1e-9, "ledger": str(tmp_path / "l.sqlite"), "dataset": "fees"},
           "workload": [{"family": "mean", "of": "fee", "attributes": [["sex"]]}]}  # fmt: skip
    release = dp.run(job, tmp_path / "run", progress=None)
    out = publish(release.path, tmp_path / "out")
    (path,) = (out / "json-stat").glob("*mean-fee-sex.json")
    content = json.loads(path.read_text())
    assert content["label"] == "Mean of fee by sex"
    assert content["dimension"]["measure"]["category"]["unit"]["value"]["label"] == "fee"
    assert any("values are clipped to 0 … 50" in note for note in content["note"])
    assert content["id"] == ["sex", "measure"]
    assert list(content["dimension"]["measure"]["category"]["index"]) == ["value", "low", "high", "std_error"]


def test_tables_of_numbers_have_the_words_of_the_domain_file(tmp_path: Path) -> None:
    """Unit and titles as in tables of counts; the files keep the names of columns."""
    source = np.random.default_rng(1)
    frame = pd.DataFrame({"sex": source.choice(["F", "M"], 900), "fee": source.integers(0, 50, 900)})
    (tmp_path / "d.toml").write_text(
        '[attributes.sex]\nkind = "categories"\nvalues = ["F", "M"]\ntitle = "Sex"\n'
        '[numbers.fee]\nlow = 0\nhigh = 50\ntitle = "Fee"\nunit = "EUR"\n'
    )
    frame.to_csv(tmp_path / "fees.csv", index=False)
    of_fee = {"of": "fee", "attributes": [["sex"]]}
    job = {"data": {"path": str(tmp_path / "fees.csv"), "domain": str(tmp_path / "d.toml")},
           "privacy": {"epsilon": 4.0, "delta": 1e-9, "ledger": str(tmp_path / "l.sqlite"), "dataset": "fees"},
           "workload": [{"family": "mean"} | of_fee, {"family": "variance"} | of_fee]}  # fmt: skip
    release = dp.run(job, tmp_path / "run", progress=None)
    out = publish(release.path, tmp_path / "out")
    titles = {path.stem.partition("-")[2]: json.loads(path.read_text()) for path in (out / "json-stat").glob("*-fee-*")}
    units = {name: one["dimension"]["measure"]["category"]["unit"]["value"]["label"] for name, one in titles.items()}
    assert units == {"sum-fee-sex": "EUR", "mean-fee-sex": "EUR", "std-fee-sex": "EUR", "variance-fee-sex": "EUR²"}
    assert titles["mean-fee-sex"]["label"] == "Mean of Fee by Sex"
    (px,) = (out / "px").glob("*mean-fee-sex.px")
    assert 'TITLE="Mean of Fee by Sex";' in px.read_text()
    assert 'UNITS="EUR";' in px.read_text()
    (sdmx,) = (out / "sdmx-csv").glob("*variance-fee-sex.csv")
    assert pd.read_csv(sdmx)["UNIT_MEASURE"].unique().tolist() == ["EUR²"]
    assert "mean of Fee by Sex, in units of EUR; values" in (out / "README.txt").read_text()


def test_words_for_readers_are_the_labels(tmp_path: Path) -> None:
    frame = pd.DataFrame({"sex": ["F", "M"] * 300, "dead": [0, 1, 0] * 200})
    frame.to_csv(tmp_path / "v.csv", index=False)
    (tmp_path / "d.toml").write_text(
        '[attributes.sex]\ntitle = "Sex"\nkind = "categories"\nvalues = ["F", "M"]\nlabels = {F = "women", M = "men"}\n'
        '[attributes.dead]\ntitle = "Outcome"\nkind = "integer"\nlow = 0\nhigh = 1\n'
        'labels = {0 = "alive", 1 = "died"}\n'
    )
    job = {"data": {"path": str(tmp_path / "v.csv"), "domain": str(tmp_path / "d.toml")},
           "privacy": {"epsilon": 4.0, "delta": 1e-9, "ledger": str(tmp_path / "l.sqlite"), "dataset": "deaths"},
           "workload": [{"family": "marginal", "attributes": [["sex", "dead"]]}],
           "about": {"publisher": "Office of tests", "notes": "Only a test."}}  # fmt: skip
    out = publish(dp.run(job, tmp_path / "run", progress=None).path, tmp_path / "out")
    (path,) = (out / "json-stat").glob("*.json")
    content = json.loads(path.read_text())
    assert content["label"] == "Number of records by Sex, Outcome"
    assert content["dimension"]["dead"] == {"label": "Outcome", "category": {
        "index": ["0", "1"], "label": {"0": "alive", "1": "died"}}}  # fmt: skip
    assert content["source"].startswith("Office of tests, release ")
    assert content["note"][-1] == "Only a test."
    cells = read_cells(next((out / "px").glob("*.px")))
    assert list(dict.fromkeys(cells["Sex"])) == ["women", "men"]
    rows = pd.read_csv(out / "sdmx-csv" / "codelists.csv")
    assert rows["label"].tolist() == ["women", "men", "alive", "died"]
    assert rows["code"].tolist() == ["F", "M", "0", "1"]


def test_attributes_named_like_figures_keep_their_labels(tmp_path: Path) -> None:
    """Columns of labels have another name than those of figures."""
    names = ("value", "low", "count", "flag", "measure", "measure_")
    source = np.random.default_rng(1)
    frame = pd.DataFrame({name: source.choice(["x y", "z"], 400) for name in names})
    domain = dp.Domain(**{name: ["x y", "z"] for name in names})
    plan = dp.plan([[name, "measure"] for name in names if name != "measure"], domain, epsilon=4, delta=1e-9,
                   dataset="names", ledger=tmp_path / "l.sqlite")  # fmt: skip
    out = publish(dp.run(plan, data=frame, progress=None).path, tmp_path / "out", "--minimum", "100")
    for number, name in enumerate(("value", "low", "count", "flag"), start=1):
        (path,) = (out / "csv").glob(f"00?-{name}-measure.csv")
        found = pd.read_csv(path)
        assert list(found.columns) == [f"{name}_", "measure", "count", "std_error", "flag"], number
        assert found[f"{name}_"].tolist() == ["x y", "x y", "z", "z"]
        content = json.loads((out / "json-stat" / f"{path.stem}.json").read_text())
        assert content["id"] == [name, "measure", "measure_"]
        assert len(read_cells(out / "px" / f"{path.stem}.px")) == 4 * (
            len(content["dimension"]["measure_"]["category"]["index"]) + 1
        )
        assert (
            list(pd.read_csv(out / "sdmx-csv" / f"{path.stem}.csv")["OBS_VALUE"].dropna())
            == found["count"].dropna().tolist()
        )
    (path,) = (out / "json-stat").glob("*measure-measure*.json")
    assert json.loads(path.read_text())["id"] == ["measure", "measure_", "measure__"]


def test_whole_table_and_codes_that_collide(tmp_path: Path) -> None:
    frame = pd.DataFrame({"a-b": ["x y", "z"] * 200, "a b": ["q r", "s", "t", "s"] * 100, "fee": list(range(20)) * 20})
    frame.to_csv(tmp_path / "v.csv", index=False)
    (tmp_path / "d.toml").write_text(
        '[attributes]\n"a-b" = {kind = "categories", values = ["x y", "z"]}\n'
        '"a b" = {kind = "categories", values = ["q r", "s", "t"]}\n[numbers.fee]\nlow = 0\nhigh = 20\n'
    )
    job = {"data": {"path": str(tmp_path / "v.csv"), "domain": str(tmp_path / "d.toml")},
           "privacy": {"epsilon": 4.0, "delta": 1e-9, "ledger": str(tmp_path / "l.sqlite"), "dataset": "v"},
           "workload": [{"family": "mean", "of": "fee", "attributes": [[], ["a-b"]]},
                        {"family": "marginal", "attributes": [["a b"]]}]}  # fmt: skip
    run = dp.run(job, tmp_path / "run", progress=None).path
    out = publish(run, tmp_path / "out")
    (path,) = (out / "json-stat").glob("*-mean-fee.json")
    content = json.loads(path.read_text())
    assert content["id"] == ["measure"]
    assert abs(content["value"][0] - 9.5) < 1
    assert f"{content['value'][0]}" in (out / "px" / f"{path.stem}.px").read_text()
    codes = pd.read_csv(out / "sdmx-csv" / "codelists.csv", dtype=str)
    assert codes["dimension"].unique().tolist() == ["A_B"]
    for name, labels in (("a-b", ["x y", "z"]), ("a b", ["q r", "s", "t"])):
        mine = codes[codes["title"] == name]
        assert mine.drop_duplicates("code")["label"].tolist() == labels

    least = publish(run, tmp_path / "least", "--minimum", "300")
    (path,) = (least / "csv").glob("*-mean-fee.csv")
    assert pd.read_csv(path)["value"].notna().all(), "400 records are counted"
    (path,) = (least / "csv").glob("*-mean-fee-a-b.csv")
    found = pd.read_csv(path, keep_default_na=False)
    assert found[["count", "value", "margin", "low", "high", "std_error"]].eq("").all(axis=None), "200 are hidden"
    assert found["flag"].tolist() == ["minimum"] * 2


def test_lines_of_pc_axis_have_no_breaks() -> None:
    cube = small_cube(["two\nlines", "S" * 300])
    text = px_text(cube, "r")
    assert "two lines" in text
    assert max(map(len, text.split("\r\n"))) <= 256
