"""Refined runs: pooled values against brute-force least squares, costs, data checks, resumption and refusals."""

import json
import os
import shutil
from itertools import product

import numpy as np
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.domain import Domain
from dpscale.ledger import Ledger
from dpscale.privacy import gdp_mu
from dpscale.privacy.conversion import epsilon_of_mu
from dpscale.runs import earlier, refine
from dpscale.runs.charge import ensure_noise_key
from dpscale.runs.opening import begin_run, open_run, read_job
from dpscale.runs.stages import measure
from tests.audit.small import SIZES, frame, measurements, write, write_selftest
from tests.links import small as links
from tests.messages import refused
from tests.running import end, run_stages

EPSILON, DELTA = 0.5, 1e-9
NAMES, UNSEEDED = tuple(SIZES), {"scheduler": "synchronous"}
PRIVACY = {"epsilon": EPSILON, "delta": DELTA, "dataset": "small"}
PAIRS, TRIPLES = [{"family": "marginal", "degree": 2}], [{"family": "marginal", "degree": 3}]
PREFIXES = [{"family": "prefix", "degree": 2}]
CELLS = list(product(*map(range, SIZES.values())))


def write_job(folder, name="job.toml", **changes):
    return write(folder, name, **{"privacy": PRIVACY, "engine": UNSEEDED} | changes)


def measured(job, place):
    run = begin_run(read_job(job), place)
    for stage in ("plan", "measure"):
        run_stages(run, only=stage)
    return run.table


def refined(run, epsilon=EPSILON, **given):
    new = refine.start_refinement(refine.plan_refinement(run.path, epsilon, **given))
    for stage in ("plan", "measure"):
        run_stages(new, only=stage)
    return new.table


def run_command(code, *arguments):
    result = CliRunner().invoke(main, [*map(str, arguments)])
    assert result.exit_code == code, (result.output, result.exception)
    return result


def refusal(*arguments, code=2):
    text = run_command(code, "refine", *arguments).stderr
    assert text.startswith("dpscale: "), text
    assert text.count("\n") == 1, text
    return text


def explicit_rows(run):
    """Return all rows that the measurements of a run apply to the cells, their values and their variances."""
    decision = run.measurements.measurement_plan.first_decision()
    rows, values, variances = [], [], []
    for request, value in zip(decision.requests, run.measurements.values(decision), strict=True):
        position = [NAMES.index(name) for name in request.block.attributes]
        for cell in CELLS:
            table = np.zeros([SIZES[name] for name in request.block.attributes])
            table[tuple(cell[at] for at in position)] = 1
            if request.block.joint:
                table = request.block.factors[0].explicit() @ table.reshape(-1)
            else:
                for axis, factor in enumerate(request.block.factors):
                    table = np.moveaxis(np.tensordot(factor.explicit().astype(float), table, axes=(1, axis)), 0, axis)
            rows.append(table.reshape(-1))
        matrix = np.stack(rows[-len(CELLS) :], axis=1)
        del rows[-len(CELLS) :]
        scale = np.abs(matrix).max() or 1.0  # strategies have entries up to 2^60
        rows.extend(matrix / scale)
        values.extend(np.asarray(value).reshape(-1) / scale)
        variances.extend([request.draw.lattice_variance / scale**2] * len(matrix))
    return np.array(rows), np.array(values), np.array(variances)


def least_squares(runs):
    """Return the generalised least squares estimate of the cells from all measurements, and its covariance."""
    found = [explicit_rows(run) for run in runs]
    rows, values, variances = (np.concatenate(own) for own in zip(*found, strict=True))
    information = np.linalg.pinv((rows.T / variances) @ rows, rcond=1e-10)
    return information @ (rows.T / variances) @ values, information


def assert_least_squares(release, runs, workload):
    estimate, covariance = least_squares(runs)
    shape = tuple(SIZES.values())
    for names in workload:
        others = tuple(axis for axis, name in enumerate(NAMES) if name not in names)
        np.testing.assert_allclose(release.marginal(names), estimate.reshape(shape).sum(axis=others), atol=1e-6)
        query = np.zeros([SIZES[name] for name in names])
        query[(1,) * len(names)] = 1
        marks = np.array([all(cell[NAMES.index(name)] == 1 for name in names) for cell in CELLS], float)
        assert release.answer(names, query=query)[1] == pytest.approx((marks @ covariance @ marks) ** 0.5, rel=1e-6)


@pytest.mark.parametrize(
    ("mechanism", "workload"),
    [("residual-planner", PAIRS), ("weighted-residuals", PREFIXES), ("query-smasher", PREFIXES)],
)
def test_instalments_of_one_plan_are_least_squares_of_all_values(tmp_path, mechanism, workload):
    first = measured(write_job(tmp_path, workload=workload, mechanism={"name": mechanism}), tmp_path / "run")
    second = refined(first)
    third = refined(second)
    assert third.path == tmp_path / "run-refined-2"
    assert_least_squares(dp.Release(third), [first, second, third], [("a", "b"), ("b", "c"), ("c",)])


@pytest.mark.parametrize(("first", "second"), [(PAIRS, TRIPLES), (TRIPLES, PAIRS)])
def test_another_workload_is_least_squares_of_all_values(tmp_path, first, second):
    one = measured(write_job(tmp_path, workload=first), tmp_path / "run")
    other = refined(one, job=write_job(tmp_path, "other.toml", workload=second))
    assert_least_squares(dp.Release(other), [one, other], [("a", "b"), ("a", "c")])
    last = refined(other)
    assert_least_squares(dp.Release(last), [one, other, last], [("a", "b"), ("c",)])
    assert last.refines["completes"]


def test_a_release_of_another_workload_answers_the_first_one(tmp_path):
    one = measured(write_job(tmp_path, workload=TRIPLES), tmp_path / "run")
    other = refined(one, job=write_job(tmp_path, "other.toml", workload=PAIRS))
    assert_least_squares(dp.Release(other), [one, other], [NAMES])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("mechanism", ["identity", "hdmm", "residual-planner", "weighted-fourier", "baseline"])
@pytest.mark.parametrize("parts", [2, 5])
def test_variances_are_those_of_one_release_at_the_summed_cost(tmp_path, mechanism, parts):
    job = write_job(tmp_path, mechanism={"name": mechanism})
    run = measured(job, tmp_path / "run")
    for _ in range(parts - 1):
        run = refined(run)
    mu = gdp_mu(EPSILON, DELTA) * parts**0.5
    whole = write_job(tmp_path, "whole.toml", privacy={**PRIVACY, "epsilon": epsilon_of_mu(mu, DELTA)},
                      mechanism={"name": mechanism})  # fmt: skip
    one = dp.Release(measured(whole, tmp_path / "whole"))
    ratio = dp.Release(run).table(["a", "b"]).std_error / one.table(["a", "b"]).std_error
    np.testing.assert_allclose(ratio, 1, atol=1e-4)
    assert ratio_to_one_release(run) == pytest.approx(1, abs=1e-4)


def ratio_to_one_release(run):
    return run.measurement_plan.forecast(run.planning_problem.budget).ratio_to_one_release


def test_laplace_noise_pools_by_inverse_variances(tmp_path):
    privacy = {"epsilon": 1.0, "dataset": "small"}
    run = measured(write_job(tmp_path, privacy=privacy, mechanism={"name": "identity"}), tmp_path / "run")
    second = refined(run, 1.0)
    before, after = (dp.Release(one).table(["a", "b"]).std_error for one in (run, second))
    np.testing.assert_allclose(before / after, 2**0.5, rtol=1e-6)
    figures = second.measurement_plan.forecast(second.planning_problem.budget).summary
    assert figures["epsilon_of_all_releases"] == pytest.approx(2, abs=1e-6)
    assert figures["ratio_to_one_release"] == pytest.approx(2**0.5, rel=1e-4)
    other = write_job(tmp_path, "other.toml", privacy=privacy, workload=TRIPLES, mechanism={"name": "identity"})
    assert "Laplace" in refusal(run.path, "--epsilon", 1, "--job", other, "--run-dir", tmp_path / "no")


def test_rows_of_a_unit_and_units_are_pooled(tmp_path):
    data = {"path": "data", "domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 2}
    run = measured(write_job(tmp_path, data=data), tmp_path / "run")
    second = refined(run)
    assert ratio_to_one_release(second) == pytest.approx(1, abs=1e-4)
    assert_least_squares(dp.Release(second), [run, second], [("a", "b")])
    expected = second.measurement_plan.forecast(second.planning_problem.budget).errors(10)
    errors = dp.Release(second).table(["a", "b"]).std_error
    assert expected[0]["error"] == pytest.approx(float(np.sqrt((errors**2).mean())), rel=1e-6)


def scaled_errors(folder, seeds, forged=False):
    """Return the mean of the squared errors of the 60 pooled cells over their stated variances."""
    truth = frame().groupby(list(NAMES)).size().reindex(CELLS, fill_value=0).to_numpy().reshape(*SIZES.values())
    found = []
    for seed in range(seeds):
        place = folder / f"seed{seed}"
        job = write(place, privacy=PRIVACY, engine={**UNSEEDED, "seed": seed}, workload=TRIPLES)
        run = measured(job, place / "run")
        planned = refine.plan_refinement(run.path, EPSILON)
        second = refine.start_refinement(planned)
        if forged:
            second.update(release=run.manifest["release"], ledger=None)
            second = open_run(second.path)
            for path in place.glob("ledger.sqlite*"):  # the ledger would refuse the release id as well
                path.unlink()
        run_stages(second, only="plan")
        run_stages(second, only="measure")
        errors = dp.Release(second).table(NAMES)
        found.append((errors.estimate - truth.reshape(-1)) / errors.std_error)
    return float(np.mean(np.square(found)))


def test_pooled_values_have_the_stated_variance(tmp_path):
    assert scaled_errors(tmp_path, 8) == pytest.approx(1, abs=0.25)


def test_repeated_noise_is_detected(tmp_path, monkeypatch):
    """The same release id and key would draw the same noise again: the check refuses it, and the variance shows it."""
    with refused(dp.JobError):
        scaled_errors(tmp_path / "refused", 1, forged=True)
    monkeypatch.setattr(measure, "check_fresh_noise", lambda run: None)
    assert scaled_errors(tmp_path / "forged", 5, forged=True) > 1.5


def test_the_noise_key_of_an_earlier_release_is_refused(tmp_path):
    run = begin_run(read_job(write_job(tmp_path)), tmp_path / "run")
    run_stages(run, only="plan")
    ensure_noise_key(run.table)
    key = run.secret_path.read_bytes()
    run_stages(run, only="measure")
    second = refine.start_refinement(refine.plan_refinement(run.path, EPSILON))
    second.secret_path.write_bytes(key)
    second.secret_path.chmod(0o600)
    second.update(secret="made", secret_tag=run.manifest["secret_tag"])
    run_stages(second, only="plan")
    with refused(dp.JobError):
        run_stages(second, only="measure")
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert len(ledger.summary("small")["datasets"]["small"]["releases"]) == 1


def test_command_prints_the_total_and_repeats_without_cost(tmp_path):
    dp.run(write_job(tmp_path, synthesize={"rows": 30}), tmp_path / "run")
    planned = json.loads(run_command(0, "refine", tmp_path / "run", "--epsilon", EPSILON, "--plan", "--json").stdout)
    assert not (tmp_path / "run-refined").exists()
    together = epsilon_of_mu(gdp_mu(EPSILON, DELTA) * 2**0.5, DELTA)
    assert planned["epsilon_of_all_releases"] == pytest.approx(together, rel=1e-6)
    text = run_command(0, "refine", tmp_path / "run", "--epsilon", EPSILON).stdout
    assert "all 2 releases of these records together: epsilon 0.718 at delta 1e-09" in text
    again = run_command(0, "refine", tmp_path / "run", "--epsilon", EPSILON)
    assert "nothing read, nothing spent" in again.stderr
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        found = ledger.summary("small")["datasets"]["small"]
    assert len(found["releases"]) == 2
    assert found["spent"]["epsilon"] == pytest.approx(together, rel=1e-3)


def test_a_refined_run_is_whole_without_the_first_directory(tmp_path):
    first = dp.run(write_job(tmp_path, synthesize={"rows": 30}), tmp_path / "run")
    second, release = dp.refine(first, EPSILON), first.manifest["release"]
    shutil.rmtree(tmp_path / "run")
    opened = dp.Release.open(second.path)
    assert opened.table(["a", "b"]).equals(second.table(["a", "b"]))
    assert len(opened.synthetic().compute()) == 30
    assert "of all 2 releases of these records" in (opened.path / "report.html").read_text()
    selftest = write_selftest(tmp_path)
    run_command(0, "evidence", opened.path, "--selftest", selftest)
    assert "as recomputed" in run_command(0, "evidence", "--check", opened.path / "evidence").stdout
    hashes = json.loads((opened.path / "evidence/run-files.json").read_text())
    assert "earlier/values.npy" in hashes
    third = dp.refine(opened, EPSILON)
    assert third.manifest["refines"]["releases"][0]["release"] == release


def test_changed_earlier_values_are_refused(tmp_path):
    second = refined(measured(write_job(tmp_path), tmp_path / "run"))
    path = second.path / "earlier/values.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    with refused(dp.JobError):
        dp.Release.open(second.path).marginal(["a"])


def rewrite(path):
    """Change a record of a file."""
    table = frame().iloc[:200].copy()
    table.loc[0, "a"] = (table.loc[0, "a"] + 1) % SIZES["a"]
    table.to_parquet(path, index=False)


def test_changed_data_are_refused(tmp_path):
    run = measured(write_job(tmp_path), tmp_path / "run")
    rewrite(tmp_path / "data/0.parquet")
    assert "time differ from those of the release that is refined" in refusal(run.path, "--epsilon", EPSILON)
    assert not (tmp_path / "run-refined").exists()


def test_changed_data_of_the_same_size_and_time_are_refused(tmp_path):
    (tmp_path / "data").mkdir()
    path = tmp_path / "data/0.csv"
    frame().to_csv(path, index=False)
    run, status, text = measured(write_job(tmp_path), tmp_path / "run"), path.stat(), path.read_text()
    end_of_line = text.index("\n", text.index("\n") + 1)
    path.write_text(text[: end_of_line - 1] + ("7" if text[end_of_line - 1] != "7" else "8") + text[end_of_line:])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size
    assert "records that differ from those of the release" in refusal(run.path, "--epsilon", EPSILON)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert len(ledger.summary("small")["datasets"]["small"]["releases"]) == 1


def test_data_changed_after_the_start_are_refused(tmp_path):
    run = measured(write_job(tmp_path), tmp_path / "run")
    second = refine.start_refinement(refine.plan_refinement(run.path, EPSILON))
    run_stages(second, only="plan")
    rewrite(tmp_path / "data/0.parquet")
    with refused(dp.DataError):
        run_stages(second, only="measure")


def test_a_data_frame_is_refined_with_the_same_frame(tmp_path):
    write_job(tmp_path)
    job = {"data": {"domain": str(tmp_path / "domain.toml")}, "workload": PAIRS, "engine": UNSEEDED,
           "privacy": {**PRIVACY, "ledger": str(tmp_path / "ledger.sqlite")},
           "mechanism": {"name": "residual-planner"}}  # fmt: skip
    first = dp.run(job, tmp_path / "run", data=frame())
    with refused(dp.DataError):
        dp.refine(first, EPSILON)
    with refused(dp.DataError):
        dp.refine(first, EPSILON, run_dir=tmp_path / "other", data=frame(seed=1))
    second = dp.refine(first, EPSILON, data=frame())
    assert second.table(["a", "b"]).std_error[0] < first.table(["a", "b"]).std_error[0]
    # another job of a frame has no path, as in `dpscale.run`
    triples = {**job, "workload": [{"family": "marginal", "attributes": [["a", "b", "c"]]}]}
    third = dp.refine(second, EPSILON, job=triples, data=frame())
    assert third.table(["a", "b", "c"]).std_error[0] > 0
    with refused(dp.JobError):
        dp.refine(second, EPSILON, job={**triples, "data": {**job["data"], "path": "files"}}, data=frame())


def test_runs_that_cannot_be_refined(tmp_path):
    job = write_job(tmp_path)
    planned = begin_run(read_job(job), tmp_path / "planned")
    assert "stage measure is not done" in refusal(planned.path, "--epsilon", EPSILON)
    end(planned)
    assert "was ended" in refusal(planned.path, "--epsilon", EPSILON)
    pgm = write_job(tmp_path, "mst.toml", mechanism={"name": "mst"})
    assert "whose releases are not pooled" in refusal(measured(pgm, tmp_path / "mst").path, "--epsilon", EPSILON)
    published = write_job(tmp_path, "grem.toml", mechanism={"name": "aim-grem", "published": True})
    run = measured(published, tmp_path / "grem")
    assert "aim-grem with these options" in refusal(run.path, "--epsilon", EPSILON)
    assert "is not one" in refusal(tmp_path / "nothing", "--epsilon", EPSILON)


def test_a_run_of_several_tables_is_refused(tmp_path):
    run = dp.run(links.write_job(tmp_path), tmp_path / "both")
    assert "the run of several tables" in refusal(run.path, "--epsilon", EPSILON)
    name = next(iter(run.tables))
    assert "one of several tables" in refusal(tmp_path / "both/tables" / name, "--epsilon", EPSILON)


def test_jobs_that_do_not_fit_the_run(tmp_path):
    run = measured(write_job(tmp_path), tmp_path / "run")
    other = tmp_path / "other"
    write_job(other)
    assert "data.path" in refusal(run.path, "--epsilon", EPSILON, "--job", other / "job.toml")
    ledger = write_job(tmp_path, "ledger.toml", privacy={**PRIVACY, "ledger": "another.sqlite"})
    assert "privacy.ledger" in refusal(run.path, "--epsilon", EPSILON, "--job", ledger)
    adaptive = write_job(tmp_path, "adaptive.toml", mechanism={"name": "aim-grem"})
    assert "aim-grem for a run of residual-planner" in refusal(run.path, "--epsilon", EPSILON, "--job", adaptive)
    prefix = write_job(tmp_path, "prefix.toml", workload=PREFIXES, mechanism={"name": "query-smasher"})
    assert "with a strategy other than that of the run" in refusal(run.path, "--epsilon", EPSILON, "--job", prefix)
    whole = write_job(tmp_path, "whole.toml", mechanism={"name": "identity"})
    assert "several residuals together" in refusal(run.path, "--epsilon", EPSILON, "--job", whole)
    rho = measured(write_job(tmp_path, "rho.toml", privacy={"rho": 0.1, "dataset": "small"}), tmp_path / "rho")
    assert "--delta" in refusal(rho.path, "--epsilon", EPSILON)
    assert ratio_to_one_release(refined(rho, delta=1e-9)) == pytest.approx(1, abs=1e-4)


def test_another_refinement_needs_another_directory(tmp_path):
    run = measured(write_job(tmp_path), tmp_path / "run")
    refined(run)
    assert "contains another run" in refusal(run.path, "--epsilon", 0.25)
    assert "contains another run" in refusal(run.path, "--epsilon", 0.5, "--run-dir", run.path)


def test_the_ledger_refuses_a_refinement_beyond_its_cap(tmp_path):
    dp.run(write_job(tmp_path), tmp_path / "run")
    run_command(0, "ledger", "cap", tmp_path / "ledger.sqlite", "--dataset", "small", "--epsilon", 0.6,
                "--delta", DELTA)  # fmt: skip
    refusal(tmp_path / "run", "--epsilon", EPSILON, code=3)
    assert not (tmp_path / "run-refined").exists()


def test_a_creation_that_was_interrupted_in_a_mounted_folder_is_resumed(tmp_path):
    run = measured(write_job(tmp_path), tmp_path / "run")
    place = tmp_path / "mounted"
    shutil.copytree(refine.start_refinement(refine.plan_refinement(run.path, EPSILON)).path, place)
    (place / "manifest.json").unlink()
    (place / "earlier/plan.json").unlink()
    for path in [one for one in place.iterdir() if one.name not in ("earlier", "job.toml", "domain.toml")]:
        path.unlink()
    new = refine.start_refinement(refine.plan_refinement(run.path, EPSILON), place)
    run_stages(new, only="plan")
    run_stages(new, only="measure")
    assert measurements(new.path)


def test_the_digest_of_a_refinement_names_its_earlier_releases(tmp_path):
    run = measured(write(tmp_path, privacy=PRIVACY), tmp_path / "run")
    second = refined(run)
    assert second.manifest["release"] != run.manifest["release"]  # a seed fixes both release ids
    third = refined(second)
    assert len({one.manifest["job_sha256"] for one in (run, second, third)}) == 3
    entry = {**third.refines, "releases": third.refines["releases"][1:]}
    assert earlier.refined_digest("0", entry) != earlier.refined_digest("0", third.refines)
    assert Domain.read(third.path / "domain.toml").digest == run.domain.digest


def test_values_beyond_the_memory_setting_are_refused(tmp_path):
    run = measured(write_job(tmp_path), tmp_path / "run")
    small = write_job(tmp_path, "small.toml", engine={**UNSEEDED, "memory": "1KiB"})
    text = refusal(run.path, "--epsilon", EPSILON, "--job", small)
    assert text.startswith("dpscale: engine.memory")
    assert not (tmp_path / "run-refined").exists()


@pytest.mark.parametrize("epsilon", ["0", "-1", "nan", "50"])
def test_budgets_that_no_job_may_have_are_refused(tmp_path, epsilon):
    run = measured(write_job(tmp_path), tmp_path / "run")
    assert "epsilon" in refusal(run.path, "--epsilon", epsilon)
    assert not (tmp_path / "run-refined").exists()


def test_a_run_is_refined_on_its_ledger_alone(tmp_path):
    """A new ledger would have neither the cap nor the entry of the first release."""
    dp.run(write_job(tmp_path), tmp_path / "run")
    (tmp_path / "ledger.sqlite").rename(tmp_path / "moved.sqlite")
    with refused(dp.BudgetError):
        dp.refine(tmp_path / "run", EPSILON)
    assert not (tmp_path / "run-refined").exists()
    assert not (tmp_path / "ledger.sqlite").exists()
    dp.run(write_job(tmp_path, workload=TRIPLES), tmp_path / "other")  # makes another ledger
    with refused(dp.BudgetError):
        dp.refine(tmp_path / "run", EPSILON)
    (tmp_path / "moved.sqlite").replace(tmp_path / "ledger.sqlite")
    assert dp.refine(tmp_path / "run", EPSILON).path == tmp_path / "run-refined"
