"""Numbers of distinct units: exact counts by brute force, sensitivity of one unit, runs, evidence and refused jobs."""

import json
import shutil
import sys
from collections import defaultdict
from fractions import Fraction
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence import recompute
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import BudgetError, DpscaleError, JobError, PlanError
from dpscale.contributions.unit_shards import RANGES, hash_passes
from dpscale.contributions.unit_totals import UnitCells, count_units, distinct
from dpscale.domain import Domain
from dpscale.engine.schedulers import resolve
from dpscale.ledger import Ledger
from dpscale.measurement.unit_counts import plan_units
from dpscale.privacy.accounting import LAPLACE, Budget, Cost
from dpscale.runs.opening import begin_run, open_run, read_job
from dpscale.runs.source import open_table
from dpscale.runs.stages import units
from tests.audit.forging import forge, records_of, restate
from tests.messages import refused
from tests.running import run_stages

DOMAIN = {"attributes": {"a": {"kind": "coded", "size": 3}, "b": {"kind": "coded", "size": 4}}}
SETS = [("a",), ("b",), ("a", "b"), ()]


def make_frame(rows=400, persons=90, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"person": rng.integers(0, persons, rows), "a": rng.integers(0, 3, rows),
                          "b": rng.integers(0, 4, rows), "house": 0})  # fmt: skip
    frame["house"] = frame.person // 3
    return frame


def write_job(folder, frame=None, files=3, bound=4, domain=DOMAIN, **job):
    frame = make_frame() if frame is None else frame
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for number in range(files):
        frame.iloc[number::files].to_parquet(folder / f"data/{number}.parquet")
    (folder / "domain.toml").write_text(tomli_w.dumps(domain))
    data = {"path": str(folder / "data"), "domain": str(folder / "domain.toml"), "privacy_unit": "person",
            "max_rows_per_unit": bound, **job.pop("data", {})}  # fmt: skip
    privacy = {"epsilon": 2.0, "delta": 1e-6, "ledger": str(folder / "ledger.sqlite"), **job.pop("privacy", {})}
    workload = job.pop("workload", [
        {"family": "marginal", "attributes": [["a"], ["b"]]},
        {"family": "marginal", "attributes": [list(names) for names in SETS], "count": "units"},
    ])  # fmt: skip
    return {
        "data": data,
        "privacy": privacy,
        "engine": {"seed": 3, **job.pop("engine", {})},
        "workload": workload,
        **job,
    }


def brute_force(frame, names, domain):
    cells = defaultdict(set)
    for row in frame.itertuples():
        cells[tuple(getattr(row, name) for name in names)].add(row.person)
    return [len(cells[cell]) for cell in np.ndindex(domain.shape(names))]


def exact(job, folder):
    run = begin_run(read_job(job), folder / "run").table
    run_stages(run, only="plan")
    plan, engine = units.plan_of(run), resolve(scheduler=run.job.engine.scheduler)
    names = units.read_names(run, plan)
    counts = units.exact_counts(run, engine, open_table(run, names, engine), plan, names)
    return run, dict(zip(plan.sets, [one.tolist() for one in counts], strict=True))


@pytest.mark.parametrize("change", ["none", "files", "order", "synchronous", "memory"])
def test_counts_without_a_tight_bound_are_those_of_brute_force(tmp_path, change):
    frame = make_frame()
    given = frame.sample(frac=1, random_state=1) if change == "order" else frame
    engine = {"scheduler": "synchronous"} if change == "synchronous" else {}
    engine |= {"memory": "16kB"} if change == "memory" else {}
    job = write_job(tmp_path, given, 7 if change == "files" else 3, bound=50, engine=engine)
    run, counts = exact(job, tmp_path)
    assert counts == {names: brute_force(frame, names, run.domain) for names in SETS}


def test_a_memory_setting_gives_several_passes():
    ranges = hash_passes(96_000_000, 1 << 20)
    assert len(ranges) > 100
    assert [one for own in ranges for one in own] == list(range(RANGES))
    rows = UnitCells(np.array([[5, 1], [5, 1], [9, 2]], np.uint64), np.array([[0], [0], [1]], np.uint32))
    assert len(distinct([rows], 1).units) == 2
    counts = count_units([rows, rows], ("a",), [("a",), ()], Domain({"a": 3}))
    assert [one.tolist() for one in counts.counts] == [[1, 1, 0], [2]]


def test_one_unit_changes_at_most_as_many_cells_as_the_bound(tmp_path):
    frame = make_frame()
    for bound in (1, 2, 4):
        folder = tmp_path / str(bound)
        _, whole = exact(write_job(folder / "a", frame, bound=bound), folder / "a")
        for person in (0, 7, 23):
            less = frame[frame.person != person]
            _, left = exact(write_job(folder / str(person), less, bound=bound), folder / str(person))
            for names in SETS:
                changed = np.array(whole[names]) - np.array(left[names])
                assert ((changed == 0) | (changed == 1)).all()
                assert changed.sum() <= bound
        assert whole[()] == [frame.person.nunique()]


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_cost_of_the_identity_is_that_of_the_worst_cells(rows):
    domain = Domain({"a": 3, "b": 2})
    plan = plan_units(domain, [("a", "b")], [1.0], Budget("gaussian", 0.01), rows)
    [draw] = plan.draws
    gram = np.eye(6) * draw.multiplier**2 / (draw.variance - 8)
    cells = [list(own) for size in range(1, rows + 1) for own in combinations(range(6), size)]
    worst = max(gram[np.ix_(own, own)].sum() for own in cells)
    assert float(draw.cost) == pytest.approx(worst)
    assert 0.009999 < float(plan.cost.squared_mu) <= 0.01
    pure = plan_units(domain, [("a",), ("b",)], [1.0, 2.0], Budget(LAPLACE, 0.5), rows)
    assert 0.49 < float(pure.cost.pure) <= 0.5
    assert pure.draws[0].cost == Fraction(pure.draws[0].multiplier * rows, pure.draws[0].scale)


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("units")
    return dp.run(write_job(folder, make_frame(4000, 900), privacy={"epsilon": 8.0}), run_dir=folder / "run")


def test_release_and_budget(release):
    frame = make_frame(4000, 900)
    table = release.units(["b", "a"])
    assert list(table.columns) == ["b", "a", "estimate", "std_error", "low", "high"]
    assert len(table) == 12
    assert (table.low < table.estimate).all()
    total = release.units([])
    assert abs(total.estimate[0] - frame.person.nunique()) < 5 * total.std_error[0]
    with Ledger.open(release.path.parent / "ledger.sqlite") as ledger:
        [dataset] = ledger.summary()["datasets"].values()
    costs = {row["release"].rpartition("-")[2]: Cost.from_dict(row["cost"]) for row in dataset["releases"]}
    assert set(costs) == {"units", release.manifest["release"].rpartition("-")[2]}
    assert 7.99 < Cost.total(costs.values()).epsilon(1e-6) <= 8.0
    assert float(costs["units"].squared_mu / Cost.total(costs.values()).squared_mu) == pytest.approx(4 / 6, rel=1e-3)
    assert "Distinct units" in (release.path / "report.html").read_text()


def test_other_sets_have_no_units(tmp_path):
    workload = [{"family": "marginal", "degree": 1}, {"family": "marginal", "attributes": [["a"]], "count": "units"}]
    release = dp.run(write_job(tmp_path, workload=workload), run_dir=tmp_path / "run")
    assert len(release.units("a")) == 3
    with refused(PlanError):
        release.units(["b"])


def test_evidence_recomputes_and_finds_less_noise(release, tmp_path):
    (tmp_path / "selftest.json").write_text(json.dumps([{"name": "none", "passed": True, "detail": "not run"}]))
    given = ["evidence", str(release.path), "--selftest", str(tmp_path / "selftest.json")]
    assert CliRunner().invoke(main, given, catch_exceptions=False).exit_code == 0
    folder = release.path / "evidence"
    assert check_bundle(folder)["own_scripts"]
    assert len(records_of(recompute.read_files(folder), entry="-units")) == len(recompute_sets(release))

    def change(files):
        record = records_of(files, entry="-units")[0]
        record["variance"] = str(int(record["variance"]) // 2)
        restate(files)

    faults = recompute.faults(forge(folder, tmp_path / "forged", change))
    assert any("was charged" in one for one in faults)

    def whole_unit_in_one_cell(files):
        """A unit with all rows in one count of a set would change it more, at no other cost than noise."""
        files["parts"]["data"]["bounds"]["units"]["changes"] = [[[1, 1]]]
        restate(files)

    assert recompute.faults(forge(folder, tmp_path / "other", whole_unit_in_one_cell))


def recompute_sets(release):
    """Records of the draws of units in the run directory."""
    return json.loads((release.path / "units/units.json").read_text())


def test_repeated_and_interrupted_runs_draw_once(tmp_path, monkeypatch):
    job = write_job(tmp_path)
    run = begin_run(read_job(job), tmp_path / "run")
    run_stages(run, only="plan")
    with refused(JobError):
        run_stages(run, only="measure")
    real = units.write
    monkeypatch.setattr(units, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run_stages(run, only="units")
    assert run.manifest["units"] is not None  # charged before the noise is drawn and written
    monkeypatch.setattr(units, "write", real)
    run_stages(run)
    again = dp.run(write_job(tmp_path / "other"), run_dir=tmp_path / "other/run")
    ours = dp.Release.open(tmp_path / "run")
    assert ours.units(["a"]).std_error[0] == again.units(["a"]).std_error[0]
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert len(next(iter(ledger.summary()["datasets"].values()))["releases"]) == 2


def test_a_copy_with_other_data_is_refused(tmp_path):
    run = begin_run(read_job(write_job(tmp_path, engine={"scheduler": "synchronous"})), tmp_path / "run")
    run_stages(run, only="plan")
    copy = shutil.copytree(run.path, tmp_path / "copy")
    run_stages(run, only="units")
    make_frame(seed=1).to_parquet(tmp_path / "data/0.parquet")
    with refused(BudgetError):
        run_stages(open_run(copy), only="units")
    assert not (copy / "units").exists()


def test_the_scheduler_does_not_see_the_number_of_rows():
    sizes = {sys.getsizeof(UnitCells(np.zeros((rows, 2), np.uint64), np.zeros((rows, 3), np.uint32)))
             for rows in (0, 1, 1000)}  # fmt: skip
    assert len(sizes) == 1


def test_units_through_another_table(tmp_path):
    frame = make_frame()
    homes = frame[["person", "house"]].drop_duplicates()
    homes.to_parquet(tmp_path / "homes.parquet")
    hop = {"path": str(tmp_path / "homes.parquet"), "key": "person", "unit": "house"}
    job = write_job(tmp_path, frame, bound=100, data={"unit_through": [hop]})
    run, counts = exact(job, tmp_path)
    moved = frame.assign(person=frame.house)
    assert counts == {names: brute_force(moved, names, run.domain) for names in SETS}


WRONG = {
    "no unit": {"data": {"privacy_unit": None, "max_rows_per_unit": None}},
    "family": {"workload": [{"family": "marginal", "degree": 1}, {"family": "prefix", "degree": 1, "count": "units"}]},
    "only units": {"workload": [{"family": "marginal", "degree": 1, "count": "units"}]},
    "unknown": {"workload": [{"family": "marginal", "degree": 1, "count": "people"}]},
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_jobs_are_refused_and_spend_nothing(tmp_path, name):
    changes = WRONG[name]
    job = write_job(tmp_path, **changes)
    job["data"] = {key: value for key, value in job["data"].items() if value is not None}
    with refused(DpscaleError):
        dp.run(job, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "ledger.sqlite").exists()


def test_pure_noise_and_searched_cells(tmp_path):
    job = write_job(tmp_path / "pure", privacy={"epsilon": 2.0})
    del job["privacy"]["delta"]
    release = dp.run(job, run_dir=tmp_path / "pure/run")
    found = release.units([])
    assert abs(found.estimate[0] - 88) < 15 * found.std_error[0]  # Laplace noise
    frame = make_frame(4000, 900).assign(a=lambda one: "v" + one.a.astype(str))
    domain = {"attributes": {**DOMAIN["attributes"], "a": {"kind": "discover"}}}
    both = dp.run(write_job(tmp_path / "both", frame, domain=domain, privacy={"epsilon": 8.0}),
                  run_dir=tmp_path / "both/run")  # fmt: skip
    assert set(both.units(["a"])["a"]) >= {"v0", "v1", "v2"}


def test_files_that_change_while_they_are_read_are_refused(tmp_path, monkeypatch):
    job = write_job(tmp_path)
    run = begin_run(read_job(job), tmp_path / "run")
    run_stages(run, only="plan")
    real = units.exact_counts

    def slow(*arguments):
        found = real(*arguments)
        make_frame(seed=1).to_parquet(tmp_path / "data/0.parquet")
        return found

    monkeypatch.setattr(units, "exact_counts", slow)
    with refused(DpscaleError):
        run_stages(run, only="units")
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert not ledger.summary()["datasets"]


def test_a_data_frame_has_units(tmp_path):
    job = write_job(tmp_path, privacy={"dataset": "frame"})
    del job["data"]["path"]
    frame = make_frame()
    release = dp.run(job, data=frame, run_dir=tmp_path / "run")
    found = release.units([])
    assert abs(found.estimate[0] - frame.person.nunique()) < 6 * found.std_error[0]


LATE = {
    "tiny share": {"budget": {"units": 1e-60}},
    "no weight": {"workload": [{"family": "marginal", "degree": 1},
                                {"family": "marginal", "degree": 1, "count": "units", "weight": 0.0}]},
    "memory": {"engine": {"memory": "64B"}},
    "no units": {"workload": [{"family": "marginal", "degree": 1}], "budget": {"units": 0.5}},
}  # fmt: skip


@pytest.mark.parametrize("name", LATE)
def test_impossible_counts_are_refused_before_a_search_is_charged(tmp_path, name):
    changes = LATE[name]
    frame = make_frame().assign(a=lambda one: "v" + one.a.astype(str))
    domain = {"attributes": {**DOMAIN["attributes"], "a": {"kind": "discover"}}}
    with refused(DpscaleError):
        dp.run(write_job(tmp_path, frame, domain=domain, **changes), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "ledger.sqlite").exists()
