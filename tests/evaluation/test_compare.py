"""The command `dpscale compare`: its output files, permitted folders, error messages and lack of side effects."""

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
from tests.answers.chromium import BROWSER, render_page
from tests.answers.test_report_pages import axe_script
from tests.audit.leaks import leaks_under, planted_frame
from tests.evaluation.small import file_states, make_frame, run_compare, write_job

needs_learner = pytest.mark.usefixtures("require_sklearn")


@pytest.fixture
def require_sklearn() -> None:
    pytest.importorskip("sklearn")


@pytest.fixture
def skip_learner_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the check for scikit-learn, for tests of errors that are raised before it is used."""
    monkeypatch.setattr(comparison, "check_learner", lambda: None)


def expect_refusal(*arguments: Any, code: int = 2) -> str:
    """Check that the command prints one sentence on stderr and nothing on stdout, and return the sentence."""
    result = run_compare(*arguments)
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("dpscale: ")
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


@needs_learner
def test_compare_writes_private_report_only(reference: Path, tmp_path: Path, with_plots: None) -> None:
    before, out = file_states(reference), tmp_path / "deep" / "private"
    result = run_compare(reference / "run", reference / "data", "--out", out)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"private report, not for publication: {out / 'compare.html'}\n"
    assert result.stderr == ""
    assert file_states(reference) == before
    assert sorted(os.listdir(out)) == ["compare.html", "compare.json"]
    assert stat.S_IMODE(out.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in out.iterdir()} == {0o600}
    page, figures = (out / "compare.html").read_text(), json.loads((out / "compare.json").read_text())
    assert page.count(PRIVATE) == 2
    assert f'<div class="private" role="alert">{PRIVATE}</div>' in page
    assert page.count("<svg") == 3
    assert "<title>PRIVATE" in page
    assert figures["private"] == PRIVATE
    assert figures["differentially_private"] is False
    assert [figures["marginals"][degree]["sets"] for degree in "123"] == [5, 10, 10]
    assert figures["marginals"]["2"]["mean"] < figures["marginals"]["2"]["independent"]
    assert figures["dependence"]["pairs"] == 10
    assert figures["target"]["attribute"] == "ill"
    assert f"{figures['propensity']['auc']:.3f}" in page


@needs_learner
@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_page_is_accessible_and_fits_a_phone(reference: Path, tmp_path: Path, with_plots: None) -> None:
    page = compare(reference / "run", reference / "data", tmp_path / "out")
    for way, result in render_page(page, axe_script()).items():
        assert result["found"] == [], way
    width = "document.documentElement.scrollWidth - innerWidth"
    assert render_page(page, width, ("phone",))["phone"]["found"] <= 0


@needs_learner
def test_rows_compared_with_themselves_have_zero_difference(reference: Path, tmp_path: Path) -> None:
    """The rows are read by the domain of the job. Its numbers outside the edges are nulls in the rows."""
    place = tmp_path / "place"
    write_job(place)
    text = (
        (place / "domain.toml").read_text().replace('outside = "category"', 'outside = "category"\nnulls = "category"')
    )
    (place / "domain.toml").write_text(text)
    dp.run(place / "job.toml", place / "run")
    compare(place / "run", place / "run/synthetic", tmp_path / "out")
    figures = json.loads((tmp_path / "out/compare.json").read_text())
    assert [figures["marginals"][degree]["max"] for degree in "123"] == [0, 0, 0]
    assert figures["dependence"]["max_difference"] == 0
    assert figures["propensity"]["auc"] == 0.5


@needs_learner
def test_scheduler_and_file_list_do_not_change_figures(reference: Path, tmp_path: Path) -> None:
    figures = []
    for number, scheduler in enumerate(("threads", "synchronous")):
        files = [reference / f"data/part-{part}.parquet" for part in (0, 1, 2)]
        run_compare(reference / "run", *files, "--out", tmp_path / str(number), "--scheduler", scheduler)
        figures.append(json.loads((tmp_path / str(number) / "compare.json").read_text()))
        figures[-1].pop("made")
    assert figures[0] == figures[1]


@needs_learner
def test_compare_accepts_held_out_records_in_csv(reference: Path, tmp_path: Path) -> None:
    make_frame(900, seed=5).to_csv(tmp_path / "out.csv", index=False)
    result = run_compare(reference / "run", tmp_path / "*.csv", "--out", tmp_path / "o", "--target", "code", "--json")
    assert json.loads(result.stdout) == {
        "report": str(tmp_path / "o/compare.html"), "figures": str(tmp_path / "o/compare.json"),
        "differentially_private": False}  # fmt: skip
    figures = json.loads((tmp_path / "o/compare.json").read_text())
    assert figures["sampled"] == {"data": 900, "rows": 3000}
    assert figures["target"]["attribute"] == "code"
    assert figures["target"]["classes"] == 3
    assert figures["target"]["why"] == "as asked"


@needs_learner
def test_compare_without_models_for_small_table(reference: Path, tmp_path: Path, with_plots: None) -> None:
    make_frame(20).to_parquet(tmp_path / "few.parquet")
    compare(reference / "run", tmp_path / "few.parquet", tmp_path / "out")
    figures = json.loads((tmp_path / "out/compare.json").read_text())
    assert figures["propensity"] is figures["target"] is None
    assert figures["marginals"]["1"]["mean"] > 0
    assert "too few rows" in (tmp_path / "out/compare.html").read_text()


# ---- the output folder --------------------------------


@pytest.mark.usefixtures("skip_learner_check")
class TestOutputFolder:
    def test_run_directory_is_refused_under_every_path(self, reference: Path, tmp_path: Path) -> None:
        run, data = reference / "run", reference / "data"
        (tmp_path / "link").symlink_to(run)
        (tmp_path / "deeper").symlink_to(run / "synthetic")
        (tmp_path / "nowhere").symlink_to(run / "not-there-yet")
        before = file_states(reference)
        for out in (run, run / "out", run / "synthetic", run / "synthetic/a/b", f"{run}/../run/out",
                    tmp_path / "link", tmp_path / "link/out", tmp_path / "deeper/x", tmp_path / "nowhere"):  # fmt: skip
            assert "run directory" in expect_refusal(run, data, "--out", out)
        assert file_states(reference) == before

    def test_other_run_directory_is_refused(self, reference: Path, tmp_path: Path) -> None:
        other = tmp_path / "other"
        shutil.copytree(reference / "run", other)
        assert f"lies in the run directory {other}" in expect_refusal(
            reference / "run", reference / "data", "--out", other / "out"
        )
        assert "contains a run directory" in expect_refusal(reference / "run", reference / "data", "--out", tmp_path)
        assert not (other / "out").exists()

    def test_file_or_nonempty_folder_is_refused(self, reference: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        (tmp_path / "full").mkdir()
        (tmp_path / "full/kept").write_text("mine")
        for name, says in (("file", "not a folder"), ("full", "not empty"), ("file/under", "File exists")):
            message = expect_refusal(reference / "run", reference / "data", "--out", tmp_path / name)
            assert f"--out: {tmp_path / name}" in message
            assert says in message
        assert (tmp_path / "full/kept").read_text() == "mine"
        assert "in an object store" in expect_refusal(reference / "run", reference / "data", "--out", "memory://a/b")

    def test_run_directory_mounted_twice_is_refused(
        self, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`os.path.samefile` is patched to report two names of one folder, as for a bind mount."""
        (tmp_path / "mounted").mkdir()
        monkeypatch.setattr("os.path.samefile", lambda one, other: Path(one).name == "mounted")
        assert "lies in the run directory" in expect_refusal(
            reference / "run", reference / "data", "--out", tmp_path / "mounted/out"
        )


@needs_learner
def test_existing_empty_folder_becomes_private(reference: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir(mode=0o755)
    compare(reference / "run", reference / "data", tmp_path / "out")
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o700


# ---- refusals --------------------------------


def test_missing_scikit_learn_is_reported_with_remedy(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [one for one in sys.modules if one.split(".")[0] == "sklearn"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    message = expect_refusal(tmp_path / "no-run", tmp_path / "no-data", "--out", tmp_path / "out")
    assert message == (
        "dpscale: scikit-learn: not installed; expected version 1.4 or later; pip install 'dpscale[compare]'; "
        "more: docs/rows.md\n"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("skip_learner_check")
class TestRefusals:
    def test_run_without_synthetic_rows(self, reference: Path, tmp_path: Path) -> None:
        run = dp.run(write_job(tmp_path, synthesize=None), tmp_path / "run").path
        message = expect_refusal(run, reference / "data", "--out", tmp_path / "out")
        assert f"has no synthetic rows; expected a run with synthetic rows; draw them: dpscale rows {run}" in message
        assert "is not one" in expect_refusal(tmp_path / "none", reference / "data", "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()

    def test_weighted_rows(self, reference: Path, tmp_path: Path) -> None:
        run = dp.run(write_job(tmp_path, synthesize={"rows": 50, "weights": True}), tmp_path / "run").path
        message = expect_refusal(run, reference / "data", "--out", tmp_path / "out")
        assert message.startswith("dpscale: synthesize.weights: true")

    def test_rows_of_another_run(self, reference: Path, tmp_path: Path) -> None:
        run = shutil.copytree(reference / "run", tmp_path / "run")
        os.replace(run / "synthetic/part-00000.parquet", run / "synthetic/part-00001.parquet")
        assert "synthesize" in expect_refusal(run, reference / "data", "--out", tmp_path / "out")

    def test_missing_data_or_column(self, reference: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        assert "DATA: no file at" in expect_refusal(reference / "run", tmp_path / "*.parquet", "--out", out)
        make_frame(10).drop(columns="income").to_parquet(tmp_path / "less.parquet")
        message = expect_refusal(reference / "run", tmp_path / "less.parquet", "--out", out)
        assert message.startswith("dpscale: DATA: no column 'income'")
        assert "person" not in message
        make_frame(10).iloc[:0].to_parquet(tmp_path / "none.parquet")
        assert "DATA: no record" in expect_refusal(reference / "run", tmp_path / "none.parquet", "--out", out)
        assert not out.exists()

    def test_value_outside_domain_is_not_printed(self, reference: Path, tmp_path: Path) -> None:
        make_frame(10).assign(code=98765).to_parquet(tmp_path / "bad.parquet")
        message = expect_refusal(reference / "run", tmp_path / "bad.parquet", "--out", tmp_path / "out")
        assert "code" in message
        assert "98765" not in message
        assert not (tmp_path / "out").exists()

    def test_unknown_target(self, reference: Path, tmp_path: Path) -> None:
        message = expect_refusal(reference / "run", reference / "data", "--out", tmp_path / "out", "--target", "il")
        assert "--target: 'il'" in message
        assert "did you mean 'ill'?" in message


# ---- failures --------------------------------


@pytest.mark.usefixtures("skip_learner_check")
def test_failure_prints_no_value_and_writes_no_file(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_error(*arguments: Any) -> None:
        raise ValueError("could not convert 'Xochimilco-7' of 200111 records")

    out = tmp_path / "out"
    monkeypatch.setattr(comparison, "summarise_by_degree", raise_error)
    message = expect_refusal(reference / "run", reference / "data", "--out", out, code=75)
    assert "ValueError" in message
    assert "Xochimilco" not in message
    assert not out.exists()
    out.mkdir()
    expect_refusal(reference / "run", reference / "data", "--out", out, code=75)
    assert os.listdir(out) == []


@needs_learner
def test_full_disk_leaves_no_file(reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = os.replace

    def replace_or_fail(one: Any, other: Any) -> None:
        if str(other).endswith(".json"):
            raise OSError(28, "No space left on device")
        replace(one, other)

    monkeypatch.setattr("dpscale.evaluation.comparison.os.replace", replace_or_fail)
    assert "No space left" in expect_refusal(reference / "run", reference / "data", "--out", tmp_path / "out", code=75)
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("skip_learner_check")
def test_data_changed_during_comparison_are_refused(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_frame(300).to_parquet(tmp_path / "data.parquet")
    monkeypatch.setattr(comparison, "_evaluate_models", lambda *_: ((tmp_path / "data.parquet").touch(), ({}, {}))[1])
    message = expect_refusal(reference / "run", tmp_path / "data.parquet", "--out", tmp_path / "out")
    assert message.startswith("dpscale: DATA: its files changed")


@needs_learner
def test_counts_appear_in_private_report_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Every count of the table is distinctive, and none appears in another file or in any output.

    The budget is tiny, because an accurate rounded estimate in the report of the run could equal the count.
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
    result = run_compare(place / "run", place / "data.parquet", "--out", tmp_path / "out", "--scheduler", "threads")
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
def test_cluster_gives_same_figures(reference: Path, tmp_path: Path) -> None:
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=0) as cluster:
        compare(reference / "run", reference / "data", tmp_path / "there", scheduler=cluster.scheduler_address)
    compare(reference / "run", reference / "data", tmp_path / "here")
    here, there = (json.loads((tmp_path / name / "compare.json").read_text()) for name in ("here", "there"))
    assert here | {"made": ""} == there | {"made": ""}
