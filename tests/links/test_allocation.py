"""Stage `allocate` of whole runs: one draw, one charge, shares that are kept, refusals, and evidence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence import recompute
from dpscale.audit.evidence.bundle import write_bundle
from dpscale.audit.evidence.check import check_bundle
from dpscale.engine.schedulers import resolve
from dpscale.job import Job
from dpscale.job.allocation import Allocation, Divisible, KnownSizes, likely_rows
from dpscale.ledger import Ledger
from dpscale.measurement.journal import StoredDraws
from dpscale.privacy.draws import SMOOTHING, GaussianDraw
from dpscale.relational import budget_shares
from dpscale.relational.degrees import degree_histogram
from dpscale.relational.features import BITS, Features
from dpscale.runs.linked_tables import LinkedTables
from dpscale.runs.links import first_measurement, measuring
from dpscale.runs.links.measuring import LinkDraws
from dpscale.runs.manifest import output_digest
from dpscale.runs.opening import open_run
from tests.audit.forging import forge, records_of, remove, restate
from tests.audit.test_bundle import PASSED
from tests.links.small import make_frames, make_job, run_digests, table_section, write_job
from tests.links.test_neighbours import make_database, remove_person, write_database
from tests.messages import refused
from tests.running import begin_linked, linked

PRECISE = {"privacy_cost": 200.0, "dataset": "shop", "allow_weak_privacy": True}
PLANNED = {"budget": {"method": "planned"}}


def entries(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of the ledger by the ends of their names."""
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        rows = ledger.summary("shop")["datasets"]["shop"]["releases"]
    return {"allocation" if row["release"].endswith("-allocation") else "release": row for row in rows}


def allocation(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "allocation/allocation.json").read_text())
    return content


def first_values(run: Path) -> dict[str, bytes]:
    return {str(file.relative_to(run)): file.read_bytes() for file in sorted(run.glob("allocation/*/*.parquet"))}


def stop_before(patched: object, name: str, path: Path, run: Path) -> None:
    """Run a job until a method of a class is called."""

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patched, name, stop)
        with pytest.raises(KeyboardInterrupt):
            dp.run(path, run)


@pytest.fixture(scope="module", autouse=True)
def divisions_cost_little() -> Iterator[None]:
    """Keep divisions of the budget, which most tests repeat with the same numbers, and search few bounds and starts."""
    kept, divide = dict[str, Allocation](), Divisible.divide

    def divide_once(self: Divisible, known: KnownSizes, measured: bool) -> Allocation:
        tables = [(name, self.sizes(name), self.unit_rows(name), self.above(name)) for name in self.private]
        links = [one.model_copy(update={"via": one.via and "pairs"}) for one in self.job.link]
        job = (self.job.total_budget.amount, self.job.given_shares, self.job.shares, self.job.budget)
        problem = repr((tables, links, job, self.neighbours.rows, self.neighbours.steps, known, measured))
        if problem not in kept:
            kept[problem] = divide(self, known, measured)
        return kept[problem]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Divisible, "divide", divide_once)
        patch.setattr(budget_shares, "CLIPS", budget_shares.CLIPS[-2:])
        patch.setattr(budget_shares, "STARTS", budget_shares.STARTS[:3])
        patch.setattr(budget_shares, "BEST", 1)
        yield


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a completed run, which is in `run`."""
    folder = tmp_path_factory.mktemp("shop")
    dp.run(write_job(folder, PLANNED), folder / "run")
    return folder


def test_both_entries_cost_the_budget_together(shop: Path) -> None:
    found = entries(shop)
    assert {row["state"] for row in found.values()} == {"released"}
    costs = {name: float(Fraction(row["cost"]["gaussian"])) for name, row in found.items()}
    assert costs["allocation"] == pytest.approx(0.02 * 8)
    assert sum(costs.values()) <= 8
    assert sum(costs.values()) == pytest.approx(8, rel=1e-3)
    shares = allocation(shop / "run")["shares"]
    assert sum(shares.values()) == pytest.approx(0.98)
    run = linked(shop / "run")
    assert run.job.shares == shares
    for name, table in run.tables.items():
        assert float(table.measurement_plan.cost.gaussian) <= 8 * shares[f"tables.{name}"] * (1 + 1e-9)


def test_first_measurement_is_close_to_the_data(shop: Path) -> None:
    content, frames = allocation(shop / "run"), make_frames()
    assert content["measured"]
    assert content["rows"]["persons"] == pytest.approx(300, abs=30)
    orders = frames["orders"].groupby("person").size().clip(upper=6).sum()
    assert content["rows"]["orders"] == pytest.approx(orders, abs=200)
    for name in ("errors", "random_links", "links"):
        assert set(content[name]) == {"orders", "ratings", "homes"}
    assert all(error <= 1.05 * content["random_links"][name] for name, error in content["errors"].items())


def test_resumed_first_measurement_draws_once(tmp_path: Path) -> None:
    path, original = write_job(tmp_path, PLANNED), StoredDraws.store
    calls = list[int]()

    def measure_some(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoredDraws, "store", measure_some)
        with pytest.raises(KeyboardInterrupt):
            dp.run(path, tmp_path / "run")
    before = first_values(tmp_path / "run")
    assert len(before) == 3
    assert list(entries(tmp_path)) == ["allocation"]
    dp.run(path, tmp_path / "run")
    assert first_values(tmp_path / "run").items() >= before.items()
    assert len(entries(tmp_path)) == 2
    shutil.rmtree(tmp_path / "ledger.sqlite", ignore_errors=True)
    for file in tmp_path.glob("ledger.sqlite*"):
        file.unlink()
    dp.run(path, tmp_path / "undisturbed")
    assert first_values(tmp_path / "run") == first_values(tmp_path / "undisturbed")
    assert run_digests(tmp_path / "run") == run_digests(tmp_path / "undisturbed")


def test_copy_with_other_data_is_refused(tmp_path: Path) -> None:
    """Planted: a copy of the directory, with the same key, draws the first measurement from other persons."""
    path, run = write_job(tmp_path, PLANNED), tmp_path / "run"
    stop_before(StoredDraws, "store", path, run)
    (tmp_path / "data/persons/0.parquet").unlink()
    make_frames()["persons"].assign(age=0).to_parquet(tmp_path / "data/persons/0.parquet", index=False)
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"snapshot": None}))
    with refused(dp.BudgetError):
        dp.run(path, run)
    assert not first_values(run)


def test_edited_shares_cost_no_more_than_the_budget(tmp_path: Path) -> None:
    """Planted: the shares are doubled after they were decided."""
    path, run = write_job(tmp_path, PLANNED), tmp_path / "run"
    done = CliRunner().invoke(main, ["run", str(path), "--only", "allocate", "--run-dir", str(run), "--quiet"])
    assert (done.exit_code, done.stdout) == (0, "allocate: done\n"), done.output
    content = allocation(run)
    content["shares"] = {name: 2 * share for name, share in content["shares"].items()}
    (run / "allocation/allocation.json").write_text(json.dumps(content))
    done = CliRunner().invoke(main, ["run", str(path), "--run-dir", str(run), "--quiet"])
    assert done.exit_code in (2, 3)
    assert list(entries(tmp_path)) == ["allocation"]


def test_shares_edited_after_a_draw_are_refused(tmp_path: Path) -> None:
    """Planted: killed after the first link is drawn, its share is given to another link; the same in a copy."""
    path, run, original = write_job(tmp_path, PLANNED), tmp_path / "run", StoredDraws.store
    assert (
        CliRunner().invoke(main, ["run", str(path), "--only", "allocate", "--run-dir", str(run), "--quiet"]).exit_code
        == 0
    )

    def measure_one(self: Any, number: int, *arguments: Any) -> Any:
        if number == LinkDraws.number("u"):
            raise KeyboardInterrupt
        return original(self, number, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoredDraws, "store", measure_one)
        with pytest.raises(KeyboardInterrupt):
            dp.run(path, run)
    drawn = sorted(run.glob("links/*/*.parquet"))
    assert drawn
    content = allocation(run)
    shares = content["shares"]
    shares["links.orders"], shares["links.homes"] = shares["links.homes"], shares["links.orders"]
    (run / "allocation/allocation.json").write_text(json.dumps(content))
    done = CliRunner().invoke(main, ["run", str(path), "--run-dir", str(run), "--quiet"])
    assert done.exit_code in (2, 3), done.output
    assert sorted(run.glob("links/*/*.parquet")) == drawn


def test_stop_between_division_and_ledger_keeps_the_division(tmp_path: Path) -> None:
    links = make_job()["link"]
    links[0] |= {"max_degree": "private"}
    path, run = write_job(tmp_path, PLANNED | {"link": links}), tmp_path / "run"
    stop_before(first_measurement, "division_journal", path, run)
    content = allocation(run)
    assert set(content["bounds"]) == {"orders"}
    dp.run(path, run)
    assert allocation(run) == content
    assert linked(run).neighbours.rows["orders"] == content["bounds"]["orders"]


def test_plan_after_an_interrupted_first_measurement_is_refused(tmp_path: Path) -> None:
    path, run = write_job(tmp_path, PLANNED), tmp_path / "run"
    stop_before(StoredDraws, "store", path, run)
    done = CliRunner().invoke(main, ["plan", str(path), "--run-dir", str(run), "--quiet"])
    assert (done.exit_code, "--only allocate" in done.stderr) == (2, True), done.stderr
    dp.run(path, run)
    assert len(entries(tmp_path)) == 2


def test_dangling_key_is_refused_before_a_private_bound_is_measured(tmp_path: Path) -> None:
    frames, links = make_frames(), make_job()["link"]
    links[0] |= {"max_degree": "private"}
    frames["ratings"].loc[3, "code"] = 10**6
    path = write_job(tmp_path, PLANNED | {"link": links}, frames)
    with refused(dp.DataError):
        dp.run(path, tmp_path / "run")
    assert (
        not (tmp_path / "ledger.sqlite").exists() or not Ledger.open(tmp_path / "ledger.sqlite").summary()["datasets"]
    )


def test_plan_first_divides_without_data(tmp_path: Path) -> None:
    path, run = write_job(tmp_path, PLANNED), tmp_path / "run"
    done = CliRunner().invoke(main, ["plan", str(path), "--run-dir", str(run), "--quiet"])
    assert done.exit_code == 0, done.output
    shares = allocation(run)["shares"]
    assert not allocation(run)["measured"]
    assert sum(shares.values()) == pytest.approx(1)
    dp.run(path, run)
    assert list(entries(tmp_path)) == ["release"]
    assert linked(run).job.shares == shares


def test_run_of_an_older_version_keeps_equal_shares(tmp_path: Path) -> None:
    path, run = write_job(tmp_path, PLANNED), tmp_path / "run"
    begin_linked(Job.read(path), run)
    manifest = json.loads((run / "manifest.json").read_text())
    manifest.pop("divides")
    (run / "manifest.json").write_text(json.dumps(manifest))
    dp.run(path, run)
    assert list(entries(tmp_path)) == ["release"]
    assert set(linked(run).job.shares.values()) == {0.2}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["orders", "ratings", "homes"])
def test_link_without_a_share_is_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path, run, record = write_job(tmp_path, PLANNED), tmp_path / "run", LinkedTables.record_allocation

    def without_share(self: LinkedTables, content: dict[str, Any]) -> None:
        record(self, {**content, "shares": content["shares"] | {f"links.{kind}": 0.0}})

    monkeypatch.setattr(LinkedTables, "record_allocation", without_share)
    found = {name: frame.compute() for name, frame in dp.run(path, run).synthetic().items()}
    assert not list((run / "links" / kind).glob("*.parquet"))
    assert found["orders"].person.isin(found["persons"].id).all()
    assert found["orders"].person.value_counts().max() <= 6
    assert len(found["ratings"]) > 100
    assert found["persons"].country.notna().all()


@pytest.mark.parametrize("hashed", [True, False])
def test_edited_division_is_refused(tmp_path: Path, hashed: bool) -> None:
    """Also with a new hash in the manifest: the ledger has the division that was decided."""
    path, run = write_job(tmp_path, PLANNED), tmp_path / "run"
    assert (
        CliRunner().invoke(main, ["run", str(path), "--only", "allocate", "--run-dir", str(run), "--quiet"]).exit_code
        == 0
    )
    content = allocation(run)
    content["shares"]["links.orders"], content["shares"]["tables.persons"] = (
        content["shares"]["tables.persons"], content["shares"]["links.orders"])  # fmt: skip
    (run / "allocation/allocation.json").write_text(json.dumps(content))
    manifest = json.loads((run / "manifest.json").read_text())
    manifest["stages"]["allocate"]["sha256"] = output_digest(run, run / "allocation")
    if not hashed:
        del manifest["stages"]["allocate"]["sha256"]
    (run / "manifest.json").write_text(json.dumps(manifest))
    with refused(dp.BudgetError if hashed else dp.JobError):
        dp.run(path, run)
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        [one] = ledger.summary()["datasets"].values()
    assert [row["release"].rpartition("-")[2] for row in one["releases"]] == ["allocation"]


def test_evidence_contains_the_first_measurement(shop: Path, tmp_path: Path) -> None:
    write_bundle(open_run(shop / "run"), PASSED)
    assert check_bundle(shop / "run/evidence")["sound"]
    files = recompute.read_files(shop / "run/evidence")
    drawn = {one["bound"] for one in records_of(files, "together")}
    assert drawn == set(files["parts"]["together"]["bounds"])
    assert {"tables.persons/rows", "tables.persons/ones", "degrees.orders/degrees", "links.orders/both"} <= drawn
    for name, (change, message) in FORGERIES.items():
        folder = forge(shop / "run/evidence", tmp_path / name.replace(" ", "-"), change)
        faults = recompute.faults(folder)
        assert any(message in fault for fault in faults), (name, faults)


def drawn(files: Any, name: str) -> Any:
    return next(one for one in records_of(files, "together") if one["bound"] == name)


def with_costs(change: Any) -> Any:
    """Return a change, with the costs that follow."""

    def changed(files: Any) -> None:
        change(files)
        restate(files)

    return changed


def bounds(files: Any) -> Any:
    return files["parts"]["together"]["bounds"]


def without_entry(files: Any) -> None:
    remove(files, records_of(files, "together"))
    del files["parts"]["together"]
    restate(files)


FORGERIES = {
    "noise": (lambda files: drawn(files, "links.orders/both").update(variance="9"), "the listed cost is wrong"),
    "noise with its cost": (
        with_costs(lambda files: drawn(files, "tables.persons/rows").update(variance="9")), "was charged"),
    "invalid noise": (lambda files: drawn(files, "degrees.orders/degrees").update(variance="-1"), "invalid noise"),
    "other group": (lambda files: drawn(files, "links.orders/u").update(group="links.ratings"), "of another group"),
    "missing draw": (
        with_costs(lambda files: remove(files, [drawn(files, "links.orders/u")])), "lacks the draw of links.orders/u"),
    "missing degrees": (
        with_costs(lambda files: remove(files, [drawn(files, "degrees.orders/degrees")])), "lacks the draw of degrees"),
    "no first measurement": (without_entry, "-allocation is in no record"),
    "share": (lambda files: files["parts"]["links.orders"]["costs"][""].update(gaussian="1/2"), "parts.json diff"),
    "rows of a unit": (
        with_costs(lambda files: bounds(files)["tables.persons/ones"].update(changes=[[[1, 1]]])), "parts.json diff"),
    "moved": (
        with_costs(lambda files: bounds(files)["links.ratings/links"].update(changes=[[[1, 1]]])), "parts.json diff"),
    "charge": (
        lambda files: files["parts"]["together"]["costs"]["-allocation"].update(gaussian="1/10"), "the parts cost"),
}  # fmt: skip


def test_evidence_of_protected_pairs(tmp_path: Path) -> None:
    """No degrees are measured before the bound, and the public number of links is not; the sums have the rest."""
    link = {"kind": "many-to-many", "name": "ratings", "parent": "persons", "child": "products", "child_key": "code",
            "via": "data/ratings/*.parquet", "max_degree": 60, "protects": "both", "links": 900}  # fmt: skip
    sections = {"persons": table_section("persons", "id"), "products": table_section("products", "code")}
    dp.run(write_job(tmp_path, PLANNED, tables=sections, link=[link]), tmp_path / "run")
    write_bundle(open_run(tmp_path / "run"), PASSED)
    assert check_bundle(tmp_path / "run/evidence")["sound"]


def cost_of_change(squared: int, draw: GaussianDraw) -> Fraction:
    """Return μ² of counts that a neighbour changes by so much in squared L2."""
    return Fraction(squared * draw.multiplier**2, draw.variance - SMOOTHING)


@pytest.mark.parametrize("seed", [0, 1])
def test_rows_and_attributes_of_the_root_change_by_one_unit(tmp_path: Path, seed: int) -> None:
    """Brute force on files; the sums over links are those of test_neighbours. Planted: a unit of two rows."""
    rng, data = np.random.default_rng(seed), make_database(seed)
    features, engine = Features((2, 3), (), None), resolve(scheduler="synchronous")

    def statistics(folder: Path, frames: Any) -> tuple[int, np.ndarray]:
        job = write_database(folder, frames, rng)
        first = first_measurement.job_of_public_cells(job)
        run = begin_linked(job, folder / "run")
        exact = measuring.read_all(first, run.neighbours, engine)
        links, side = first_measurement.end_of(first, "persons", exact)
        return links.table_rows(side), links.table_sums(side, features)

    rows, sums = statistics(tmp_path / "all", data)
    changes = list[int]()
    for person in range(6):
        fewer, less = statistics(tmp_path / f"without-{person}", remove_person(data, person))
        assert rows - fewer == 1
        changes.append(int(((sums - less) ** 2).sum()))
    assert max(changes) <= features.squared
    run = linked(tmp_path / "all" / "run")
    first = first_measurement.FirstMeasurement(run, first_measurement.job_of_public_cells(run.job))
    assert cost_of_change(max(changes), first.ones_draw("persons")) <= first.amount * first_measurement.ONES
    assert cost_of_change(1, first.rows_draw("persons")) <= first.amount * first_measurement.ROWS
    fewer, less = statistics(tmp_path / "planted", remove_person(remove_person(data, 0), 1))
    assert rows - fewer == 2
    assert features.squared > 4**BITS // 2


def test_private_bound_cuts_few_links(tmp_path: Path) -> None:
    """Persons have up to about 20 orders: the histogram finds a bound, which the released degrees respect."""
    rng, frames = np.random.default_rng(3), make_frames()
    degrees = rng.integers(0, 21, len(frames["persons"]))
    orders = frames["orders"].sample(degrees.sum(), replace=True, random_state=0).reset_index(drop=True)
    frames["orders"] = orders.assign(person=np.repeat(frames["persons"].id.to_numpy(), degrees))
    links = make_job()["link"]
    links[0] |= {"max_degree": "private"}
    path = write_job(tmp_path, PLANNED | {"link": links, "privacy": PRECISE}, frames)
    release = dp.run(path, tmp_path / "run")
    content = allocation(tmp_path / "run")
    bound = content["bounds"]["orders"]
    assert np.maximum(degrees - bound, 0).sum() / degrees.sum() < 0.1
    assert content["cut"]["orders"] == pytest.approx(np.maximum(degrees - bound, 0).sum() / degrees.sum(), abs=0.05)
    assert bound in (12, 16, 24)
    assert release.synthetic()["orders"].compute().person.value_counts().max() <= bound
    assert linked(tmp_path / "run").neighbours.rows["orders"] == bound
    write_bundle(open_run(tmp_path / "run"), PASSED)
    assert check_bundle(tmp_path / "run/evidence")["sound"]


def test_bound_of_a_chain_is_chosen_from_the_top(tmp_path: Path) -> None:
    """Brute force: degrees before the bound change by the rows of a unit among the parents. Planted: one row."""
    rng, engine = np.random.default_rng(4), resolve(scheduler="synchronous")
    data, histograms = make_database(1), {}
    for person in (None, *range(6)):
        frames = data if person is None else remove_person(data, person)
        job = first_measurement.job_of_public_cells(write_database(tmp_path / f"at-{person}", frames, rng))
        run = begin_linked(job, tmp_path / f"at-{person}" / "run")
        exact = measuring.read_all(job, run.neighbours, engine)
        histograms[person] = {
            name: degree_histogram(exact[name].unbounded) for name in ("accounts", "payments", "tags")
        }
    first = first_measurement.FirstMeasurement(run, job)
    assert [link.called for link in first.bounded_links] == ["accounts", "payments", "tags"]
    worst = dict.fromkeys(histograms[None], 0)
    for person in range(6):
        for name, counts in histograms[person].items():
            worst[name] = max(worst[name], int(((counts - histograms[None][name]) ** 2).sum()))
    for link in first.bounded_links:
        assert worst[link.called] <= first.neighbours.rows[link.parent] ** 2
        spent = cost_of_change(worst[link.called], first.degrees_draw(link))
        assert spent <= first.amount * first.degrees_part / len(first.bounded_links)
    assert worst["payments"] > 1


@pytest.mark.parametrize("change", [{"parent": "persons", "child": "persons", "child_key": "person", "name": "boss"},
                                    {"protects": "both"}, {"method": "equal"}])  # fmt: skip
def test_private_bound_is_refused_where_it_cannot_be_measured(tmp_path: Path, change: dict[str, str]) -> None:
    links, method = make_job()["link"], change.pop("method", "planned")
    links[1 if "protects" in change else 0] |= {"max_degree": "private"} | change
    job = {"link": links[1:2] if "protects" in change else links, "budget": {"method": method}}
    if "protects" in change:
        tables = make_job()["tables"]
        job["tables"] = {name: tables[name] for name in ("persons", "products")}
    done = CliRunner().invoke(
        main, ["run", str(write_job(tmp_path, job)), "--run-dir", str(tmp_path / "run"), "--quiet"]
    )
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output
    assert "private" in done.stderr
    assert not (tmp_path / "run").exists()


def test_plan_before_a_private_bound_is_refused(tmp_path: Path) -> None:
    links = make_job()["link"]
    links[0] |= {"max_degree": "private"}
    path, run = write_job(tmp_path, PLANNED | {"link": links}), tmp_path / "run"
    done = CliRunner().invoke(main, ["plan", str(path), "--run-dir", str(run), "--quiet"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "--only allocate" in done.stderr


def test_likely_rows_follow_precise_counts_and_the_prior_otherwise() -> None:
    assert likely_rows(5000.0, 10.0, 10_000.0, 3.0) == pytest.approx(5000, rel=0.02)
    assert likely_rows(-300.0, 1e5, 4000.0, 1.0) == pytest.approx(4000, rel=0.3)
    assert 10 <= likely_rows(-1e6, 10.0, 10_000.0, 3.0) < 20


@pytest.mark.parametrize(("content", "message"), [({"method": "best"}, "'planned' or 'equal'"), ({"first": 0.7}, "0.5"),
                                                  ({"firs": 0.1}, "first")])  # fmt: skip
def test_wrong_settings_are_refused_in_one_sentence(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    path = write_job(tmp_path, {"budget": content})
    done = CliRunner().invoke(main, ["run", str(path), "--run-dir", str(tmp_path / "run"), "--quiet"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr
    assert make_job()["budget"] == {"method": "equal"}


def test_end_after_the_first_measurement_states_its_cost(tmp_path: Path) -> None:
    path, run = write_job(tmp_path, PLANNED), tmp_path / "run"
    assert (
        CliRunner().invoke(main, ["run", str(path), "--only", "allocate", "--run-dir", str(run), "--quiet"]).exit_code
        == 0
    )
    assert (run / "secret.key").exists()
    done = CliRunner().invoke(main, ["job", "end", str(run), "--json"])
    assert done.exit_code == 0, done.output
    assert float(Fraction(json.loads(done.stdout)["allocation"]["cost"]["gaussian"])) == pytest.approx(0.16)
    assert not (run / "secret.key").exists()
    done = CliRunner().invoke(main, ["run", str(path), "--run-dir", str(run), "--quiet"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "was ended" in done.stderr


@pytest.mark.parametrize(("bound", "message"), [("privat", "an integer from 1 to 1,000,000"), (0, "at least 1")])
def test_wrong_bound_is_refused_with_both_kinds_of_values(tmp_path: Path, bound: object, message: str) -> None:
    links = make_job()["link"]
    links[0] |= {"max_degree": bound}
    done = CliRunner().invoke(main, ["plan", str(write_job(tmp_path, PLANNED | {"link": links})), "--quiet"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert message in done.stderr
