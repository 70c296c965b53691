"""Adaptive jobs: real files, real ledger; killed anywhere, on any scheduler, the same bytes and one charge."""

import json
import math
import shutil
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, product
from statistics import NormalDist

import numpy as np
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.audit.composition import audit_run
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.measurement import MeasurementStore, measurement, measurement_store
from dpscale.measurement.adaptive import run
from dpscale.mechanisms.aim.decision import VERSION
from dpscale.mechanisms.aim.estimators import EntropyEstimator, GremEstimator
from dpscale.mechanisms.aim.setting import Setting
from dpscale.privacy.streams import seeded_secret
from dpscale.runs.run import Run
from dpscale.runs.stages import budget, measure
from dpscale.workload.residual.in_axis import by_mass
from tests.answered import answers_to, index_of
from tests.audit.small import SIZES, answers, frame, measurements, write

TRIPLES = {"workload": [{"family": "marginal", "degree": 3}]}
BY_CHAINS = {"reconstruct": {"method": "maxent", "implied": "chains"}}  # as the loop itself believes
OWN = TRIPLES | BY_CHAINS | {"mechanism": {"name": "aim-grem"}}
PUBLISHED = TRIPLES | {"mechanism": {"name": "aim-grem", "published": True}}
CUMULATED = OWN | {"workload": [{"family": "prefix", "degree": 2}, {"family": "range", "attributes": [["c"]]}]}
SEEDED = {"scheduler": "synchronous", "seed": 5}
either = pytest.mark.parametrize("changes", [OWN, PUBLISHED], ids=["own", "published"])


def everything(run_dir):
    """All that a release is: measurements, decisions, answers."""
    rounds = {path.name: path.read_bytes() for path in sorted((run_dir / "measurements").glob("*.json"))}
    return measurements(run_dir) | rounds | answers(run_dir)


def spent(place):
    with Ledger.open(place / "ledger.sqlite") as ledger:
        return ledger.summary("small")["datasets"]["small"]["releases"]


def exact(names):
    shape = [SIZES[name] for name in names]
    if not names:
        return np.array(len(frame()))
    cells = np.ravel_multi_index(frame()[list(names)].to_numpy().T, shape)
    return np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape)


@pytest.fixture(scope="module", params=[OWN, PUBLISHED, CUMULATED], ids=["own", "published", "cumulated"])
def reference(request, tmp_path_factory):
    """A run of two rounds or more, synchronously, that nobody disturbed."""
    place = tmp_path_factory.mktemp("adaptive")
    changes = request.param | {"privacy": {"rho": 0.5, "dataset": "small"}}
    release = dp.run(write(place, **changes), place / "whole")
    return place, changes, everything(release.path)


def test_a_job_draws_what_the_plain_loop_draws(reference):
    """No Dask, no files: the same marginals, bit by bit."""
    place, _, _ = reference
    directory = Run(place / "whole")
    manifest = directory.manifest
    head = {"release": manifest["release"], "snapshot": manifest["snapshot"], "domain": directory.domain.digest}
    state = run(directory.measurement_plan, exact, seeded_secret(5), head)
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
def test_where_it_runs_and_in_how_much_memory_changes_no_byte(reference, tmp_path, settings):
    """In 40 kB nothing is held: candidates are counted again in every round."""
    place, changes, expected = reference
    job = write(place, f"{next(iter(settings.values()))}.toml", **changes, engine=SEEDED | settings)
    assert everything(dp.run(job, tmp_path / "run").path) == expected


def test_the_charge_is_twice_rho_exactly_and_before_the_first_draw(reference):
    place, _, _ = reference
    [row] = spent(place)
    assert (Fraction(row["cost"]["gaussian"]), row["state"]) == (1, "released")
    decisions = [json.loads(path.read_text()) for path in sorted((place / "whole/measurements").glob("*.json"))]
    chosen = sum(Fraction(one["beta"]) + bool(names) * Fraction(one["step"])
                 for one in decisions for names in one["chosen"])  # fmt: skip
    assert chosen + Run(place / "whole").measurement_plan.first_decision().spent == 1


@pytest.mark.parametrize("cost", [{"epsilon": 1.0, "delta": 1e-9}, {"rho": 0.1}, {"privacy_cost": 0.2}])
def test_a_cap_of_the_jobs_own_size_admits_it_once(tmp_path, cost):
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
    """Stop as a kill would, at the n-th time that a function is called."""
    left, real = [times], getattr(module, name)

    def crash(*arguments, **settings):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt(name)
        return real(*arguments, **settings)

    monkeypatch.setattr(module, name, crash)


@pytest.mark.parametrize(
    ("module", "name", "times"),
    [(measurement, "write_values", n) for n in (0, 1, 3, 4)]
    + [(measurement_store, "create", n) for n in (0, 1)]
    + [(measure, "select_candidates", 1), (measure, "publish", 0)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_stopped_anywhere_it_goes_on_and_spends_once(reference, tmp_path, monkeypatch, module, name, times):
    place, changes, expected = reference
    job = write(place, "again.toml", **changes)
    (place / "ledger.sqlite").unlink(missing_ok=True)  # the release id of a seeded run follows the job
    with monkeypatch.context() as patch:
        crash_at(patch, times, module, name)
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, tmp_path / "run")
    chosen = {path.name: path.read_bytes() for path in (tmp_path / "run/measurements").glob("round-*.json")}
    found = everything(dp.run(job, tmp_path / "run").path)
    assert found == expected
    assert all(found[name] == kept for name, kept in chosen.items())
    [row] = spent(place)
    assert row["state"] == "released"


@pytest.mark.parametrize("own", [OWN, CUMULATED], ids=["own", "cumulated"])
def test_rounds_that_go_back_to_the_1_ways(tmp_path, monkeypatch, own):
    """At a budget that pairs are lost in: charged once, the bytes of the plain loop, in little memory, after a kill."""
    vainly = {"mechanism": {"name": "aim-grem", "patience": 100}}  # every round is one in vain
    changes = own | vainly | {"privacy": {"rho": 0.00390625, "dataset": "small"}}
    whole = dp.run(write(tmp_path, **changes), tmp_path / "whole")
    expected, measurement_plan = everything(whole.path), Run(whole.path).measurement_plan
    rounds = [json.loads(path.read_text()) for path in sorted((whole.path / "measurements").glob("round-*.json"))]
    again = [one["round"] for one in rounds if one["beta"] == "0"]
    assert again
    assert all(len(names) == 1 for one in rounds if one["round"] in again for names in one["chosen"])
    spent_by = sum(Fraction(one["beta"]) + bool(names) * Fraction(one["step"])
                   for one in rounds for names in one["chosen"])  # fmt: skip
    assert spent_by + measurement_plan.first_decision().spent == Fraction(1, 128)
    manifest = Run(whole.path).manifest
    head = {"release": manifest["release"], "snapshot": manifest["snapshot"], "domain": Run(whole.path).domain.digest}
    state = run(measurement_plan, exact, seeded_secret(5), head)
    assert whole.marginal(("a", "b")).tobytes() == state.marginal(("a", "b")).tobytes()
    before = sum(bool(names) for one in rounds if one["round"] < again[0] for names in one["chosen"])
    (tmp_path / "ledger.sqlite").unlink()
    job = write(tmp_path, "again.toml", **changes, engine=SEEDED | {"memory": "40kB"})
    with monkeypatch.context() as patch:
        crash_at(patch, len(SIZES) + before + 1, measurement, "write_values")
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, tmp_path / "run")
    assert everything(dp.run(job, tmp_path / "run").path) == expected
    assert len(spent(tmp_path)) == 1


@pytest.mark.parametrize("way", ["a copy", "a decision taken out"])
def test_a_round_that_the_ledger_knows_is_not_decided_again(tmp_path, monkeypatch, way):
    """A directory copied in the middle of a run, or robbed of its decision, on a machine whose floats differ."""
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
        with pytest.raises(dp.BudgetError, match="has another decision of round 1"):
            dp.run(job, tmp_path / "other")
    assert measurements(tmp_path / "other") == before


def test_a_round_of_nothing_that_was_killed_before_the_ledger_knew_it(tmp_path, monkeypatch):
    """Nothing of it is missing, since it measures nothing: the ledger is told of it, and holds others to it."""
    job = write(tmp_path, **OWN, privacy={"rho": 0.5, "dataset": "small"})
    with monkeypatch.context() as patch:
        patch.setattr(measure, "select_candidates", lambda selection, *others: ((),) * selection.count)
        crash_at(patch, 1, measure, "record_decision")
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, tmp_path / "run")
    assert json.loads((tmp_path / "run/measurements/round-001.json").read_text())["orders"] == []
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    (tmp_path / "other/measurements/round-001.json").unlink()
    dp.run(job, tmp_path / "run")
    assert audit_run(tmp_path / "run", tmp_path / "ledger.sqlite").faults == ()
    with monkeypatch.context() as patch:
        patch.setattr(measure, "select_candidates", lambda selection, *others: selection.candidates[: selection.count])
        with pytest.raises(dp.BudgetError, match="has another decision of round 1"):
            dp.run(job, tmp_path / "other")


def finer(told):
    return told | {"orders": [[rank, names, m, str(int(v) + 1)] for rank, names, m, v in told["orders"]]}


@pytest.mark.parametrize(
    "edit",
    [
        lambda told: told | {"step": str(100 * Fraction(told["step"]))},
        lambda told: told | {"beta": "0" if told["beta"] != "0" else "1/1000"},  # of 1-ways it is 0
        lambda told: told | {"beta": "1/0"},
        lambda told: {key: value for key, value in told.items() if key != "seal"},
        finer,
    ],
    ids=["step", "free selections", "no number", "unsealed", "another variance"],
)
def test_a_decision_that_was_edited_is_refused(tmp_path, monkeypatch, edit):
    job = write(tmp_path, **OWN)
    with monkeypatch.context() as patch:
        crash_at(patch, 4, measurement, "write_values")
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, tmp_path / "run")
    path = sorted((tmp_path / "run/measurements").glob("round-*.json"))[-1]
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    before = measurements(tmp_path / "run")
    with pytest.raises(dp.JobError, match=path.name):
        dp.run(job, tmp_path / "run")
    assert measurements(tmp_path / "run") == before


def test_of_two_decisions_of_a_round_the_first_holds(tmp_path, monkeypatch):
    """A second driver, on a machine whose floats differ, would choose otherwise: it measures what stands there."""
    job = write(tmp_path, **OWN, privacy={"rho": 0.5, "dataset": "small"})
    first = dp.run(job, tmp_path / "first")
    (tmp_path / "ledger.sqlite").unlink()
    real = MeasurementStore.record_decision

    def late(rounds, decision):
        if decision.round == 1:  # the other driver was here meanwhile
            for kept in (first.path / "measurements").glob("round-001.json"):
                shutil.copy(kept, rounds.folder)
            decision = replace(decision, chosen=(("b", "c"),))
        return real(rounds, decision)

    monkeypatch.setattr(MeasurementStore, "record_decision", late)
    assert everything(dp.run(job, tmp_path / "second").path) == everything(first.path)


def other_groups(patch):
    """As a machine would choose them whose floats differ."""
    for estimator in (EntropyEstimator, GremEstimator):
        patch.setattr(estimator, "groups", lambda own, counts, deviation: {
            name: by_mass(np.arange(1.0, 1 + len(told.values)), 4.0) for name, told in counts.items()
        })  # fmt: skip


def test_groups_are_those_that_stand_written(reference, tmp_path, monkeypatch):
    """A run that was begun on one machine goes on, on another that would have chosen other groups, with its own."""
    place, changes, expected = reference
    (place / "ledger.sqlite").unlink(missing_ok=True)
    job = write(place, "again.toml", **changes)
    with monkeypatch.context() as patch:
        crash_at(patch, len(SIZES) + 1, measurement, "write_values")
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, tmp_path / "run")
    assert (tmp_path / "run/measurements/round-001.json").exists()
    other_groups(monkeypatch)
    assert everything(dp.run(job, tmp_path / "run").path) == expected


def test_a_decision_over_other_groups_is_not_measured_from_these_shards(tmp_path, monkeypatch):
    job = write(tmp_path, **OWN, privacy={"rho": 0.5, "dataset": "small"})
    first = dp.run(job, tmp_path / "first")
    (tmp_path / "ledger.sqlite").unlink()
    real = MeasurementStore.record_decision

    def late(rounds, decision):
        if decision.round == 1:
            shutil.copy(first.path / "measurements/round-001.json", rounds.folder)
        return real(rounds, decision)

    with monkeypatch.context() as patch:
        patch.setattr(MeasurementStore, "record_decision", late)
        other_groups(patch)
        with pytest.raises(dp.TransientError, match=r"another process wrote round-001\.json"):
            dp.run(job, tmp_path / "second")
    assert everything(dp.run(job, tmp_path / "second").path) == everything(first.path)


def test_names_are_on_the_disk_before_the_secret_goes(tmp_path, monkeypatch):
    """And what a killed process left half written is gone."""
    run = Run.create(Job.read(write(tmp_path, **OWN)), tmp_path / "run")
    (tmp_path / "run/measurements").mkdir()
    (tmp_path / "run/measurements/.killed.parquet.0.partial").write_bytes(b"ha")
    done = []
    for name in ("flush_names", "destroy_secret"):
        real = getattr(budget, name)
        monkeypatch.setattr(budget, name, lambda path, real=real: (done.append(path.name), real(path)))
    dp.run(run.path / "job.toml", run.path)
    assert done == ["measurements", "run", "secret.key"]
    assert not list(run.path.rglob("*.partial"))


@either
def test_answers_are_of_every_family_and_tell_no_wrong_error(tmp_path, plots, changes):
    asked = [
        {"family": "prefix", "degree": 2},
        {"family": "marginal", "attributes": [["a"], ["a", "b", "c"]], "weight": [1.0, 7.5]},
        {"family": "abs", "attributes": [["a", "c"]]},
    ]
    release = dp.run(
        write(tmp_path, **(changes | {"workload": asked}), privacy={"rho": 200.0, "allow_weak_privacy": True}),
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
    np.testing.assert_allclose(prefix, exact(("a", "b")).cumsum(0).cumsum(1), atol=20)
    estimate, error = release.answer(("a",), np.ones(4))
    assert estimate == pytest.approx(400, abs=5)
    assert math.isnan(error)
    page = (release.path / "report.html").read_text()
    assert "No standard errors are available" in page
    assert "Every answer is unbiased" not in page


def test_a_run_of_an_older_version_is_not_gone_on_with(tmp_path, monkeypatch):
    """Its 1-ways, shared otherwise, would be read as other numbers."""
    job = write(tmp_path, **OWN)
    with monkeypatch.context() as patch:
        crash_at(patch, 4, measurement, "write_values")
        with pytest.raises(KeyboardInterrupt):
            dp.run(job, tmp_path / "run")
    [plan] = (tmp_path / "run").rglob("plan.json")
    plan.write_text(plan.read_text().replace(VERSION, "aim-grem/3"))
    before = measurements(tmp_path / "run")
    with pytest.raises(dp.JobError, match="start a new run"):
        dp.run(job, tmp_path / "run")
    assert measurements(tmp_path / "run") == before


def test_grem_can_be_kept_from_going_below_zero(tmp_path):
    """GReM-LNN over the asked sets, from the measurements of the published mechanism; nearer to the truth too."""
    asked = [{"family": "marginal", "degree": 2}]
    privacy = {"rho": 2e-6, "dataset": "small"}  # noise of thousands of records, on 400
    pairs, missed = list(combinations(SIZES, 2)), {False: 0.0, True: 0.0}
    for seed, kept in product((1, 2, 3, 4), (False, True)):
        job = write(tmp_path, f"{seed}{kept}.toml", **PUBLISHED | {"workload": asked}, privacy=privacy,
                    engine=SEEDED | {"seed": seed}, reconstruct={"method": "grem", "non_negative": kept})  # fmt: skip
        made = dp.run(job, tmp_path / f"{seed}{kept}")
        assert (min(made.marginal(names).min() for names in pairs) > -1) == kept
        missed[kept] += sum(np.abs(made.marginal(names) - exact(names)).sum() for names in pairs)
    assert missed[True] < missed[False]
    assert made.marginal(("a", "b")).tobytes() == dp.Release.open(made.path).marginal(("a", "b")).tobytes()


def test_maximum_entropy_from_the_measurements_of_a_plan(tmp_path):
    """Non-negative where least squares is not, from the same measurements."""
    least = dp.run(write(tmp_path, workload=OWN["workload"], privacy={"rho": 0.01}), tmp_path / "least")
    job = write(
        tmp_path, "maxent.toml", workload=OWN["workload"], privacy={"rho": 0.01}, reconstruct={"method": "maxent"}
    )
    most = dp.run(job, tmp_path / "maxent")
    assert least.marginal(tuple(SIZES)).min() < 0 < most.marginal(tuple(SIZES)).min()
    errors = [np.abs(one.marginal(tuple(SIZES)) - exact(tuple(SIZES))).sum() for one in (least, most)]
    assert errors[1] < 0.8 * errors[0]
    assert least.answer(("a",), [1, 0, 0, 0])[1] > 0
    assert math.isnan(most.answer(("a",), [1, 0, 0, 0])[1])


def test_simulated_errors_are_told_of_all_queries_and_labelled(tmp_path):
    asked = [{"family": "marginal", "degree": 2}, {"family": "prefix", "attributes": [["a", "b"]]},
             {"family": "affine", "attributes": [["b", "c"]]}]  # fmt: skip
    job = write(tmp_path, mechanism=OWN["mechanism"], workload=asked, reconstruct={"errors": "simulated"})
    release = dp.run(job, tmp_path / "run")
    for row in index_of(release.path):
        table = answers_to(release.path, row)
        assert np.isfinite(table["std_error"].to_numpy()).all()
        assert row["rms_error"] > 0
    assert release.answer(("a", "c"), np.tri(4, 5))[1] > 0
    one, all_of_them = (release.table(("a", "b"), joint=joint, level=0.9) for joint in (False, True))
    widths = [(frame["high"] - frame["low"]) / frame["std_error"] / 2 for frame in (one, all_of_them)]
    assert widths[0].median() == pytest.approx(1.645, abs=1e-3)
    assert (widths[1] > NormalDist().inv_cdf(1 - 0.1 / (2 * len(one)))).all()
    page = (release.path / "report.html").read_text()
    assert "approximate, by simulation" in page
    assert "Every answer is unbiased" not in page
    again = dp.run(job, tmp_path / "again")
    assert answers(again.path) == answers(release.path)
    assert again.answer(("a", "c"), np.tri(4, 5)) == release.answer(("a", "c"), np.tri(4, 5))


def test_targets_can_be_made_to_agree(tmp_path):
    asked = [{"family": "marginal", "attributes": [["a", "b"], ["b", "c"], ["a", "b", "c"], ["b"]]}]
    privacy = {"rho": 0.01, "dataset": "small"}
    loose = dp.run(write(tmp_path, workload=asked, mechanism=OWN["mechanism"], privacy=privacy), tmp_path / "loose")
    tight = dp.run(
        write(tmp_path, "tight.toml", workload=asked, mechanism=OWN["mechanism"], privacy=privacy,
              reconstruct={"agree": True}), tmp_path / "tight",
    )  # fmt: skip
    np.testing.assert_allclose(tight.marginal(("a", "b", "c")).sum(2), tight.marginal(("a", "b")), rtol=1e-5)
    np.testing.assert_allclose(tight.marginal(("a", "b")).sum(0), tight.marginal(("b",)), rtol=1e-5)
    assert "Sets are estimated separately" in (loose.path / "report.html").read_text()
    assert "Sets are estimated separately" not in (tight.path / "report.html").read_text()


def test_one_attribute_and_a_budget_for_nothing(tmp_path):
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
        ({"mechanism": {"name": "aim-grem", "ones": 1.5}}, ["mechanism.ones", "0.99"]),
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
def test_wrong_jobs_are_told_in_one_sentence_and_spend_nothing(tmp_path, changes, parts):
    with pytest.raises(dp.DpscaleError) as caught:
        dp.run(write(tmp_path, **(OWN | changes)), tmp_path / "run")
    assert caught.value.exit_code == 2
    assert all(part in str(caught.value) for part in parts), str(caught.value)
    assert not measurements(tmp_path / "run")
    assert not (tmp_path / "ledger.sqlite").exists() or not spent_any(tmp_path)


def spent_any(place):
    with Ledger.open(place / "ledger.sqlite") as ledger:
        return ledger.summary()["datasets"]


def test_a_plan_beforehand_is_refused_with_the_way_to_go():
    workload = dp.Workload(dp.Domain(SIZES)).add("marginal", degree=2)
    with pytest.raises(dp.JobError, match=r"selects measurements during the run.*dp\.run"):
        dp.plan(workload, mechanism="aim-grem")


def test_a_target_of_everything_has_pairs_as_candidates():
    """2^40 subsets are not listed."""
    sizes = {f"x{i}": 3 for i in range(40)}
    assert len(Setting(sizes, (tuple(sizes),), Fraction(1)).candidates) == 780
