"""The command `dpscale publish`: consistent files with README and codebook, written only to its own directory."""

import json
import sys
import zipfile
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.answers.publish import Published, write_published
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from tests.runs.small import table, write_job, write_table


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    place = tmp_path_factory.mktemp("publish")
    write_table(place / "data", table())
    return dp.run(write_job(place), place / "run").path


def publish(run, *more):
    return CliRunner().invoke(main, ["publish", str(run), *map(str, more)])


def test_publish_writes_tables_readme_and_codebook(run, tmp_path):
    out = tmp_path / "out"
    result = publish(run, "--out", out, "--format", "csv", "--format", "parquet", "--format", "xlsx", "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["left_out"] == 0
    assert {"README.txt", "codebook.csv", "tables.xlsx", "csv/001-age-sex.csv"} <= set(summary["files"])
    ages, incomes = (pd.read_csv(out / "csv" / name) for name in ("001-age-sex.csv", "002-age-income.csv"))
    assert list(ages.columns) == ["age", "sex", "count", "std_error", "flag"]
    assert ages["count"].sum() == summary["total"] == incomes["count"].sum()
    assert ages.groupby("age")["count"].sum().equals(incomes.groupby("age")["count"].sum())
    assert "(missing)" in set(incomes["income"])
    assert "without the data" in (out / "README.txt").read_text()
    assert b"Post-processing" in pq.read_schema(out / "parquet/001-age-sex.parquet").metadata[b"description"]
    assert set(pd.read_csv(out / "codebook.csv")["attribute"]) == {"age", "sex", "income", "code"}
    sheet = pd.read_excel(out / "tables.xlsx", sheet_name="001-age-sex")
    assert sheet["count"].tolist() == ages["count"].tolist()


def test_publish_flags_large_relative_errors(run, tmp_path):
    assert publish(run, "--out", tmp_path / "out", "--set", "sex,age", "--limit", 0.06).exit_code == 0
    found = pd.read_csv(tmp_path / "out/csv/001-age-sex.csv", keep_default_na=False)
    assert ((found["std_error"].astype(float) > 0.06 * found["count"]) == (found["flag"] == "unreliable")).all()
    assert {"", "unreliable"} == set(found["flag"])


def test_publish_replaces_own_files_and_refuses_other_directories(run, tmp_path):
    out = tmp_path / "out"
    assert publish(run, "--out", out).exit_code == 0
    assert publish(run, "--out", out, "--degree", 1).exit_code == 0
    assert [path.name for path in (out / "csv").iterdir()] == ["001-age.csv"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    result = publish(run, "--out", tmp_path / "mine")
    assert result.exit_code == 2
    assert "contains other files" in result.output
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_publish_leaves_run_files_unchanged(run):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    result = publish(run)
    assert result.exit_code == 0
    assert f"published: {run / 'published'}" in result.output
    assert all(path.read_bytes() == content for path, content in before.items())


def test_publish_refuses_unknown_attribute_degree_and_directory(run, tmp_path):
    assert "did you mean 'age'" in publish(run, "--set", "aeg", "--out", tmp_path / "a").output
    assert "select some with --set" in publish(run, "--degree", 7, "--out", tmp_path / "b").output
    assert publish(tmp_path).exit_code == 2


def test_formula_like_headers_and_labels_are_escaped():
    import pyarrow as pa

    from dpscale.answers.publish import _escaped

    table = pa.table({"=1+2": ["=A1", "+x", "-y", "@z", "\tt", "\rr", "-5", "+1.5e3", "plain", None],
                      "count": list(range(-5, 5))})  # fmt: skip
    found = _escaped(table)
    assert found.column_names == ["'=1+2", "count"]
    assert found.column(0).to_pylist() == ["'=A1", "'+x", "'-y", "'@z", "'\tt", "'\rr", "-5", "+1.5e3", "plain", None]
    assert found.column(1).to_pylist() == list(range(-5, 5))


HOSTILE = ("=A1", "-y", "-5", "+SUM(A1)", "@x", "\tt", "\rr", "=HYPERLINK(\"http://x\")", "=cmd|' /C calc'!A0", "\x00n",
           "bell\x07", "\x1b[31m", "\ufffe", "<script>", "&amp;", "_x0041_", "a" * 300, "http://x")  # fmt: skip


@pytest.mark.parametrize("name", ["=1+2", "[x]:*?/\\", "a\x07b", "'=1", "n" * 60, "History"])
def test_workbooks_have_hostile_names_and_labels_as_texts(tmp_path, name):
    """No cell is a formula, a link or a fault, no text is lost, and the file is XML."""
    openpyxl = pytest.importorskip("openpyxl")
    domain = Domain([Attribute(name, "categories", values=HOSTILE), Attribute("=b", "categories", values=("=1", "x"))])
    sets = [(name,), (name, "=b")]
    tables = {own: np.arange(np.prod(domain.shape(own))).reshape(domain.shape(own)) for own in sets}
    published = Published(6, tables, {own: np.ones(()) for own in sets}, {})
    write_published(
        tmp_path / "out", domain, published, "=r", 1.0, ("xlsx",), "at most 2 rows of one =unit are counted"
    )
    with zipfile.ZipFile(tmp_path / "out" / "tables.xlsx") as book:
        for part in book.namelist():
            if part.endswith(".xml"):
                ElementTree.fromstring(book.read(part))
        assert not [part for part in book.namelist() if "external" in part.lower()]
    book = openpyxl.load_workbook(tmp_path / "out" / "tables.xlsx")
    assert len(book.sheetnames) == 3
    cells = [cell for sheet in book for row in sheet.iter_rows() for cell in row]
    assert {cell.data_type for cell in cells} <= {"s", "inlineStr", "n"}
    assert not any(cell.hyperlink for cell in cells)
    texts = [str(cell.value) for cell in cells if cell.data_type != "n"]
    assert not [text for text in texts if text[0] in "=+-@\t\r" and text != "-5"]
    labels = {cell.value for row in book.worksheets[1].iter_rows(min_row=2, max_col=1) for cell in row}
    assert len(labels) == len(HOSTILE)


def test_published_files_have_no_live_formulas(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    domain = Domain([Attribute("=1+2", "categories", values=("=A1", "-y", "-5"))])
    names = ("=1+2",)
    published = Published(6, {names: np.array([1, 2, 3])}, {names: np.ones(3)}, {})
    write_published(tmp_path / "out", domain, published, "r", 1.0, ("csv", "xlsx"))
    book = openpyxl.load_workbook(tmp_path / "out" / "tables.xlsx")
    cells = [cell for sheet in book for row in sheet.iter_rows() for cell in row]
    assert not [cell.value for cell in cells if cell.data_type == "f"]
    assert {"'=1+2", "'=A1", "'-y", "-5"} <= {cell.value for cell in cells}
    for path in (tmp_path / "out").rglob("*.csv"):
        assert '"=' not in path.read_text()
        assert '"-y' not in path.read_text()


STATEMENTS = """-- name: mean_age
SELECT sex, AVG(age) AS mean, COUNT(*) AS n FROM t WHERE age >= 3 GROUP BY sex;
-- name: few
SELECT CASE WHEN code < 100 THEN '=low' ELSE 'high' END AS part, COUNT(*) AS n FROM t GROUP BY part"""


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    place, random = tmp_path_factory.mktemp("statements"), np.random.default_rng(0)
    frame = pd.DataFrame({"code": random.integers(0, 70_000, 5000), "sex": random.choice(["F", "M"], 5000),
                          "age": random.integers(0, 12, 5000)})  # fmt: skip
    (place / "tables.sql").write_text(STATEMENTS)
    frame.to_parquet(place / "t.parquet")
    domain = {"attributes": {"code": {"kind": "coded", "size": 70_000}, "age": {"kind": "coded", "size": 12},
                             "sex": {"kind": "categories", "values": ["F", "M"]}}}  # fmt: skip
    (place / "t.domain.toml").write_text(tomli_w.dumps(domain))
    job = {"data": {"path": "t.parquet", "domain": "t.domain.toml"}, "privacy": {"epsilon": 1, "delta": 1e-9},
           "workload": [{"sql": "tables.sql"}]}  # fmt: skip
    (place / "job.toml").write_text(tomli_w.dumps(job))
    return dp.run(place / "job.toml", place / "run")


def test_rows_of_statements_are_published_with_their_errors(answered, tmp_path):
    out = tmp_path / "out"
    result = publish(answered.path, "--out", out, "--format", "csv", "--format", "parquet", "--format", "xlsx")
    assert result.exit_code == 0, result.output

    told, query = pd.read_csv(next((out / "csv").glob("*mean-age.csv"))), answered.query("mean_age")
    columns = [f"{name}{end}" for name in ("mean", "n") for end in ("", "_low", "_high", "_std_error")]
    assert [name for name in told.columns if not name.endswith("_flag")] == ["sex", *columns]
    for name in columns:
        error = query[f"{name.split('_')[0]}_std_error"].min()
        np.testing.assert_allclose(told[name], query[name], atol=error / 100)

    few = pq.read_table(next((out / "parquet").glob("*few.parquet")))
    assert few.schema.metadata[b"sql"].startswith(b"SELECT CASE WHEN code < 100")
    assert {row["part"]: row["n_flag"] for row in few.to_pylist()} == {
        row["part"]: "unreliable" if row["n_std_error"] > abs(row["n"]) / 2 else "" for row in few.to_pylist()
    }
    assert "'=low" in next((out / "csv").glob("*few.csv")).read_text()
    assert "SELECT sex, AVG(age) AS mean" in (out / "README.txt").read_text()
    assert "none" in (out / "README.txt").read_text().split("Omitted")[1]

    described = {one["name"] for one in json.loads((out / "croissant.json").read_text())["recordSet"]}
    assert {path.stem for path in (out / "parquet").iterdir()} == described


@pytest.mark.parametrize(("option", "why"), [
    (("--minimum", 5), "which --minimum compares"),
    (("--format", "px"), "csv, parquet and xlsx only"),
])  # fmt: skip
def test_statements_that_a_publication_cannot_have_are_told(answered, tmp_path, option, why):
    result = publish(answered.path, "--out", tmp_path / "out", *option, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["left_out"] == 2
    assert (tmp_path / "out" / "README.txt").read_text().count(why) == 2
    assert not [*(tmp_path / "out").rglob("*mean-age*")]


def test_workbook_without_its_package_writes_nothing(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    result = publish(run, "--out", tmp_path / "out", "--format", "xlsx")
    assert result.exit_code == 2
    assert "pip install 'dpscale[excel]'" in result.output
    assert not (tmp_path / "out").exists()
