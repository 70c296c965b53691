"""`dpscale compare` as a user meets it: what it writes, where it may, and that nothing else is told or touched."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

import dpscale as dp
from dpscale.evaluation import compare, comparison
from dpscale.evaluation.comparison import PRIVATE
from tests.audit.leaks import leaks_under, planted_frame
from tests.evaluation.small import compared, frame, state, write_job

needs_learner = pytest.mark.usefixtures("learner")


@pytest.fixture
def learner() -> None:
    pytest.importorskip("sklearn")


@pytest.fixture
def no_learner_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refusals come before it is used."""
    monkeypatch.setattr(comparison, "check_learner", lambda: None)


def refused(*arguments: Any, code: int = 2) -> str:
    """One sentence on stderr, nothing on stdout."""
    result = compared(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("dpscale: ")
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


@needs_learner
def test_a_private_report_is_written_and_nothing_else_happens(reference: Path, tmp_path: Path, drawn: None) -> None:
    before, out = state(reference), tmp_path / "deep" / "private"
    result = compared(reference / "run", reference / "data", "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"private report, not for publication: {out / 'compare.html'}\n"
    assert result.stderr == ""
    assert state(reference) == before
    assert sorted(os.listdir(out)) == ["compare.html", "compare.json"]
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()} == {0o600}
    page, told = (out / "compare.html").read_text(), json.loads((out / "compare.json").read_text())
    assert page.count(PRIVATE) == 2
    assert f'<div class="private" role="alert">{PRIVATE}</div>' in page
    assert page.count("<svg") == 3
    assert "<title>PRIVATE" in page
    assert told["private"] == PRIVATE
    assert told["differentially_private"] is False
    assert [told["marginals"][degree]["sets"] for degree in "123"] == [5, 10, 10]
    assert told["marginals"]["2"]["mean"] < told["marginals"]["2"]["independent"]
    assert told["dependence"]["pairs"] == 10
    assert told["target"]["attribute"] == "ill"
    assert f"{told['propensity']['auc']:.3f}" in page


@needs_learner
def test_rows_against_themselves_differ_in_nothing(reference: Path, tmp_path: Path) -> None:
    """Read by the job's own rules, under which what rows have instead of an outside number is a null."""
    place = tmp_path / "place"
    write_job(place)
    text = (
        (place / "domain.toml").read_text().replace('outside = "category"', 'outside = "category"\nnulls = "category"')
    )
    (place / "domain.toml").write_text(text)
    dp.run(place / "job.toml", place / "run")
    compare(place / "run", place / "run/synthetic", tmp_path / "out")
    told = json.loads((tmp_path / "out/compare.json").read_text())
    assert [told["marginals"][degree]["max"] for degree in "123"] == [0, 0, 0]
    assert told["dependence"]["max_difference"] == 0
    assert told["propensity"]["auc"] == 0.5


@needs_learner
def test_where_it_runs_changes_no_figure(reference: Path, tmp_path: Path) -> None:
    told = []
    for number, scheduler in enumerate(("threads", "synchronous")):
        files = [reference / f"data/part-{part}.parquet" for part in (0, 1, 2)]
        compared(reference / "run", *files, "--out", tmp_path / str(number), "--scheduler", scheduler)
        told.append(json.loads((tmp_path / str(number) / "compare.json").read_text()))
        told[-1].pop("made")
    assert told[0] == told[1]


@needs_learner
def test_records_kept_out_of_the_job_in_another_format(reference: Path, tmp_path: Path) -> None:
    frame(900, seed=5).to_csv(tmp_path / "out.csv", index=False)
    result = compared(reference / "run", tmp_path / "*.csv", "--out", tmp_path / "o", "--target", "code", "--json")
    assert json.loads(result.stdout) == {
        "report": str(tmp_path / "o/compare.html"), "figures": str(tmp_path / "o/compare.json"),
        "differentially_private": False}  # fmt: skip
    told = json.loads((tmp_path / "o/compare.json").read_text())
    assert told["sampled"] == {"data": 900, "rows": 3000}
    assert told["target"]["attribute"] == "code"
    assert told["target"]["classes"] == 3
    assert told["target"]["why"] == "as asked"


@needs_learner
def test_a_table_too_small_for_models_is_compared_all_the_same(reference: Path, tmp_path: Path, drawn: None) -> None:
    frame(20).to_parquet(tmp_path / "few.parquet")
    compare(reference / "run", tmp_path / "few.parquet", tmp_path / "out")
    told = json.loads((tmp_path / "out/compare.json").read_text())
    assert told["propensity"] is told["target"] is None
    assert told["marginals"]["1"]["mean"] > 0
    assert "too few rows" in (tmp_path / "out/compare.html").read_text()


# ---- where the report may be -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_learner_needed")
class TestWhere:
    def test_never_in_a_run_directory_by_any_name(self, reference: Path, tmp_path: Path) -> None:
        run, data = reference / "run", reference / "data"
        (tmp_path / "link").symlink_to(run)
        (tmp_path / "deeper").symlink_to(run / "synthetic")
        (tmp_path / "nowhere").symlink_to(run / "not-there-yet")
        before = state(reference)
        for out in (run, run / "out", run / "synthetic", run / "synthetic/a/b", f"{run}/../run/out",
                    tmp_path / "link", tmp_path / "link/out", tmp_path / "deeper/x", tmp_path / "nowhere"):  # fmt: skip
            assert "run directory" in refused(run, data, "--out", out)
        assert state(reference) == before

    def test_nor_in_another_run(self, reference: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        shutil.copytree(reference / "run", other)
        assert f"lies in the run directory {other}" in refused(
            reference / "run", reference / "data", "--out", other / "out"
        )
        assert "contains a run directory" in refused(reference / "run", reference / "data", "--out", tmp_path)
        assert not (other / "out").exists()

    def test_only_in_a_folder_that_is_new_or_empty(self, reference: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        (tmp_path / "full").mkdir()
        (tmp_path / "full/kept").write_text("mine")
        for name, says in (("file", "not a folder"), ("full", "not empty"), ("file/under", "File exists")):
            said = refused(reference / "run", reference / "data", "--out", tmp_path / name)
            assert f"--out: {tmp_path / name}" in said
            assert says in said
        assert (tmp_path / "full/kept").read_text() == "mine"
        assert "in an object store" in refused(reference / "run", reference / "data", "--out", "memory://a/b")

    def test_what_is_mounted_twice_is_one_folder(
        self, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As a run whose marks another mount hides; here two names are said to be one folder."""
        (tmp_path / "mounted").mkdir()
        monkeypatch.setattr("os.path.samefile", lambda one, other: Path(one).name == "mounted")
        assert "lies in the run directory" in refused(
            reference / "run", reference / "data", "--out", tmp_path / "mounted/out"
        )


@needs_learner
def test_an_empty_folder_is_made_private(reference: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(mode=0o755)
    compare(reference / "run", reference / "data", tmp_path / "out")
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700


# ---- what is refused -------------------------------------------------------------------------------------------------


def test_without_scikit_learn_it_says_what_to_install(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [one for one in sys.modules if one.split(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    said = refused(tmp_path / "no-run", tmp_path / "no-data", "--out", tmp_path / "out")
    assert (
        said == "dpscale: scikit-learn: not installed; expected version 1.4 or later; pip install 'dpscale[compare]'\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_learner_needed")
class TestRefused:
    def test_a_run_without_rows(self, reference: Path, tmp_path: Path) -> None:
        run = dp.run(write_job(tmp_path, synthesize=None), tmp_path / "run").path
        said = refused(run, reference / "data", "--out", tmp_path / "out")
        assert f"has no synthetic rows; expected a run with synthetic rows; draw them: dpscale synthesize {run}" in said
        assert "is not one" in refused(tmp_path / "none", reference / "data", "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_rows_with_weights(self, reference: Path, tmp_path: Path) -> None:
        run = dp.run(write_job(tmp_path, synthesize={"rows": 50, "weights": True}), tmp_path / "run").path
        said = refused(run, reference / "data", "--out", tmp_path / "out")
        assert said.startswith("dpscale: synthesize.weights: true")

    def test_rows_that_are_not_those_of_the_run(self, reference: Path, tmp_path: Path) -> None:
        run = shutil.copytree(reference / "run", tmp_path / "run")
        os.replace(run / "synthetic/part-00000.parquet", run / "synthetic/part-00001.parquet")
        assert "synthesize" in refused(run, reference / "data", "--out", tmp_path / "out")

    def test_data_that_are_not_there_or_lack_a_column(self, reference: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        assert "DATA: no file at" in refused(reference / "run", tmp_path / "*.parquet", "--out", out)
        frame(10).drop(columns="income").to_parquet(tmp_path / "less.parquet")
        said = refused(reference / "run", tmp_path / "less.parquet", "--out", out)
        assert said.startswith("dpscale: DATA: no column 'income'")
        assert "person" not in said
        frame(10).iloc[:0].to_parquet(tmp_path / "none.parquet")
        assert "DATA: no record" in refused(reference / "run", tmp_path / "none.parquet", "--out", out)
        assert not out.exists()

    def test_a_value_outside_the_domain_by_the_jobs_own_rules_and_without_telling_it(
        self, reference: Path, tmp_path: Path
    ) -> None:
        frame(10).assign(code=98765).to_parquet(tmp_path / "bad.parquet")
        said = refused(reference / "run", tmp_path / "bad.parquet", "--out", tmp_path / "out")
        assert "code" in said
        assert "98765" not in said
        assert not (tmp_path / "out").exists()

    def test_a_target_that_is_none(self, reference: Path, tmp_path: Path) -> None:
        said = refused(reference / "run", reference / "data", "--out", tmp_path / "out", "--target", "il")
        assert "--target: 'il'" in said
        assert "did you mean 'ill'?" in said


# ---- what is told when it fails --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_learner_needed")
def test_what_fails_tells_no_value_and_leaves_no_file(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any) -> None:
        raise ValueError("could not convert 'Xochimilco-7' of 200111 records")

    out = tmp_path / "out"
    monkeypatch.setattr(comparison, "summarise_by_degree", fails)
    said = refused(reference / "run", reference / "data", "--out", out, code=75)
    assert "ValueError" in said
    assert "Xochimilco" not in said
    assert not out.exists()
    out.mkdir()
    refused(reference / "run", reference / "data", "--out", out, code=75)
    assert os.listdir(out) == []


@needs_learner
def test_a_disk_that_is_full_at_the_end_leaves_no_file(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def full(one: Any, other: Any) -> None:
        if str(other).endswith(".json"):
            raise OSError(28, "No space left on device")
        replace(one, other)

    monkeypatch.setattr("dpscale.evaluation.comparison.os.replace", full)
    assert "No space left" in refused(reference / "run", reference / "data", "--out", tmp_path / "out", code=75)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_learner_needed")
def test_data_that_change_while_they_are_read_are_refused(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frame(300).to_parquet(tmp_path / "data.parquet")
    monkeypatch.setattr(comparison, "_evaluate_models", lambda *_: ((tmp_path / "data.parquet").touch(), ({}, {}))[1])
    said = refused(reference / "run", tmp_path / "data.parquet", "--out", tmp_path / "out")
    assert said.startswith("dpscale: DATA: its files changed")


@needs_learner
def test_no_count_is_told_but_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A table whose every count is distinctive: its figures stand in no file but the report's, and in no output.

    Under little noise an estimate that the run's own report rounds is the count; here once in many thousand runs.
    """
    place, work = tmp_path / "place", tmp_path / "work"
    work.mkdir()
    place.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(tempfile, "tempdir", str(work))
    monkeypatch.setenv("TMPDIR", str(work))
    planted_frame().to_parquet(place / "data.parquet")
    private = {"privacy_cost": 1e-10, "dataset": "small"}
    job = write_job(place, data={"path": "data.parquet", "domain": "planted.toml"}, privacy=private)
    (place / "planted.toml").write_text(
        '[attributes.a]\nkind = "coded"\nsize = 2\n[attributes.city]\nkind = "categories"\nvalues = ["Z", "Q"]\n'
    )
    dp.run(job, place / "run")
    result = compared(place / "run", place / "data.parquet", "--out", tmp_path / "out", "--scheduler", "threads")
    assert result.exit_code == 0, result.output
    assert os.listdir(work) == []  # where temporary files would be
    (work / "said").write_text(result.output + caplog.text)
    assert leaks_under([place / "run", work]) == {}
    figures = re.findall(r"0\.\d{6}", (tmp_path / "out/compare.json").read_text())
    files = [path for folder in (place / "run", work) for path in folder.rglob("*") if path.is_file()]
    elsewhere = b"".join(path.read_bytes() for path in files)
    assert len(figures) > 10
    assert not [figure for figure in figures if figure.encode() in elsewhere]


@pytest.mark.slow
@needs_learner
def test_a_cluster_finds_the_same_figures(reference: Path, tmp_path: Path) -> None:
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0) as cluster:
        compare(reference / "run", reference / "data", tmp_path / "there", scheduler=cluster.scheduler_address)
    compare(reference / "run", reference / "data", tmp_path / "here")
    here, there = (json.loads((tmp_path / name / "compare.json").read_text()) for name in ("here", "there"))
    assert here | {"made": ""} == there | {"made": ""}
