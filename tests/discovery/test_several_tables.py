"""Searches and numbers of units in jobs of several tables: results, cost, interruptions, evidence and refused jobs."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence import bundle, recompute
from dpscale.audit.evidence.check import check_bundle
from dpscale.base.errors import BudgetError, DataError, DpscaleError, JobError
from dpscale.ledger import Ledger
from dpscale.measurement import journal
from dpscale.privacy.accounting import Cost
from dpscale.runs import runner as parts
from dpscale.runs.charge import cost_of_entry
from dpscale.runs.opening import begin_run, open_run, read_job
from dpscale.runs.run import ENTRIES
from dpscale.runs.stages import discover, units
from tests.audit import kills
from tests.audit.forging import forge, records_of, remove, restate, run_script
from tests.audit.test_bundle import PASSED
from tests.discovery.tables import (
    BOUND,
    CITIES,
    DOMAINS,
    ITEMS,
    PLANTED,
    UNITS,
    make_frames,
    make_job,
    replaced_job,
    write_tables,
)
from tests.messages import refused
from tests.running import end, run_stages

SEX, MONTH = DOMAINS["persons"]["sex"], DOMAINS["orders"]["month"]
STAGES = ("discover", "plan", "units", "measure")


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    return dp.run(write_tables(folder), run_dir=folder / "run")


def entries(folder):
    """Return the entries on the ledger by the end of their release ids: "domain", "units" and "" for the draws."""
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        rows = [row for one in ledger.summary()["datasets"].values() for row in one["releases"]]
    ends = ("domain", "units")
    found = {next((end for end in ends if row["release"].endswith(f"-{end}")), ""): row for row in rows}
    assert len(found) == len(rows), "an entry is charged twice"
    return found


def costs(folder):
    return {name: Cost.from_dict(row["cost"]) for name, row in entries(folder).items()}


def drawn_files(run):
    """Return the hashes of all files with drawn values."""
    names = ("domain", "units", "measurements")
    paths = [path for name in names for path in run.glob(f"tables/*/{name}/**/*")] + [*run.glob("links/*/*.parquet")]
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(paths) if path.is_file()}  # fmt: skip


# ---- results ---------------------------------------------------------------------------------------------------------


def test_found_cells_of_every_table(release):
    persons, orders = release.tables["persons"], release.tables["orders"]
    assert persons.found("city").cell.tolist() == sorted(CITIES)
    assert orders.found("item").cell.tolist() == sorted(ITEMS)
    assert 2 <= len(orders.found("amount")) <= 6
    assert persons.domain["city"].values == tuple(sorted(CITIES))
    rows = release.synthetic()
    assert set(rows["persons"].compute().city) <= {*CITIES, "(outside)"}
    assert set(rows["orders"].compute()["item"]) <= {*ITEMS, "(outside)"}
    assert set(rows["orders"].compute().person) <= set(rows["persons"].compute().id), "links between synthetic rows"


def test_numbers_of_units_are_those_of_persons(release):
    frames = make_frames()
    total = release.tables["persons"].units([])
    assert abs(total.estimate[0] - len(frames["persons"])) < 6 * total.std_error[0]
    table = release.tables["orders"].units(["item", "month"])
    exact = frames["orders"].groupby(["item", "month"]).person.nunique()
    differences = table.estimate[:9].to_numpy() - exact.to_numpy()
    assert (abs(differences) < 6 * table.std_error[0] + 30).all(), "orders beyond the bound are not counted"


def test_planted_value_is_in_no_file(release):
    for path in release.path.rglob("*"):
        if path.is_file():
            assert PLANTED.encode() not in path.read_bytes(), path
            assert json.dumps(PLANTED)[1:-1].encode() not in path.read_bytes(), path


def test_reports_have_the_sections(release):
    for name in ("persons", "orders"):
        text = (release.path / "tables" / name / "report.html").read_text()
        assert "Discovered cells" in text
        assert "Distinct units" in text
    text = (release.path / "report.html").read_text()
    assert "searches for cells of persons, orders" in text
    assert "numbers of distinct units of persons, orders" in text


@pytest.mark.parametrize("scheduler", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_schedulers_draw_the_same(release, tmp_path, scheduler):
    run = begin_run(read_job(release.path.parent / "job.toml"), tmp_path / "run")
    run_stages(run, scheduler=scheduler)
    assert drawn_files(run.path) == drawn_files(release.path)


# ---- cost ------------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize("make", [make_job, replaced_job])
def test_cost_is_that_of_the_job(tmp_path, make):
    run = dp.run(write_tables(tmp_path, make(tmp_path)), tmp_path / "run").path
    found = costs(tmp_path)
    assert set(found) == {"", "domain", "units"}
    assert {row["state"] for row in entries(tmp_path).values()} == {"released"}
    assert {row["relation"] for row in entries(tmp_path).values()} == {
        "add/remove" if make is make_job else "replace"
    }  # fmt: skip
    total = Cost.total(found.values())
    assert 7.99 < total.epsilon(1e-5) <= 8.0
    assert 0.99e-5 / 2 < float(total.delta) <= 1e-5 / 2
    opened = open_run(run)
    assert opened.spent == total
    for name, share in opened.job.shares.items():
        charges = [opened.parts[name].charges(entry) for entry in ENTRIES]
        spent = Cost.total(cost for cost, _ in filter(None, charges))
        assert float(spent.squared_mu / total.squared_mu) == pytest.approx(share, rel=1e-3)


def test_entry_is_the_sum_over_the_tables(release):
    run, found = open_run(release.path), costs(release.path.parent)
    for end_, terms in (("domain", discover.terms), ("units", units.terms)):
        whole = Cost.total(terms(table)[0] for table in run.tables.values()).coarsened()
        assert found[end_] == whole


def test_shares_of_a_table_are_those_of_its_sections(release):
    run = open_run(release.path)
    orders = run.tables["orders"]
    search, unit = (float(one(orders)[0].squared_mu) for one in (discover.terms, units.terms))
    rows = float(orders.measurement_plan.cost.squared_mu)
    assert search / (search + unit + rows) == pytest.approx(0.2, rel=1e-3)
    assert unit / (unit + rows) == pytest.approx(0.4, rel=1e-3)


def test_cap_below_the_whole_cost_refuses_before_any_draw(tmp_path):
    path = write_tables(tmp_path)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        ledger.set_cap("shop", 7.9, 1e-5, protects=read_job_protection(path))
    with pytest.raises(BudgetError):
        dp.run(path, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert not entries(tmp_path)


def read_job_protection(path):
    from dpscale.job.neighbours import neighbour_relation

    return neighbour_relation(read_job(path)).protects


# ---- interruptions ---------------------------------------------------------------------------------------------------


def stop(*_, **__):
    raise KeyboardInterrupt


def stop_at_call(number, function):
    """Return the function, which stops at a call, and the list of its calls."""
    calls = []

    def counted(*arguments, **settings):
        calls.append(arguments)
        return stop() if len(calls) == number else function(*arguments, **settings)

    return counted


POINTS = {
    "before the first search": (discover, "perform_search", 1),
    "within the second table": (discover, "perform_search", 2),
    "before the second domain": (discover.TablePart, "write_domain", 2),
    "before the searches are published": (parts, "publish_entry", 1),
    "before the first units": (units, "write", 1),
    "before the second units": (units, "write", 2),
    "before the units are published": (parts, "publish_entry", 2),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("point", POINTS)
def test_interrupted_run_draws_once(release, tmp_path, monkeypatch, point):
    path = release.path.parent / "job.toml"  # the same seed and ledger: the release is the same one
    place, name, number = POINTS[point]
    with monkeypatch.context() as patch:
        patch.setattr(place, name, stop_at_call(number, getattr(place, name)))
        with pytest.raises(KeyboardInterrupt):
            dp.run(path, tmp_path / "run")
    assert list((tmp_path / "run").rglob("secret.key")), "the key is kept until the run is final"
    before = drawn_files(tmp_path / "run")
    run = open_run(tmp_path / "run")
    for stage in STAGES:
        run_stages(run, only=stage)
    after = drawn_files(tmp_path / "run")
    assert before.items() <= after.items()
    assert after == drawn_files(release.path)
    assert set(entries(release.path.parent)) == {"", "domain", "units"}
    assert not list((tmp_path / "run").rglob("secret.key"))


def commands(job, run):
    """Return the command of each of the first stages."""
    return {"discover": ("run", job, "--only", "discover", "--run-dir", run), "plan": ("plan", job, "--run-dir", run),
            "units": ("run", run, "--only", "units")}  # fmt: skip


def run_killed_stage(job, run, killed, last):
    """Run the first stages, of which one is killed before a step and then repeated; return whether the kill hit."""
    hit = False
    for stage, command in commands(job, run).items():
        if stage == killed:
            hit = kills.wait_for_exit(kills.start(*command, "--quiet", last=last)) == kills.KILLED
        assert kills.wait_for_exit(kills.start(*command, "--quiet", log=run.parent / "log")) == 0, (
            run.parent / "log"
        ).read_text()
    return hit


def count_steps(job, run):
    """Run the first stages in this process, and return the number of steps of each."""
    found = {}
    for stage, command in commands(job, run).items():
        with kills.Steps(None) as steps:
            assert kills.run_command(*command, "--quiet") == 0
        found[stage] = steps.taken
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("killed", ["discover", "units"])
@pytest.mark.parametrize("parts", [2, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_stage_killed_at_any_step_draws_once(tmp_path, killed, parts):
    """The process is killed before a write, a flush or a statement of the ledger."""
    job = write_tables(tmp_path)
    steps, whole = count_steps(job, tmp_path / "whole")[killed], drawn_files(tmp_path / "whole")
    charged = {name: cost for name, cost in costs(tmp_path).items() if name}
    hits = 0
    for number in range(parts):
        for file in tmp_path.glob("ledger.sqlite*"):
            file.unlink()
        place = tmp_path / str(number)
        place.mkdir()
        hits += run_killed_stage(job, place / "run", killed, 1 + (steps - 1) * number // parts)
        assert drawn_files(place / "run") == whole
        assert costs(tmp_path) == charged
        assert {row["state"] for row in entries(tmp_path).values()} == {"released"}
    assert hits > 0.7 * parts  # the first run has steps of its own: compiled code and plans are kept for the others


def test_charge_precedes_every_draw(tmp_path, monkeypatch):
    """The whole cost of a part is on the ledger when the first table searches."""
    path, seen = write_tables(tmp_path), []

    def search(*arguments):
        seen.append(costs(tmp_path)["domain"])
        return real(*arguments)

    real = discover.perform_search
    monkeypatch.setattr(discover, "perform_search", search)
    run = begin_run(read_job(path), tmp_path / "run")
    run_stages(run, only="discover")
    assert len(seen) == 3
    assert set(seen) == {cost_of_entry(run, "discovery")}
    monkeypatch.setattr(journal, "add_noise", stop)
    run_stages(run, only="plan")
    with pytest.raises(KeyboardInterrupt):
        run_stages(run, only="units")
    assert costs(tmp_path)["units"] == cost_of_entry(run, "units")


def test_copy_with_another_key_is_refused(tmp_path):
    run = begin_run(read_job(write_tables(tmp_path, make_job(tmp_path, engine={"scheduler": "synchronous"}))),
                    tmp_path / "run")  # fmt: skip
    copy = shutil.copytree(run.path, tmp_path / "copy")
    run_stages(run, only="discover")
    with refused(BudgetError):
        run_stages(open_run(copy), only="discover")
    assert not list(copy.rglob("searches.json"))


@pytest.mark.parametrize("searched", [True, False])
def test_refused_rows_of_the_last_table_cost_nothing(tmp_path, searched):
    frames, domains = make_frames(), {}
    frames["orders"].loc[3, "month"] = 9
    if not searched:
        domains = {"persons": {"city": {"kind": "categories", "values": [*CITIES, PLANTED]}, "sex": SEX},
                   "orders": {"item": {"kind": "categories", "values": list(ITEMS)}, "month": MONTH}}  # fmt: skip
    with refused(DataError):
        dp.run(write_tables(tmp_path, frames=frames, domains=domains), tmp_path / "run")
    assert not entries(tmp_path)


def test_counters_of_all_tables_fit_the_memory_together(tmp_path):
    """The cells of each table alone would fit."""
    job = make_job(tmp_path, engine={"memory": "2400B"})
    with refused(DpscaleError):
        dp.run(write_tables(tmp_path, job), tmp_path / "run")
    assert not (tmp_path / "ledger.sqlite").exists()


def test_changed_files_after_the_searches_are_refused(tmp_path):
    run = begin_run(read_job(write_tables(tmp_path)), tmp_path / "run")
    for stage in ("discover", "plan"):
        run_stages(run, only=stage)
    write_tables(tmp_path, frames=make_frames(seed=1))
    with refused(DataError):
        run_stages(open_run(run.path), only="units")


def test_ended_run_states_its_charges(tmp_path):
    run = begin_run(read_job(write_tables(tmp_path)), tmp_path / "run")
    run_stages(run, only="discover")
    found = end(open_run(run.path))
    assert (found["how"], found["charged"]) == ("abandoned", None)
    assert found["searches"]["release"] == f"{run.manifest['release']}-domain"
    assert not list(run.path.rglob("secret.key"))
    with refused(JobError):
        run_stages(open_run(run.path), only="plan")


# ---- commands --------------------------------------------------------------------------------------------------------


def invoke(*arguments):
    return CliRunner().invoke(main, [str(one) for one in arguments])


def test_stages_by_commands(release, tmp_path):
    job, run = release.path.parent / "job.toml", tmp_path / "run"
    planned = invoke("plan", job, "--quiet").stdout
    assert "The cells of city (21) are not public" in planned
    assert "The cells of item (21), amount (60) are not public" in planned
    assert invoke("plan", job, "--run-dir", run, "--quiet").exit_code == 2, "the cells are not found yet"
    assert invoke("run", job, "--only", "discover", "--run-dir", run, "--quiet").stdout == "discover: done\n"
    planned = json.loads(invoke("plan", job, "--run-dir", run, "--quiet", "--json").stdout)["tables"]
    for name, table in open_run(run).tables.items():
        budget = table.planning_problem.budget
        rmse = table.measurement_plan.forecast(budget).summary["rmse"]
        assert (planned[name]["privacy_cost"], planned[name]["rmse"]) == (budget.amount, rmse), "after the searches"
    listed = [one["name"] for one in json.loads(invoke("job", "stages", run, "--json").stdout)["stages"]]
    assert listed == ["discover", "plan", "units", "measure", "reconstruct", "synthesize", "report"]
    refused = invoke("run", run / "tables/orders", "--only", "units", "--quiet")
    assert (refused.exit_code, "charged together" in refused.stderr) == (2, True)
    assert "stage units is not done" in invoke("run", run, "--only", "measure", "--quiet").stderr
    for stage in listed[2:]:
        assert invoke("run", run, "--only", stage, "--quiet").exit_code == 0, stage
    states = json.loads(invoke("job", "status", run, "--json").stdout)["stages"]
    assert {name: one["state"] for name, one in states.items()} == dict.fromkeys(listed, "done")
    assert drawn_files(run) == drawn_files(release.path)


def test_table_is_not_searched_alone(tmp_path):
    run = begin_run(read_job(write_tables(tmp_path)), tmp_path / "run")
    refused = invoke("run", run.path / "tables/persons", "--only", "discover", "--quiet")
    assert (refused.exit_code, "charged together" in refused.stderr) == (2, True)
    assert not (tmp_path / "ledger.sqlite").exists() or not entries(tmp_path)


@pytest.mark.slow
def test_both_dags_find_the_same_cells(release, tmp_path):
    job, run = release.path.parent / "job.toml", tmp_path / "run"
    done = subprocess.run([sys.executable, "pipelines/steps.py", job, run], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert drawn_files(run) == drawn_files(release.path)


@pytest.mark.slow
def test_submitted_run_draws_the_same(release, tmp_path):
    from dask.distributed import LocalCluster

    run = tmp_path / "run"
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        job, address = release.path.parent / "job.toml", cluster.scheduler_address
        assert invoke("job", "submit", job, "--run-dir", run, "--scheduler", address).exit_code == 0
        assert invoke("job", "wait", run).exit_code == 0
    assert drawn_files(run) == drawn_files(release.path)


# ---- evidence --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["rooted", "replaced"])
def evidence(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evidence")
    job = (make_job if request.param == "rooted" else replaced_job)(folder, engine={"scheduler": "synchronous"})
    return bundle.write_bundle(open_run(dp.run(write_tables(folder, job), folder / "run").path), PASSED)


def test_evidence_recomputes_the_costs_of_all_tables(evidence):
    found = check_bundle(evidence)
    assert found["own_scripts"]
    assert found["private"]
    files = recompute.read_files(evidence)
    for entry in ("-domain", "-units"):
        assert {one["part"] for one in records_of(files, entry=entry)} == {"tables.persons", "tables.orders"}
    alone = run_script(evidence)
    assert alone.returncode == 0, alone.stdout + alone.stderr
    given = ("evidence", "--check", evidence, "--ledger", evidence.parents[1] / "ledger.sqlite")
    assert invoke(*given).exit_code == 0


@pytest.mark.parametrize("parts", ["searches", "units"])
def test_evidence_of_one_part_in_one_table(tmp_path, parts):
    """The other table and the other part have no entry, and no files in the bundle."""
    job = make_job(tmp_path)
    domains = {"persons": {"city": {"kind": "categories", "values": [*CITIES, PLANTED]}, "sex": SEX}}
    job["tables"]["persons"]["workload"].pop()
    if parts == "searches":
        job["tables"]["orders"]["workload"].pop()
        del job["budget"]["tables"]["orders"]["units"]
    else:
        domains["orders"] = {"item": {"kind": "categories", "values": list(ITEMS)}, "month": MONTH}
    release = dp.run(write_tables(tmp_path, job, domains=domains), tmp_path / "run")
    assert set(entries(tmp_path)) == {"", {"searches": "domain", "units": "units"}[parts]}
    folder = bundle.write_bundle(open_run(release.path), PASSED)
    assert check_bundle(folder)["own_scripts"]
    end = {"searches": "-domain", "units": "-units"}[parts]
    others = [one for one in records_of(recompute.read_files(folder)) if one["entry"]]
    assert {(one["part"], one["entry"]) for one in others} == {("tables.orders", end)}
    assert 7.99 < Cost.total(costs(tmp_path).values()).epsilon(1e-5) <= 8.0


def halve(part, entry, index=0):
    """Return a forgery: half of the noise of a search or of a set, with the costs that follow."""

    def change(files):
        noise = records_of(files, part, entry)[index]
        noise["variance"] = str(int(noise["variance"]) // 2)
        restate(files)

    return change


def lower_threshold(files):
    noise = next(one for one in records_of(files, "tables.orders", "-domain") if "threshold" in one)
    noise["threshold"] = str(int(noise["threshold"]) * 9 // 10)
    restate(files)


def without(*owners):
    """Remove the records of parts under an entry, and their files."""

    def change(files):
        gone = [one for owner in owners for one in records_of(files, *owner)]
        remove(files, gone)
        for one in gone:
            files["run-files"].pop(one["file"], None)
        restate(files)

    return change


def without_entry(files):
    """Remove all numbers of units, and what they were charged."""
    without(("tables.persons", "-units"), ("tables.orders", "-units"))(files)
    for part in files["parts"].values():
        part["costs"].pop("-units", None)


def swap_tables(files):
    swapped = {"tables.persons": "tables.orders", "tables.orders": "tables.persons"}
    for one in records_of(files, entry="-units"):
        one["part"] = swapped[one["part"]]
    restate(files)


def edit_job(old, new):
    def change(files):
        text = json.dumps(files["job"])
        assert old in text
        files["job"] = json.loads(text.replace(old, new, 1))

    return change


def fewer_rows(files):
    part = files["parts"]["tables.orders"]
    if part["steps"] > 1:
        part["steps"] = 1
    else:
        part["bounds"]["rows"]["changes"] = [[[1, 1]]]
    restate(files)


def less_noise_of_one_table(files):
    """Move cost from the measurements of one table to those of another one."""
    for part, factor in (("tables.persons", Fraction(1, 2)), ("tables.orders", 3)):
        for draw in records_of(files, part, ""):
            draw["variance"] = str(int((int(draw["variance"]) - 8) * factor) + 8)
    restate(files)


FORGERIES = {
    "noise of a search": (halve("tables.persons", "-domain"), "under the entry domain cost .*, but"),
    "noise of a search of a child": (halve("tables.orders", "-domain"), "under the entry domain cost .*, but"),
    "noise of units": (halve("tables.orders", "-units"), "under the entry units cost .*, but"),
    "threshold": (lower_threshold, "additive"),
    "missing searches": (without(("tables.orders", "-domain")), "tables.orders under the entry domain cost only 0"),
    "missing units": (without(("tables.persons", "-units")), "tables.persons under the entry units cost only 0"),
    "no units at all": (without_entry, "the entry .*-units is in no record"),
    "swapped tables": (swap_tables, "under the entry units cost|the draws in its name"),
    "smaller budget": (edit_job('"epsilon": 8.0', '"epsilon": 7.0'), "job.toml differs"),
    "other table without units": (edit_job('"count": "units"', '"count": "rows"'), "job.toml differs"),
    "shares": (less_noise_of_one_table, "the draws of tables.persons cost .*, but"),
    "fewer rows": (fewer_rows, "parts.json differs|cost only"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_bundle_is_refused(evidence, tmp_path, name):
    change, words = FORGERIES[name]
    folder = forge(evidence, tmp_path / "copy", change)
    faults = recompute.faults(folder)
    assert any(re.search(words, one) for one in faults), faults
    with refused(JobError):
        check_bundle(folder)


# ---- refused jobs ----------------------------------------------------------------------------------------------------


def public_orders(job):
    job["tables"]["orders"] = {"path": "orders/*.parquet", "domain": "orders.toml", "key": "order", "public": True}
    job["link"] = [{"kind": "many-to-many", "name": "bought", "parent": "persons", "child": "orders",
                    "via": "orders/*.parquet", "parent_key": "person", "child_key": "order"}]  # fmt: skip


def public_units(job):
    public_orders(job)
    job["budget"]["tables"]["orders"] = {"units": 0.5}


def without_key(job):
    job["tables"] = {"orders": {**job["tables"]["orders"]}}
    job["link"], job["budget"] = [], {}


def without_delta(job):
    job["privacy"] |= {"rho": 1.0}
    del job["privacy"]["epsilon"], job["privacy"]["delta"]


def pure(job):
    del job["privacy"]["delta"]


def large_delta(job):
    for shares in job["budget"]["tables"].values():
        shares["discover_delta"] = 5e-6


def dropped(job):
    job["tables"]["persons"]["domain"] = "dropping.toml"


def other_family(job):
    job["tables"]["orders"]["workload"].append({"family": "prefix", "degree": 1, "count": "units"})


def tiny_units(job):
    job["budget"]["tables"]["orders"]["units"] = 1e-60


def no_units(job):
    job["tables"]["orders"]["workload"].pop()


REFUSED = {
    "public table": public_orders,
    "units of a public table": public_units,
    "units of rows": without_key,
    "rho": without_delta,
    "pure": pure,
    "delta": large_delta,
    "dropped parents": dropped,
    "family": other_family,
    "share": tiny_units,
    "no part with units": no_units,
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_job_is_refused_in_one_sentence_and_spends_nothing(tmp_path, name):
    change = REFUSED[name]
    job = make_job(tmp_path)
    change(job)
    dropping = {**DOMAINS["persons"], "city": {"kind": "discover", "other": False}}
    with refused(DpscaleError) as caught:
        dp.run(write_tables(tmp_path, job, domains={"dropping": dropping}), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "ledger.sqlite").exists()


def test_dropped_parents_of_links_that_may_dangle(tmp_path):
    """The children of parents without a found value have no parent, and are not linked."""
    job = make_job(tmp_path)
    job["tables"]["persons"]["domain"] = "dropping.toml"
    job["link"][0]["dangling"] = "drop"
    dropping = {**DOMAINS["persons"], "city": {"kind": "discover", "other": False}}
    release = dp.run(write_tables(tmp_path, job, domains={"dropping": dropping}), tmp_path / "run")
    rows = {name: own.compute() for name, own in release.synthetic().items()}
    assert set(rows["persons"].city) <= set(CITIES)
    assert set(rows["orders"].person) <= set(rows["persons"].id)


def test_one_table_with_units_of_its_own(tmp_path):
    """A table without links has a column of units, and the same cells as in the short form."""
    frame = make_frames()["orders"]
    section = make_job(tmp_path)["tables"]["orders"] | {"privacy_unit": "person", "max_rows_per_unit": 2}
    job = make_job(tmp_path, tables={"orders": section}, link=[], budget={"tables": {"orders": {"units": 0.4}}})
    release = dp.run(write_tables(tmp_path, job), tmp_path / "run")
    orders = release.tables["orders"]
    assert orders.found("item").cell.tolist() == sorted(ITEMS)
    found = orders.units(["item", "month"]).estimate.sum()
    assert abs(found - frame.groupby("person").size().clip(upper=2).sum()) < 120
    assert UNITS["count"] in (release.path / "job.toml").read_text()
    assert isinstance(orders.units(["month", "item"]), pd.DataFrame)


@pytest.mark.parametrize("change", [
    "dangling", "duplicate", "mechanism",
])  # fmt: skip
def test_refused_keys_and_mechanisms_cost_nothing(tmp_path, change):
    """With two rows of one key, a replaced row would change three rows of the searches."""
    frames = make_frames()
    job = replaced_job(tmp_path) if change == "duplicate" else make_job(tmp_path)
    if change == "dangling":
        frames["orders"].loc[3, "person"] = 10**6
    elif change == "duplicate":
        frames["persons"].loc[5, "id"] = 6
    else:
        frames["orders"]["price"] = 1
        job["tables"]["orders"] |= {"mechanism": "aim-grem"}
        job["tables"]["orders"]["workload"] = [{"family": "sum", "of": "price", "degree": 1}]
        del job["budget"]["tables"]["orders"]["units"]
        job["budget"]["method"] = "planned"
    path = write_tables(tmp_path, job, frames)
    if change == "mechanism":
        content = {"attributes": DOMAINS["orders"], "numbers": {"price": {"low": 0, "high": 5}}}
        (tmp_path / "orders.toml").write_text(tomli_w.dumps(content))
    with refused(DpscaleError):
        dp.run(path, run_dir=tmp_path / "run")
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert not ledger.summary()["datasets"]


def test_totals_and_votes_of_a_linked_table(tmp_path):
    """A person has at most three orders, whose prices sum to at most 50 and whose items get votes."""
    frames = make_frames(persons=900)
    frames["orders"]["price"] = 40
    job = make_job(tmp_path)
    job["privacy"]["epsilon"] = 18.0
    job["tables"]["orders"]["workload"] = [{"family": "sum", "of": "price", "attributes": [["month"], []]},
                                           {"family": "marginal", "degree": 2}]  # fmt: skip
    del job["budget"]["tables"]["orders"]["units"]
    path = write_tables(tmp_path, job, frames)
    attributes = DOMAINS["orders"] | {"item": {"kind": "discover", "count": "units"}}
    numbers = {"price": {"high": 50, "per_unit": "total"}}
    (tmp_path / "orders.toml").write_text(tomli_w.dumps({"attributes": attributes, "numbers": numbers}))
    release = dp.run(path, run_dir=tmp_path / "run")
    orders = release.tables["orders"]
    kept = frames["orders"].groupby("person").size().clip(upper=BOUND)
    total, exact = orders.sum("price"), np.minimum(40 * kept, 50).sum()
    half = (total.high - total.low) / 2
    assert abs(total.estimate - exact) < 3 * half < 0.2 * exact
    assert abs(orders.total().estimate - kept.sum()) < 300
    assert set(ITEMS) <= set(orders.domain["item"].values)
    assert "votes, not records" in " ".join(orders.found("item").attrs["facts"])
    (tmp_path / "selftest.json").write_text(json.dumps([{"name": "none", "passed": True, "detail": "not run"}]))
    given = ["evidence", str(release.path), "--selftest", str(tmp_path / "selftest.json")]
    assert CliRunner().invoke(main, given, catch_exceptions=False).exit_code == 0
    assert check_bundle(release.path / "evidence")["parts"]
