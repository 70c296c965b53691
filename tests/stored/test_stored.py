"""Run directories of earlier versions open with the same estimates, and interrupted runs resume."""

import hashlib
import json
import shutil
import tarfile

import numpy as np
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.job import Job
from dpscale.job.job import job_digest
from dpscale.ledger import Ledger
from dpscale.runs.opening import open_part
from tests.audit.small import write_selftest
from tests.golden.runs import draw_records
from tests.messages import refused
from tests.periods import growing
from tests.selection import mostly_slow
from tests.stored.runs import (
    ARCHIVES,
    CASES,
    DATABASES,
    GROWING,
    INTERRUPTED,
    estimates,
    releases,
    restore_case,
    run_case,
)

FINISHED = [case for case in CASES if case not in INTERRUPTED]
TABLES = [case for case in FINISHED if case not in (*DATABASES, GROWING)]
QUICK = tuple(
    f"{one}@4"
    for one in (
        "identity",
        "aim-grem",
        "units",
        "rows",
        "hdmm",
        "product",
        "conditions",
        "database",
        "interrupted-rounds",
    )
)


def quickly(cases):
    """Return the cases as parameters; those outside QUICK are slow."""
    listed = list(cases)
    return mostly_slow(listed, [case for case in listed if case in QUICK])


# Fitted models end at a tolerance, from where a processor with other vector instructions may take one step more.
FITTED = {"aim-pgm": 1e-5, "mst": 1e-5}


def assert_same_estimates(found, case, fitted=FITTED):
    """Compare exact estimates with the archive to 1e-9, others as `fitted` says, errors to the archive's precision."""
    stored = np.load(ARCHIVES / f"{case}.npz")
    assert set(found) == set(stored.files)
    for name, values in found.items():
        scale = np.abs(stored[name][np.isfinite(stored[name])]).max(initial=1)
        answers = name.count(":") == 2  # columns: estimate, std_error, low, high
        for own, columns in (("estimates", np.s_[:, :1]), ("errors", np.s_[:, 1:])) if answers else (("", np.s_[:]),):
            near = fitted.get(case.partition("@")[0], 1e-9)
            if own == "errors" and np.isnan(stored[name][columns]).all():
                continue  # the earlier version stated no errors by default
            np.testing.assert_allclose(
                values[columns], stored[name][columns], rtol=near, atol=near * scale, err_msg=f"{name} {own}"
            )


def hashes(run):
    """Return the SHA-256 of every file of a release, which readers must not change."""
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and not path.name.endswith(".lock")]
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def measurement_values(run):
    """Return the records and integers of every table, and the bytes of every decision and sum of links."""
    folders = {path.parent for path in run.rglob("measurements")}
    decisions = [*run.rglob("round-*.json"), *run.glob("links/*/*.parquet"), *run.glob("links/*/*.json")]
    return (
        {str(folder.relative_to(run)): draw_records(folder) for folder in folders},
        {str(path.relative_to(run)): path.read_bytes() for path in decisions},
    )


def values_without_links(run):
    """Return the values without links, which are measured with synthetic rows and depend on the sampler of the
    version.
    """
    tables, decisions = measurement_values(run)
    return tables, {name: content for name, content in decisions.items() if not name.startswith("links/")}


@pytest.mark.parametrize("case", quickly(FINISHED))
def test_finished_run_opens_unchanged(case):
    with restore_case(case) as folder:
        before = hashes(folder / "run")
        assert_same_estimates(estimates(folder / "run"), case)
        status = CliRunner().invoke(main, ["job", "status", str(folder / "run"), "--json"])
        assert status.exit_code == 0, status.output
        assert hashes(folder / "run") == before


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", quickly(case for case in FINISHED if case in TABLES))
def test_answers_are_made_again_from_stored_measurements(case):
    """`reconstruct` runs without the answers and the model of the earlier version."""
    with restore_case(case) as folder:
        before = measurement_values(folder / "run")
        for name in ("answers", "model"):
            shutil.rmtree(folder / "run" / name, ignore_errors=True)
        done = CliRunner().invoke(main, ["run", str(folder / "run"), "--only", "reconstruct", "--quiet"])
        assert done.exit_code == 0, done.output
        assert_same_estimates(estimates(folder / "run"), case)
        assert measurement_values(folder / "run") == before


def test_growing_run_takes_another_month():
    """The values and answers of the earlier months stay as they are."""
    with restore_case(GROWING) as folder:
        before = estimates(folder / "run")
        drawn = {path: path.read_bytes() for path in (folder / "run/periods").glob("*/measurements/*.parquet")}
        months = growing.frames(months=growing.MONTHS[:3])
        growing.write(folder, {growing.MONTHS[2]: months[growing.MONTHS[2]]})  # the others are in the archive
        run_case(folder / "job.toml")
        after = estimates(folder / "run")
        assert dp.Release.open(folder / "run").periods == growing.MONTHS[:3]
        assert drawn
        assert all(path.read_bytes() == content for path, content in drawn.items())
        for name, values in before.items():
            np.testing.assert_array_equal(after[name], values)


@pytest.mark.parametrize("case", ["rows@4", "adaptive-rows@4", "database@4"])
def test_synthetic_rows_of_finished_run_are_read(case):
    with restore_case(case) as folder:
        found = dp.Release.open(folder / "run")
        rows = found.synthetic()
        tables = rows.values() if isinstance(rows, dict) else [rows]
        assert all(len(table.compute()) for table in tables)
        assert case in DATABASES or len(rows) == 500


OUTPUTS = (
    ["job", "status", "run"],
    ["run", "run", "--only", "report"],
    ["publish", "run", "--out", "tables"],
    ["rows", "run", "--rows", "200"],
    ["evidence", "run", "--selftest", "selftest.json"],
    ["evidence", "--check", "run/evidence"],
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", mostly_slow(TABLES, QUICK))
def test_commands_work_on_finished_run_and_spend_nothing(case, monkeypatch):
    with restore_case(case) as folder:
        monkeypatch.chdir(folder)
        write_selftest(folder)
        before, charged = measurement_values(folder / "run"), ledger_entries(folder)
        for command in OUTPUTS:
            result = CliRunner().invoke(main, command, catch_exceptions=False)
            assert result.exit_code == 0, (command, result.output)
        assert measurement_values(folder / "run") == before
        assert ledger_entries(folder) == charged
        assert len(dp.Release.open(folder / "run").synthetic()) == 200


@pytest.mark.parametrize("command", [["job", "status", "run"], ["run", "run"], ["run", "job.toml", "--run-dir", "run"]])
def test_directory_of_an_unreleased_format_is_refused(command, monkeypatch):
    """The archive identity@3 has manifest version 3, which no released version wrote."""
    with restore_case("identity@3") as folder:
        monkeypatch.chdir(folder)
        before = hashes(folder)
        with refused(dp.JobError):
            dp.Release.open(folder / "run")
        done = CliRunner().invoke(main, command)
        assert done.exit_code == dp.JobError.exit_code, done.output
        assert "was created by another version of dpscale" in done.output
        assert len(done.output.strip().splitlines()) == 1
        assert hashes(folder) == before


def ledger_entries(folder):
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        return [one for dataset in ledger.summary()["datasets"].values() for one in dataset["releases"]]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", mostly_slow(INTERRUPTED, ["interrupted@4", "interrupted-rounds@4"]))
def test_interrupted_run_resumes_with_same_noise_and_one_charge(case):
    with restore_case(case) as folder, tarfile.open(ARCHIVES / f"{case}-finished.tar.gz") as finished:
        finished.extractall(folder / "finished", filter="data")
        run_case(folder / "job.toml")
        assert values_without_links(folder / "run") == values_without_links(folder / "finished")
        assert_same_estimates(estimates(folder / "run"), case)
        assert not (folder / "run" / "secret.key").exists()
        assert [one["state"] for one in ledger_entries(folder)] == ["released"]


def test_comparison_detects_changed_value():
    """Planted fault: the comparison fails if one estimate of a stored run is changed."""
    with restore_case("identity@4") as folder:
        before, found = measurement_values(folder / "run"), estimates(folder / "run")
        manifest = json.loads((folder / "run" / "manifest.json").read_text())
        (folder / "run" / "manifest.json").write_text(json.dumps({**manifest, "note": 1}))
        assert measurement_values(folder / "run") == before
        next(iter(found.values())).flat[0] += 1e-3
        with pytest.raises(AssertionError):
            assert_same_estimates(found, "identity@4")


@pytest.mark.parametrize("case", quickly(CASES))
def test_job_digest_is_unchanged(case):
    """Version 1 of the digest names a release with a seed; digests include defaults."""
    with restore_case(case) as folder:
        manifest = json.loads((folder / "run" / "manifest.json").read_text())
        version = manifest.get("job_version", 1)
        job, seed = Job.read(folder / "job.toml", stored=True), 7 if case in DATABASES else 0
        domain = job.table.read_domain() if job.is_short else None
        digests = [job_digest(job, domain, number) for number in (version, 1)]
        assert manifest["job_sha256"] == digests[0]
        assert manifest["release"] == f"seed{seed}-{digests[1][:24]}"


@pytest.mark.parametrize("case", ["identity@4", "weighted-residuals@4", "aim-grem@4", "database@4"])
def test_repeated_seeded_job_has_same_directory_and_release(case, monkeypatch):
    """From data to release, in the default run directory, without patches."""
    with restore_case(case) as folder:
        monkeypatch.chdir(folder)
        (folder / "ledger.sqlite").unlink()
        done = CliRunner().invoke(main, ["run", "job.toml", "--quiet"], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        [again] = (folder / "runs").iterdir()
        earlier = json.loads((folder / "run" / "manifest.json").read_text())
        assert again.name == json.loads((again / "manifest.json").read_text())["job_sha256"][:12]
        assert json.loads((again / "manifest.json").read_text())["release"] == earlier["release"]
        if case == "identity@4":  # other plans are solved in floats; those of several tables divide their budget
            assert values_without_links(again) == values_without_links(folder / "run")
            assert_same_estimates(estimates(again), case)
        assert releases(again).keys() == releases(folder / "run").keys()


@pytest.mark.parametrize("case", TABLES)
def test_plan_of_a_stored_run_can_still_be_measured(case):
    """A mechanism that plans differently today names the versions whose plans it measures as they are."""
    with restore_case(case) as folder:
        run = open_part(folder / "run")
        run.check_plan()
        version = json.loads((folder / "run" / "manifest.json").read_text())["mechanism"]["version"]
        assert version in {run.job.method.version, *run.job.method.resumes}
