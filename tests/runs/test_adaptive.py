"""Adaptive jobs with Parquet files and a ledger: equal bytes and one charge after a kill at any point and on every
scheduler.
"""

import json
import math
import shutil
from dataclasses import replace
from fractions import Fraction
from functools import partial
from itertools import combinations, product
from statistics import NormalDist

import numpy as np
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.measurement import MeasurementStore, decisions, measurement
from dpscale.measurement.adaptive import run
from dpscale.measurement.journal import Journal
from dpscale.mechanisms import aim_grem
from dpscale.mechanisms.aim.decision import VERSION
from dpscale.mechanisms.aim.estimators import EntropyEstimator, GremEstimator
from dpscale.mechanisms.aim.setting import BatchedSchedule, Setting
from dpscale.privacy.streams import seeded_secret
from dpscale.runs import charge, run as runs, runner as parts
from dpscale.runs.opening import open_part
from dpscale.runs.stages import measure
from dpscale.workload.residual import by_mass
from tests.answered import answers_to, index_of
from tests.audit.composition import audit_run
from tests.audit.small import SIZES, answers, frame, measurements, write
from tests.messages import refused
from tests.running import begin_table, end

TRIPLES = {"workload": [{"family": "marginal", "degree": 3}]}
BY_CHAINS = {"reconstruct": {"method": "maxent", "implied": "chains"}}  # as the loop itself believes
OWN = TRIPLES | BY_CHAINS | {"mechanism": {"name": "aim-grem"}}
PUBLISHED = TRIPLES | {"mechanism": {"name": "aim-grem", "published": True}}
CUMULATED = OWN | {"workload": [{"family": "prefix", "degree": 2}, {"family": "range", "attributes": [["c"]]}]}
SEEDED = {"scheduler": "synchronous", "seed": 5}
either = pytest.mark.parametrize("changes", [OWN, PUBLISHED], ids=["own", "published"])


def release_bytes(run_dir):
    """Return the bytes of measurements, decisions and answers by file name."""
    rounds = {path.name: path.read_bytes() for path in sorted((run_dir / "measurements").glob("*.json"))}
    return measurements(run_dir) | rounds | answers(run_dir)


def ledger_releases(place):
    with Ledger.open(place / "ledger.sqlite") as ledger:
        return ledger.summary("small")["datasets"]["small"]["releases"]


def exact_marginal(names):
    shape = [SIZES[name] for name in names]
    if not names:
        return np.array(len(frame()))
    cells = np.ravel_multi_index(frame()[list(names)].to_numpy().T, shape)
    return np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape)


@pytest.fixture(scope="module", params=[OWN, PUBLISHED, CUMULATED], ids=["own", "published", "cumulated"])
def reference(request, tmp_path_factory):
    """An uninterrupted synchronous run of at least two rounds, with its job settings and the bytes of its release."""
    place = tmp_path_factory.mktemp("adaptive")
    changes = request.param | {"privacy": {"rho": 0.5, "dataset": "small"}}
    release = dp.run(write(place, **changes), place / "whole")
    return place, changes, release_bytes(release.path)


def test_adaptive_job_equals_plain_loop(reference):
    """The job gives the same marginals, bit by bit, as the selection loop without Dask and files."""
    place, _, _ = reference
    directory = open_part(place / "whole")
    manifest = directory.manifest
    head = {"release": manifest["release"], "snapshot": manifest["snapshot"], "domain": directory.domain.digest}
    state = run(directory.measurement_plan, exact_marginal, seeded_secret(5), head)
    released = dp.Release.open(place / "whole")
    assert len(state.rounds) >= 2
    for names in (("a", "b", "c"), ("b", "c"), ("a",)):
        assert released.marginal(names).tobytes() == state.marginal(names).tobytes()
    trace = pq.read_table(place / "whole/trace.parquet").to_pylist()
    assert [tuple(row["attributes"]) for row in trace] == [names for note in state.rounds for names in note.chosen]
    assert math.fsum(row["privacy_cost"] for row in trace) < 1


@pytest.mark.parametrize(
    "settings",
    [{"scheduler": "threads"}, pytest.param({"scheduler": "processes"}, marks=pytest.mark.slow), {"memory": "40kB"}],
)
def test_scheduler_and_memory_give_same_bytes(reference, tmp_path, settings):
    """With 40 kB no counts are cached, and candidates are counted again in every round."""
    place, changes, expected = reference
    job = write(place, f"{next(iter(settings.values()))}.toml", **changes, engine=SEEDED | settings)
    assert release_bytes(dp.run(job, tmp_path / "run").path) == expected


def test_charge_is_twice_rho_and_equals_recorded_spending(reference):
    """The ledger row and the decisions of all rounds add up to a Gaussian cost of exactly 2 rho."""
    place, _, _ = reference
    [row] = ledger_releases(place)
    assert (Fraction(row["cost"]["gaussian"]), row["state"]) == (1, "released")
    decisions = [json.loads(path.read_text()) for path in sorted((place / "whole/measurements").glob("*.json"))]
    chosen = sum(Fraction(one["beta"]) + bool(names) * Fraction(one["step"])
                 for one in decisions for names in one["chosen"])  # fmt: skip
    assert chosen + open_part(place / "whole").measurement_plan.first_decision().spent == 1


@pytest.mark.parametrize("cost", [{"epsilon": 1.0, "delta": 1e-9}, {"rho": 0.1}, {"privacy_cost": 0.2}])
def test_cap_equal_to_job_cost_admits_one_run(tmp_path, cost):
    job = write(tmp_path, **OWN, privacy=cost | {"dataset": "small"}, engine={"scheduler": "synchronous"})
    mu = math.sqrt(Job.read(job).privacy.budget.amount)
    epsilon, delta = (
        cost.get("epsilon", dp.privacy.epsilon_of_mu(mu, 1e-6) * (1 + 1e-9)),
        cost.get("delta", 1e-6),
    )
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_cap("small", epsilon, delta)
    dp.run(job, tmp_path / "one")
    with pytest.raises(dp.BudgetError):
        dp.run(job, tmp_path / "two")
    assert not measurements(tmp_path / "two")


def crash_at(monkeypatch, times, module, name):
    """Raise KeyboardInterrupt after the given number of calls of a function."""
    left, real = [times], getattr(module, name)

    def crash(*arguments, **settings):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt(name)
        return real(*arguments, **settings)

    monkeypatch.setattr(module, name, crash)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("module", "name", "times"),
    [(measurement, "write_values", n) for n in (0, 1, 3, 4)]
    + [(decisions, "create", n) for n in (0, 1)]
    + [(measure, "select_candidates", 1), (parts, "publish", 0)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_interrupted_run_resumes_with_same_bytes_and_one_charge(reference, tmp_path, monkeypatch, module, name, times):
    place, changes, expected = reference
    job = write(place, "again.toml", **changes)
    (place / "ledger.sqlite").unlink(missing_ok=True)  # the release id of a seeded run follows the job
    with monkeypatch.context() as patch:
        crash_at(patch, times, module, name)
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, tmp_path / "run")
    chosen = {path.name: path.read_bytes() for path in (tmp_path / "run/measurements").glob("round-*.json")}
    found = release_bytes(dp.run(job, tmp_path / "run").path)
    assert found == expected
    assert all(found[name] == content for name, content in chosen.items())
    [row] = ledger_releases(place)
    assert row["state"] == "released"


@pytest.mark.parametrize("own", [OWN, CUMULATED], ids=["own", "cumulated"])
def test_one_way_rounds_are_charged_once_and_survive_kill(tmp_path, monkeypatch, own):
    """At a budget too small for pairs, some rounds measure 1-way marginals again: the charge is made once, and the
    bytes equal those of the plain loop, in little memory and after a kill.
    """
    monkeypatch.setattr(aim_grem, "BatchedSchedule", partial(BatchedSchedule, patience=100))  # every round is in vain
    changes = own | {"mechanism": {"name": "aim-grem"}, "privacy": {"rho": 0.00390625, "dataset": "small"}}
    whole = dp.run(write(tmp_path, **changes), tmp_path / "whole")
    expected, measurement_plan = release_bytes(whole.path), open_part(whole.path).measurement_plan
    rounds = [json.loads(path.read_text()) for path in sorted((whole.path / "measurements").glob("round-*.json"))]
    again = [one["round"] for one in rounds if one["beta"] == "0"]
    assert again
    assert all(len(names) == 1 for one in rounds if one["round"] in again for names in one["chosen"])
    spent_by = sum(Fraction(one["beta"]) + bool(names) * Fraction(one["step"])
                   for one in rounds for names in one["chosen"])  # fmt: skip
    assert spent_by + measurement_plan.first_decision().spent == Fraction(1, 128)
    manifest = open_part(whole.path).manifest
    head = {
        "release": manifest["release"],
        "snapshot": manifest["snapshot"],
        "domain": open_part(whole.path).domain.digest,
    }
    state = run(measurement_plan, exact_marginal, seeded_secret(5), head)
    assert whole.marginal(("a", "b")).tobytes() == state.marginal(("a", "b")).tobytes()
    before = sum(bool(names) for one in rounds if one["round"] < again[0] for names in one["chosen"])
    (tmp_path / "ledger.sqlite").unlink()
    job = write(tmp_path, "again.toml", **changes, engine=SEEDED | {"memory": "40kB"})
    with monkeypatch.context() as patch:
        crash_at(patch, len(SIZES) + before + 1, measurement, "write_values")
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, tmp_path / "run")
    assert release_bytes(dp.run(job, tmp_path / "run").path) == expected
    assert len(ledger_releases(tmp_path)) == 1


@pytest.mark.parametrize("way", ["a copy", "a decision taken out"])
def test_recorded_round_is_not_decided_again(tmp_path, monkeypatch, way):
    """The ledger refuses another decision of a recorded round, in a copy of the run directory or after the decision
    file was deleted. The planted decision is one of a machine with other floating-point results.
    """
    job = write(tmp_path, **OWN, privacy={"rho": 0.5, "dataset": "small"})
    with monkeypatch.context() as patch:
        crash_at(patch, len(SIZES), measurement, "write_values")
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    decision = tmp_path / "other/measurements/round-001.json"
    decision.unlink()
    if way == "a copy":
        dp.run(job, tmp_path / "run")
    before = measurements(tmp_path / "other")
    real = MeasurementStore.record_decision
    with monkeypatch.context() as patch:
        patch.setattr(MeasurementStore, "record_decision", lambda rounds, own: real(
            rounds, replace(own, chosen=own.chosen[1:], requests=())
        ))  # fmt: skip
        with refused(dp.BudgetError):
            dp.run(job, tmp_path / "other")
    assert measurements(tmp_path / "other") == before


def test_empty_round_is_recorded_after_kill(tmp_path, monkeypatch):
    """A round without measurements, killed before its ledger record, is recorded on resume, and the ledger then refuses
    another decision of that round.
    """
    job = write(tmp_path, **OWN, privacy={"rho": 0.5, "dataset": "small"})
    with monkeypatch.context() as patch:
        patch.setattr(measure, "select_candidates", lambda selection, *others: ((),) * selection.count)
        crash_at(patch, 1, Journal, "record")
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, tmp_path / "run")
    assert json.loads((tmp_path / "run/measurements/round-001.json").read_text())["orders"] == []
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    (tmp_path / "other/measurements/round-001.json").unlink()
    dp.run(job, tmp_path / "run")
    assert audit_run(tmp_path / "run", tmp_path / "ledger.sqlite").faults == ()
    with monkeypatch.context() as patch:
        patch.setattr(measure, "select_candidates", lambda selection, *others: selection.candidates[: selection.count])
        with refused(dp.BudgetError):
            dp.run(job, tmp_path / "other")


def increase_variances(record):
    return record | {"orders": [[rank, names, m, str(int(v) + 1)] for rank, names, m, v in record["orders"]]}


@pytest.mark.parametrize(
    "edit",
    [
        lambda record: record | {"step": str(100 * Fraction(record["step"]))},
        lambda record: record | {"beta": "0" if record["beta"] != "0" else "1/1000"},  # of 1-ways it is 0
        lambda record: record | {"beta": "1/0"},
        lambda record: {key: value for key, value in record.items() if key != "seal"},
        increase_variances,
    ],
    ids=["step", "free selections", "no number", "unsealed", "another variance"],
)
def test_edited_decision_is_refused(tmp_path, monkeypatch, edit):
    job = interrupt(tmp_path, monkeypatch, 4, measurement, "write_values")
    path = sorted((tmp_path / "run/measurements").glob("round-*.json"))[-1]
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    before = measurements(tmp_path / "run")
    with refused(dp.JobError):
        dp.run(job, tmp_path / "run")
    assert measurements(tmp_path / "run") == before


def cut_bytes(path):
    path.write_bytes(path.read_bytes()[:100])


def cut_rows(path):
    table = pq.read_table(path)
    pq.write_table(table.slice(0, table.num_rows - 1), path)


def make_folder(path):
    path.unlink()
    path.mkdir()


def add_longer(path):
    """Write the same values under the name of a span that ends past the round, beside them."""
    first, end = path.stem.rsplit("-", 1)
    shutil.copy(path, path.with_stem(f"{first}-{int(end) + 50:08d}"))


def interrupt(tmp_path, monkeypatch, times, module, name):
    """Run a job until it has called a function this many times, and return the job file."""
    job = write(tmp_path, **OWN)
    with monkeypatch.context() as patch:
        crash_at(patch, times, module, name)
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, tmp_path / "run")
    return job


@pytest.mark.parametrize("damage", [cut_bytes, cut_rows, make_folder, add_longer])
def test_run_with_damaged_values_can_be_ended(tmp_path, monkeypatch, damage):
    """The noise key is destroyed; a longer file with the right values at their places is no damage."""
    interrupt(tmp_path, monkeypatch, 0, parts, "publish")
    damage(sorted((tmp_path / "run/measurements").glob("002-*.parquet"))[0])
    found = open_part(tmp_path / "run")
    assert found.secret_path.exists()
    if damage is not add_longer:
        with refused(dp.JobError):
            found.measurements.replay()
    end(found)
    assert not open_part(tmp_path / "run").secret_path.exists()


def test_cached_decisions_do_not_contain_the_noise_key(tmp_path, monkeypatch):
    interrupt(tmp_path, monkeypatch, 0, parts, "publish")
    found = open_part(tmp_path / "run")
    secret, store = found.read_matching_key(), found.measurements
    assert len(list(store.decisions())) > 1
    assert not any(secret in key for key, _ in store._parsed.values())
    assert not any(secret.hex() in key for key, _ in store._parsed.values())


def test_decision_that_is_edited_after_it_was_cached_is_refused(tmp_path, monkeypatch):
    interrupt(tmp_path, monkeypatch, 0, parts, "publish")
    store = open_part(tmp_path / "run").measurements
    assert [one.round for one in store.decisions()][-1] > 0
    path = tmp_path / "run/measurements/round-001.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"step": str(100 * Fraction(record["step"]))}))
    with refused(dp.JobError):
        list(store.decisions())


def test_first_decision_of_round_wins(tmp_path, monkeypatch):
    """A second driver, whose floating-point results would give another choice, measures the decision that is already
    on disk.
    """
    job = write(tmp_path, **OWN, privacy={"rho": 0.5, "dataset": "small"})
    first = dp.run(job, tmp_path / "first")
    (tmp_path / "ledger.sqlite").unlink()
    real = MeasurementStore.record_decision

    def record_late(rounds, decision):
        if decision.round == 1:  # the other driver was here meanwhile
            for source in (first.path / "measurements").glob("round-001.json"):
                shutil.copy(source, rounds.folder)
            decision = replace(decision, chosen=(("b", "c"),))
        return real(rounds, decision)

    monkeypatch.setattr(MeasurementStore, "record_decision", record_late)
    assert release_bytes(dp.run(job, tmp_path / "second").path) == release_bytes(first.path)


def replace_value_groups(patch):
    """Replace the grouping of values, as on a machine with other floating-point results."""
    for estimator in (EntropyEstimator, GremEstimator):
        patch.setattr(estimator, "groups", lambda own, counts, deviation, runs: {
            name: by_mass(np.arange(1.0, 1 + len(record.values)), 4.0) for name, record in counts.items()
        })  # fmt: skip


def test_resumed_run_uses_recorded_groups(reference, tmp_path, monkeypatch):
    """A run resumed on a machine that would choose other groups uses the groups in its decision files."""
    place, changes, expected = reference
    (place / "ledger.sqlite").unlink(missing_ok=True)
    job = write(place, "again.toml", **changes)
    with monkeypatch.context() as patch:
        crash_at(patch, len(SIZES) + 1, measurement, "write_values")
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, tmp_path / "run")
    assert (tmp_path / "run/measurements/round-001.json").exists()
    replace_value_groups(monkeypatch)
    assert release_bytes(dp.run(job, tmp_path / "run").path) == expected


def test_decision_with_other_groups_is_not_measured_from_local_shards(tmp_path, monkeypatch):
    job = write(tmp_path, **OWN, privacy={"rho": 0.5, "dataset": "small"})
    first = dp.run(job, tmp_path / "first")
    (tmp_path / "ledger.sqlite").unlink()
    real = MeasurementStore.record_decision

    def record_late(rounds, decision):
        if decision.round == 1:
            shutil.copy(first.path / "measurements/round-001.json", rounds.folder)
        return real(rounds, decision)

    with monkeypatch.context() as patch:
        patch.setattr(MeasurementStore, "record_decision", record_late)
        replace_value_groups(patch)
        with refused(dp.TransientError):
            dp.run(job, tmp_path / "second")
    assert release_bytes(dp.run(job, tmp_path / "second").path) == release_bytes(first.path)


def test_directories_are_flushed_before_secret_is_destroyed(tmp_path, monkeypatch):
    """Partial files of a killed process are deleted too."""
    run = begin_table(Job.read(write(tmp_path, **OWN)), tmp_path / "run")
    (tmp_path / "run/measurements").mkdir()
    (tmp_path / "run/measurements/.killed.parquet.0.partial").write_bytes(b"ha")
    done = []
    for module, name in ((charge, "flush_names"), (runs, "destroy_secret")):
        real = getattr(module, name)
        monkeypatch.setattr(module, name, lambda path, real=real: (done.append(path.name), real(path)))
    dp.run(run.path / "job.toml", run.path)
    assert done[:3] == ["measurements", "run", "secret.key"]
    assert not list(run.path.rglob("*.partial"))


@either
def test_answers_cover_all_families_and_have_no_standard_errors_on_request(tmp_path, plots, changes):
    parts = [
        {"family": "prefix", "degree": 2},
        {"family": "marginal", "attributes": [["a"], ["a", "b", "c"]], "weight": [1.0, 7.5]},
        {"family": "abs", "attributes": [["a", "c"]]},
    ]
    none = {"reconstruct": {"errors": "none"}} if changes == OWN else {}
    release = dp.run(
        write(tmp_path, **(changes | none | {"workload": parts}), privacy={"rho": 200.0, "allow_weak_privacy": True}),
        tmp_path / "run",
    )
    index = index_of(release.path)
    assert len(index) == 6
    for row in index:
        table = answers_to(release.path, row)
        assert np.isfinite(table["estimate"].to_numpy()).all()
        assert np.isnan(table["std_error"].to_numpy()).all()
        assert row["rms_error"] is None
    prefix = release.marginal(("a", "b")).cumsum(0).cumsum(1)
    np.testing.assert_allclose(prefix, exact_marginal(("a", "b")).cumsum(0).cumsum(1), atol=20)
    estimate, error = release.answer(("a",), query=np.ones(4))
    assert estimate == pytest.approx(400, abs=5)
    assert math.isnan(error)
    page = (release.path / "report.html").read_text()
    assert "No standard errors are available" in page
    assert "Every answer is unbiased" not in page


def test_run_of_older_version_is_not_resumed(tmp_path, monkeypatch):
    """The older version divided 1-way marginals otherwise, so its values would be misread."""
    job = write(tmp_path, **OWN)
    with monkeypatch.context() as patch:
        crash_at(patch, 4, measurement, "write_values")
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, tmp_path / "run")
    [plan] = (tmp_path / "run").rglob("plan.json")
    plan.write_text(plan.read_text().replace(VERSION, "aim-grem/3"))
    before = measurements(tmp_path / "run")
    with refused(dp.JobError):
        dp.run(job, tmp_path / "run")
    assert measurements(tmp_path / "run") == before


def test_grem_non_negative_keeps_cells_above_zero(tmp_path):
    """GReM-LNN over the workload, from the measurements of the published mechanism, is also closer to the exact
    counts.
    """
    parts = [{"family": "marginal", "degree": 2}]
    privacy = {"rho": 2e-6, "dataset": "small"}  # noise of thousands of records, on 400
    pairs, missed = list(combinations(SIZES, 2)), {False: 0.0, True: 0.0}
    for seed, non_negative in product(range(1, 13), (False, True)):
        job = write(tmp_path, f"{seed}{non_negative}.toml", **PUBLISHED | {"workload": parts}, privacy=privacy,
                    engine=SEEDED | {"seed": seed},
                    reconstruct={"method": "grem", "non_negative": non_negative})  # fmt: skip
        made = dp.run(job, tmp_path / f"{seed}{non_negative}")
        assert (min(made.marginal(names).min() for names in pairs) > -1) == non_negative
        missed[non_negative] += sum(np.abs(made.marginal(names) - exact_marginal(names)).sum() for names in pairs)
    assert missed[True] < missed[False]
    assert made.marginal(("a", "b")).tobytes() == dp.Release.open(made.path).marginal(("a", "b")).tobytes()


def test_maxent_from_planned_measurements(tmp_path):
    """Maximum entropy gives positive cells where least squares gives negative ones, from the same measurements, with
    smaller total error.
    """
    least = dp.run(write(tmp_path, workload=OWN["workload"], privacy={"rho": 0.01}), tmp_path / "least")
    job = write(
        tmp_path, "maxent.toml", workload=OWN["workload"], privacy={"rho": 0.01}, reconstruct={"method": "maxent"}
    )
    most = dp.run(job, tmp_path / "maxent")
    assert least.marginal(tuple(SIZES)).min() < 0 < most.marginal(tuple(SIZES)).min()
    errors = [np.abs(one.marginal(tuple(SIZES)) - exact_marginal(tuple(SIZES))).sum() for one in (least, most)]
    assert errors[1] < 0.8 * errors[0]
    assert least.answer(("a",), query=[1, 0, 0, 0])[1] > 0
    assert math.isnan(most.answer(("a",), query=[1, 0, 0, 0])[1])


def test_errors_by_default_cover_all_queries_and_are_labelled(tmp_path):
    parts = [{"family": "marginal", "degree": 2}, {"family": "prefix", "attributes": [["a", "b"]]},
             {"family": "affine", "attributes": [["b", "c"]]}]  # fmt: skip
    job = write(tmp_path, mechanism=OWN["mechanism"], workload=parts)
    release = dp.run(job, tmp_path / "run")
    for row in index_of(release.path):
        table = answers_to(release.path, row)
        assert np.isfinite(table["std_error"].to_numpy()).all()
        assert row["rms_error"] > 0
    assert release.answer(("a", "c"), query=np.tri(4, 5))[1] > 0
    one, all_of_them = (release.table(("a", "b"), joint=joint, level=0.9) for joint in (False, True))
    widths = [(frame["high"] - frame["low"]) / frame["std_error"] / 2 for frame in (one, all_of_them)]
    assert widths[0].median() == pytest.approx(1.645, abs=1e-3)
    assert (widths[1] > NormalDist().inv_cdf(1 - 0.1 / (2 * len(one)))).all()
    page = (release.path / "report.html").read_text()
    assert "approximate, by simulation" in page
    assert "Every answer is unbiased" not in page
    again = dp.run(job, tmp_path / "again")
    assert answers(again.path) == answers(release.path)
    assert again.answer(("a", "c"), query=np.tri(4, 5)) == release.answer(("a", "c"), query=np.tri(4, 5))


def test_agree_makes_target_marginals_consistent(tmp_path):
    parts = [{"family": "marginal", "attributes": [["a", "b"], ["b", "c"], ["a", "b", "c"], ["b"]]}]
    privacy = {"rho": 0.01, "dataset": "small"}
    loose = dp.run(write(tmp_path, workload=parts, mechanism=OWN["mechanism"], privacy=privacy), tmp_path / "loose")
    tight = dp.run(
        write(tmp_path, "tight.toml", workload=parts, mechanism=OWN["mechanism"], privacy=privacy,
              reconstruct={"agree": True}), tmp_path / "tight",
    )  # fmt: skip
    np.testing.assert_allclose(tight.marginal(("a", "b", "c")).sum(2), tight.marginal(("a", "b")), rtol=1e-5)
    np.testing.assert_allclose(tight.marginal(("a", "b")).sum(0), tight.marginal(("b",)), rtol=1e-5)
    assert "Sets are estimated separately" in (loose.path / "report.html").read_text()
    assert "Sets are estimated separately" not in (tight.path / "report.html").read_text()


def test_single_attribute_and_tiny_budget(tmp_path):
    one = dp.run(
        write(tmp_path, **(OWN | {"workload": [{"family": "marginal", "attributes": [["b"]]}]})), tmp_path / "one"
    )
    assert pq.read_table(one.path / "trace.parquet").num_rows == 0
    job = write(tmp_path, "poor.toml", **OWN, privacy={"rho": 1e-12})
    poor = dp.run(job, tmp_path / "poor")
    assert np.isfinite(poor.marginal(("a", "b", "c"))).all()
    for names in combinations(SIZES, 2):
        assert (poor.marginal(names) >= 0).all()


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"mechanism": {"name": "aim-grem", "round": 3}}, ["mechanism.round", "rounds"]),
        ({"mechanism": {"name": "aim-grem", "rounds": 0}}, ["mechanism.rounds", "1 to 10000"]),
        ({"mechanism": {"name": "aim-grem", "degree": 7}}, ["mechanism.degree", "2 to 6"]),
        ({"mechanism": {"name": "aim-grem", "published": 1}}, ["mechanism.published", "true or false"]),
        ({"mechanism": {"name": "aim-grem", "published": True, "rounds": 3}}, ["mechanism.rounds", "leave it out"]),
        ({"privacy": {"epsilon": 1.0}}, ["privacy", "add delta"]),
        ({"reconstruct": {"method": "least-squares"}}, ["reconstruct.method", "maxent"]),
        ({"reconstruct": {"method": "grem"}}, ["reconstruct.method", "published"]),
        ({"reconstruct": {"errors": "simulated"}} | PUBLISHED, ["reconstruct.errors", "maxent"]),
        ({"reconstruct": {"agree": True}} | PUBLISHED, ["reconstruct.agree", "maxent"]),
        ({"engine": {"memory": "1kB"}}, ["engine.memory", "500 bytes"]),
        ({"workload": [{"family": "marginal", "degree": 3, "weight": 0.0}]}, ["workload.weight", "above 0"]),
    ],
)
def test_invalid_job_is_refused_without_charge(tmp_path, changes, parts):
    with pytest.raises(dp.DpscaleError) as caught:
        dp.run(write(tmp_path, **(OWN | changes)), tmp_path / "run")
    assert caught.value.exit_code == 2
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert not measurements(tmp_path / "run")
    assert not (tmp_path / "ledger.sqlite").exists() or not ledger_datasets(tmp_path)


def ledger_datasets(place):
    with Ledger.open(place / "ledger.sqlite") as ledger:
        return ledger.summary()["datasets"]


def test_candidates_of_full_marginal_are_pairs():
    """The 2^40 subsets of 40 attributes are not enumerated; rounds offer the pairs, and sets of three are laws."""
    sizes = {f"x{i}": 3 for i in range(40)}
    setting = Setting(sizes, (tuple(sizes),), Fraction(1))
    assert (len(setting.round_candidates), len(setting.candidates)) == (780, 780 + 9880)
