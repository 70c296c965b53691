"""Public structures as priors: families of BIF files, measured before any selection; cost, resumption, evidence."""

import json
from fractions import Fraction

import numpy as np
import pytest

import dpscale as dp
from dpscale.audit.evidence.bundle import write_bundle
from dpscale.audit.evidence.check import check_bundle
from dpscale.job import Job
from dpscale.job.job import families_of_file, job_digest
from dpscale.measurement.adaptive import run
from dpscale.mechanisms import aim_pgm, mst
from dpscale.mechanisms.aim.structure import sets_of
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.privacy.streams import seeded_secret
from dpscale.runs.opening import open_run
from tests.audit.small import write
from tests.measurement.small import SIZES, make_counter, make_records
from tests.messages import refused

COUNTS = make_counter(make_records())
CHAIN = [["a"], ["b", "a"], ["c", "b"], ["d", "c"], ["e", "d"]]
MODULES = {"mst": mst, "aim-pgm": aim_pgm}


def bif(parents, states=("x", "y")):
    """Return a network in the Bayesian Interchange Format with uniform probabilities."""
    lines = ["network public {", "}"]
    for name in parents:
        lines += [f"variable {name} {{", f"  type discrete [ {len(states)} ] {{ {', '.join(states)} }};", "}"]
    for name, own in parents.items():
        share = ", ".join([str(1 / len(states))] * len(states))
        rows = (
            [f"  table {share};"]
            if not own
            else [
                f"  ({', '.join(key)}) {share};"
                for key in np.array(np.meshgrid(*[states] * len(own))).T.reshape(-1, len(own))
            ]
        )
        lines += [f"probability ( {name}{' | ' + ', '.join(own) if own else ''} ) {{", *rows, "}"]
    return "\n".join([*lines, ""])


def plan_of(name, beta=0.1, **options):
    problem = PlanningProblem(dp.Workload(dp.Domain(SIZES)).add("marginal", degree=3), Budget(GAUSSIAN, beta))
    module = MODULES[name]
    return problem, module.plan(problem, module.Options(**options))


@pytest.mark.parametrize("name", MODULES)
def test_families_are_measured_first_and_the_budget_is_spent_exactly(name):
    _, made = plan_of(name, prior=[["b", "a"], ["c", "b"]])
    state = run(made, COUNTS, seeded_secret(3))
    assert state.rounds[0].chosen == (("a", "b"), ("b", "c"))
    assert state.rounds[0].selection_cost == 0
    assert all(note.selection_cost > 0 for note in state.rounds[1:])
    assert state.left == 0
    spent = sum((note.step * len([one for one in note.chosen if one]) for note in state.rounds), Fraction(0))
    assert spent + made.first_decision().spent == made.setting.beta


def test_tree_with_a_prior_is_a_spanning_tree_that_contains_it():
    _, made = plan_of("mst", prior=[["e", "a"], ["d", "a"]])
    pairs = [names for note in run(made, COUNTS, seeded_secret(1)).rounds for names in note.chosen]
    assert pairs[:2] == [("a", "e"), ("a", "d")]
    assert len(pairs) == mst.edges(pairs) == len(SIZES) - 1


def test_whole_tree_as_prior_needs_no_selection():
    _, made = plan_of("mst", prior=CHAIN)
    state = run(made, COUNTS, seeded_secret(2))
    assert [note.chosen for note in state.rounds] == [(("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"))]
    assert state.left == 0


def test_right_structure_improves_the_estimates_of_a_small_budget():
    """Eight seeds: the tree of the true dependences, without selections, against the selected tree."""
    truth = [["b", "a"], ["c", "a"], ["d", "c"], ["e", "d"]]

    def error(seed, **options):
        state = run(plan_of("mst", 0.002, **options)[1], COUNTS, seeded_secret(seed))
        return sum(np.abs(state.marginal(one) - COUNTS(one)).sum() for one in [("a", "b"), ("a", "c"), ("c", "d")])

    with_prior, without = (np.mean([error(seed, **own) for seed in range(8)]) for own in ({"prior": truth}, {}))
    assert with_prior < without


def test_cycles_large_families_and_models_without_room_are_reduced():
    _, made = plan_of("mst", prior=[["c", "a", "b"], ["b", "a"]])
    assert made.setting.prior == (("a", "c"), ("b", "c"))
    setting = plan_of("aim-pgm")[1].setting
    assert sets_of([["c", "a", "b"], ["d"]], setting) == (("a", "b", "c"),)
    assert sets_of([["c", "a", "b", "d"]], setting) == (("a", "c"), ("b", "c"), ("c", "d"))
    _, small = plan_of("aim-pgm", prior=[["c", "a", "e"], ["b", "a"]], most_cells=100)
    state = run(small, COUNTS, seeded_secret(0))
    assert state.rounds[0].chosen in ((("a", "b"),), (("a", "c", "e"), ("a", "b")))
    assert state.left == 0


@pytest.mark.parametrize("name", MODULES)
def test_plan_file_has_the_structure_and_repeats_its_run(tmp_path, name):
    problem, made = plan_of(name, prior=[["b", "a"]])
    assert json.loads(made.to_dict()["options"]["prior"]) == [["b", "a"]]
    assert "prior" not in plan_of(name)[1].to_dict()["options"]
    made.write(tmp_path)
    mechanism, options = MODULES[name].MECHANISM, MODULES[name].Options
    read = mechanism.read(tmp_path, problem, options())
    assert read.digest == made.digest != plan_of(name)[1].digest
    assert mechanism.follows(read, problem, options(prior=[["b", "a"]]))
    assert not mechanism.follows(read, problem, options())
    first, again = (run(one, COUNTS, seeded_secret(4)).rounds for one in (made, read))
    assert first == again


def test_unknown_attributes_and_structures_without_candidates_are_refused():
    with refused(dp.PlanError):
        plan_of("mst", prior=[["a", "z"]])
    with refused(dp.PlanError):
        plan_of("mst", prior=[["a"]])
    with refused(dp.PlanError):
        plan_of("mst", prior=[["a", "a"]])
    with refused(dp.PlanError):
        plan_of("mst", prior="x.bif")


PARENTS = {"a": [], "b": ["a"], "c": ["a", "b"]}


def write_job(folder, parents=PARENTS, name="aim-pgm"):
    (folder / "net.bif").write_text(bif(parents))
    return write(folder, mechanism={"name": name, "prior": "net.bif"}, workload=[{"family": "marginal", "degree": 3}])


def test_file_is_read_as_families(tmp_path):
    pytest.importorskip("pgmpy", reason="pgmpy is not installed")
    path = write_job(tmp_path)
    assert families_of_file(str(tmp_path / "net.bif")) == [["a"], ["b", "a"], ["c", "a", "b"]]
    read = Job.read(path)
    assert read.table.mechanism.given["prior"] == [["a"], ["b", "a"], ["c", "a", "b"]]


def test_plan_from_python_has_the_families_of_the_file(tmp_path, monkeypatch):
    pytest.importorskip("pgmpy", reason="pgmpy is not installed")
    monkeypatch.setenv("DPSCALE_DATA", str(tmp_path / "user"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.bif").write_text(bif({"a": [], "b": ["a"]}))
    made = dp.plan([["a", "b"]], dp.Domain(a=4, b=3), "mst", epsilon=1.0, delta=1e-9, prior="net.bif")
    assert made.content["mechanism"]["prior"] == [["a"], ["b", "a"]]
    assert made.measurements.setting.prior == (("a", "b"),)


def test_digest_of_a_job_follows_the_structure_and_not_the_file(tmp_path):
    pytest.importorskip("pgmpy", reason="pgmpy is not installed")
    first = job_digest(Job.read(write_job(tmp_path)))
    (tmp_path / "net.bif").write_text("// public\n" + bif(PARENTS, ("x", "y", "z")))
    assert job_digest(Job.read(tmp_path / "job.toml")) == first
    assert job_digest(Job.read(write_job(tmp_path, {"a": [], "b": ["a"], "c": ["b"]}))) != first


def test_run_measures_the_families_and_resumes_without_the_file(tmp_path):
    pytest.importorskip("pgmpy", reason="pgmpy is not installed")
    release = dp.run(write_job(tmp_path), tmp_path / "run")
    decisions = sorted((tmp_path / "run" / "measurements").glob("*.json"))
    chosen = [
        tuple(map(tuple, json.loads(one.read_text())["chosen"])) for one in decisions if "chosen" in one.read_text()
    ]
    assert (("a", "b"), ("a", "b", "c")) in chosen
    (tmp_path / "net.bif").unlink()
    again = dp.Release.open(tmp_path / "run")
    np.testing.assert_array_equal(again.marginal("a", "b"), release.marginal("a", "b"))


def test_evidence_of_a_run_with_a_structure_is_sound(tmp_path):
    path = write(tmp_path, mechanism={"name": "mst", "prior": [["b", "a"]]}, privacy={"epsilon": 1.0, "delta": 1e-9},
                 engine={"scheduler": "synchronous"})  # fmt: skip
    release = dp.run(path, tmp_path / "run")
    found = check_bundle(write_bundle(open_run(release.path), [{"name": "one", "passed": True, "detail": ""}]))
    assert found["sound"]
    assert found["selections"] == 1  # of the second pair; the first one is measured without a selection


def test_bad_files_are_refused_in_one_sentence(tmp_path):
    path = write(tmp_path, mechanism={"name": "mst", "prior": "absent.bif"})
    with refused(dp.JobError):
        Job.read(path)
    (tmp_path / "text.bif").write_text("no network")
    path = write(tmp_path, mechanism={"name": "mst", "prior": "text.bif"})
    with refused(dp.JobError):
        Job.read(path)
    path = write(tmp_path, mechanism={"name": "mst", "prior": "text.txt"})
    with refused(dp.JobError):
        Job.read(path)
    path = write(tmp_path, mechanism={"name": "hdmm", "prior": [["a"]]})
    with refused(dp.JobError):
        Job.read(path)
