"""Limits of planning: sets, cells, seconds and memory are refused in one sentence, before they are used or charged."""

import json
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import numpy as np
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.base.deadline import LimitedTask, check_planning_time, limited, planning_within
from dpscale.base.errors import DpscaleError, JobError, PlanningTimeError
from dpscale.domain import Domain
from dpscale.engine.schedulers import resolve
from dpscale.ledger import Ledger
from dpscale.mechanisms import mechanism, mechanism_names
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.runs.opening import read_job
from dpscale.runs.stages.plan import make_plan
from dpscale.workload import Workload, workload as workloads
from tests.messages import refused

WIDE = Domain({f"a{number}": 2 for number in range(40)})


def write_job(folder, parts, attributes=6, size=3, **tables):
    domain = {"attributes": {f"a{one}": {"kind": "coded", "size": size} for one in range(attributes)}}
    (folder / "domain.toml").write_text(tomli_w.dumps(domain))
    (folder / "data.csv").write_text(",".join(domain["attributes"]) + "\n" + ",".join("0" * attributes) + "\n")
    job = {"data": {"path": "data.csv", "domain": "domain.toml"}, "privacy": {"epsilon": 1.0, "delta": 1e-9},
           "workload": parts, **tables}  # fmt: skip
    (folder / "job.toml").write_text(tomli_w.dumps(job))
    return folder / "job.toml"


def read_toml(path):
    return tomllib.loads(path.read_text())


def refusal_of(folder, *command):
    """Return the sentence of a command that is refused and leaves nothing behind."""
    before = {path.name for path in folder.iterdir()}
    result = CliRunner().invoke(main, list(map(str, command)))
    assert result.exit_code == 2, result.output
    assert {path.name for path in folder.iterdir()} == before
    return result.stderr


def test_sets_are_counted_before_they_are_listed(monkeypatch):
    def list_none(*_):
        raise AssertionError("listed")

    monkeypatch.setattr(workloads, "combinations", list_none)
    with refused(JobError):
        Workload(WIDE).add("marginal", degree=20)


def test_many_sets_of_a_job_are_refused(tmp_path):
    job = write_job(tmp_path, [{"family": "marginal", "degree": 12}], 40)
    for command in (("plan", job), ("run", job, "--run-dir", tmp_path / "run")):
        assert "engine.max_sets" in refusal_of(tmp_path, *command)
    large = [{"family": "marginal", "attributes": [[f"a{one}" for one in range(23)]]}]
    job = write_job(tmp_path, large, 40)
    assert "1 set with 8,388,608 subsets" in refusal_of(tmp_path, "plan", job)
    assert (
        len(read_job(job).table.build_workload(read_job(job).table.read_domain()).sets) == 1
    )  # a finished run is opened


@pytest.mark.parametrize("degree", range(5))
def test_subsets_of_a_degree_are_counted_exactly(degree):
    domain = Domain({f"a{number}": 2 for number in range(4)})
    found = Workload(domain).add("marginal", degree=degree).most_subsets
    assert found == sum(len(list(combinations(domain.names, lower))) for lower in range(degree + 1))


def test_subsets_of_lists_are_at_most_the_limit_that_is_counted():
    random, names = np.random.default_rng(0), [f"a{number}" for number in range(8)]
    for _ in range(200):
        sets = [random.choice(names, random.integers(0, 5), replace=False).tolist() for _ in range(4)]
        exact = {lower for one in sets for size in range(len(one) + 1) for lower in combinations(sorted(one), size)}
        workload = Workload(Domain(dict.fromkeys(names, 2))).add("marginal", attributes=sets)
        assert len(exact) <= workload.most_subsets <= 2 ** len(names)


def plan_of(job):
    table = job.table
    problem = table.planning_problem(table.build_workload(table.read_domain()))
    return make_plan(table, problem, resolve(scheduler="synchronous"))


def test_an_adaptive_mechanism_has_no_subsets(tmp_path):
    parts = [{"family": "marginal", "attributes": [[f"a{one}" for one in range(20)]]}]
    job = read_job(write_job(tmp_path, parts, 20, 2, mechanism={"name": "mst"}, engine={"max_sets": 10}))
    assert plan_of(job).mechanism == "mst"


@pytest.mark.parametrize("name", ["max_cells", "memory"])
def test_a_limit_can_be_raised_after_a_search_was_charged(tmp_path, name):
    """The sentence says so: the run goes on, and spends nothing again."""
    domain = {"attributes": {"a": {"kind": "discover"}, "b": {"kind": "coded", "size": 50}}}
    job = write_job(tmp_path, [{"family": "marginal", "degree": 2}], 2)
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(domain))
    (tmp_path / "data.csv").write_text("a,b\n" + "".join(f"v{row % 40},{row % 50}\n" for row in range(40_000)))
    content = read_toml(job) | {"privacy": {"epsilon": 8.0, "delta": 1e-6}}
    low, high = {"max_cells": (1000, 100_000), "memory": ("20KB", "1GiB")}[name]
    job.write_text(tomli_w.dumps(content | {"engine": {name: low, "scheduler": "synchronous"}}))
    with refused(DpscaleError):
        dp.run(job, tmp_path / "run")
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert len(next(iter(ledger.summary()["datasets"].values()))["releases"]) == 1  # the search
    job.write_text(tomli_w.dumps(content | {"engine": {name: high, "scheduler": "synchronous"}}))
    assert dp.run(job, tmp_path / "run").total().estimate > 0
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        [dataset] = ledger.summary()["datasets"].values()
    assert len(dataset["releases"]) == 2
    assert dataset["spent"]["epsilon"] <= 8


def test_a_limit_of_several_tables_can_be_raised_after_a_search_was_charged(tmp_path):
    job = write_job(tmp_path, [{"family": "marginal", "degree": 2}], 2)
    domain = {"attributes": {"a": {"kind": "discover"}, "b": {"kind": "coded", "size": 50}}}
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(domain))
    (tmp_path / "public.toml").write_text(tomli_w.dumps({"attributes": {"b": domain["attributes"]["b"]}}))
    (tmp_path / "public.csv").write_text("b\n1\n")
    (tmp_path / "data.csv").write_text("a,b\n" + "".join(f"v{row % 40},{row % 50}\n" for row in range(40_000)))
    private = {**read_toml(job)["data"], "workload": [{"family": "marginal", "degree": 2}]}
    private["mechanism"] = "weighted-residuals"
    public = {"path": "public.csv", "domain": "public.toml", "public": True}
    content = {"tables": {"x": private, "y": public}, "privacy": {"epsilon": 8.0, "delta": 1e-6, "dataset": "two"}}
    job.write_text(tomli_w.dumps(content | {"engine": {"max_cells": 1000, "scheduler": "synchronous"}}))
    with refused(DpscaleError):
        dp.run(job, tmp_path / "run")
    job.write_text(tomli_w.dumps(content | {"engine": {"max_cells": 100_000, "scheduler": "synchronous"}}))
    assert dp.run(job, tmp_path / "run").tables["x"].total().estimate > 0
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        [dataset] = ledger.summary()["datasets"].values()
    assert len(dataset["releases"]) == 2
    assert dataset["spent"]["epsilon"] <= 8


@pytest.mark.parametrize("cells", [3000, 20_000])
def test_mechanisms_that_refuse_at_once_predict_no_time(cells):
    problem = PlanningProblem(Workload(Domain({"a": cells, "b": 2})).add("marginal", degree=2))
    for name in ("hdmm", "eigen-design", "auto"):
        assert mechanism(name).seconds(problem, mechanism(name).Options()) < 10


def test_a_setting_admits_as_many_sets(tmp_path):
    parts = [{"family": "marginal", "degree": 2}]
    for most, admitted in ((21, False), (22, True)):
        job = read_job(write_job(tmp_path, parts, engine={"max_sets": most}))
        if admitted:
            assert len(plan_of(job).counted_sets) == 15
        else:
            with refused(JobError):
                plan_of(job)


def test_cells_are_limited(tmp_path):
    parts = [{"family": "marginal", "degree": 2}]
    job = write_job(tmp_path, parts, engine={"max_cells": 134})
    assert "135 cells in 15 sets" in refusal_of(tmp_path, "run", job, "--run-dir", tmp_path / "run")
    job = write_job(tmp_path, parts, engine={"max_cells": 135})
    assert CliRunner().invoke(main, ["plan", str(job)]).exit_code == 0


def test_answers_beyond_the_memory_are_refused(tmp_path):
    parts = [{"family": "marginal", "degree": 6}]
    job = write_job(tmp_path, parts, 6, 7, engine={"memory": "20MB"})
    assert "a0, a1, a2, a3, a4, a5 (answers) needs" in refusal_of(tmp_path, "run", job, "--run-dir", tmp_path / "run")


def test_predicted_time_is_compared_with_the_setting(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSCALE_STORE", "off")
    parts, named = [{"family": "range", "attributes": [["a0"]]}], {"name": "eigen-design"}
    job = write_job(tmp_path, parts, 1, 1500, mechanism=named, engine={"planning_seconds": 20})
    sentence = refusal_of(tmp_path, "run", job, "--run-dir", tmp_path / "run")
    assert "engine.planning_seconds: 20, and eigen-design needs about 50 s for this workload" in sentence
    job = write_job(tmp_path, parts, 1, 1500, mechanism=named, engine={"planning_seconds": 60})
    monkeypatch.setattr("dpscale.runs.stages.plan.plan_problem", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with (
        pytest.warns(UserWarning, match="planning with eigen-design takes about 50 s"),
        pytest.raises(KeyboardInterrupt),
    ):
        dp.run(job, tmp_path / "run")  # the time is stated before planning starts


@pytest.mark.parametrize("name", ["hdmm", "eigen-design", "weighted-residuals", "identity", "auto"])
def test_planning_stops_when_its_time_is_over(name, monkeypatch):
    monkeypatch.setenv("DPSCALE_STORE", "off")
    workload = Workload(Domain({f"a{number}": 6 for number in range(6)})).add("range", degree=3)
    with planning_within(1e-9), refused(PlanningTimeError):
        dp.plan(workload, mechanism=name)
    check_planning_time()  # there is no limit outside
    assert not issubclass(PlanningTimeError, dp.PlanError)  # which a mechanism may take for an unsupported workload


def test_tasks_carry_the_limit_along():
    def check(_):
        time.sleep(0.01)
        check_planning_time()

    with planning_within(0.1), pytest.raises(PlanningTimeError):
        list(limited(map)(check, range(100)))  # one moment for all tasks, however many wait
    with ThreadPoolExecutor(2) as pool, planning_within(0.005):
        list(pool.map(check, range(2)))  # planted: a thread has no limit of its own
        with pytest.raises(PlanningTimeError):
            list(limited(pool.map)(check, range(2)))


def test_no_task_begins_after_the_end():
    begun = []
    with refused(PlanningTimeError):
        LimitedTask(begun.append, 60.0, time.time() - 1)(0)
    assert not begun


def test_every_mechanism_predicts_its_time():
    problem = PlanningProblem(Workload(Domain({"a": 4, "b": 3})).add("marginal", degree=2))
    for name in mechanism_names():
        named = mechanism(name)
        assert 0 < named.seconds(problem, named.Options()) < 10


def test_plan_states_time_and_memory(tmp_path):
    job = write_job(tmp_path, [{"family": "marginal", "degree": 2}])
    result = CliRunner().invoke(main, ["plan", str(job), "--json"])
    summary = json.loads(result.stdout)
    assert summary["planning_memory_bytes"] == 22 * 1024
    assert summary["reconstruction_memory_bytes"] == 9 * (216 + 40)
    assert summary["reconstruction_seconds"] > 0


@pytest.mark.parametrize("key", ["max_sets", "max_cells", "planning_seconds"])
def test_wrong_limits_are_refused(tmp_path, key):
    job = write_job(tmp_path, [{"family": "marginal", "degree": 1}], engine={key: 0})
    with refused(DpscaleError):
        read_job(job)
