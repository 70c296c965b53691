"""Whole runs of several tables: referential integrity, one charge, reproducible bytes, resumption and refusals."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner

import dpscale as dp
from dpscale.__main__ import main
from dpscale.measurement.journal import StoredDraws
from dpscale.runs.links import parts
from dpscale.runs.links.measuring import LinkDraws
from dpscale.runs.opening import open_part
from tests.links.small import DOMAINS, make_frames, make_job, run_digests, table_section, write_job
from tests.messages import refused


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a completed run, which is in `run`."""
    folder = tmp_path_factory.mktemp("shop")
    dp.run(write_job(folder), folder / "run")
    return folder


def list_charges(folder: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as db:
        return list(db.execute("SELECT dataset, state FROM releases"))


def test_foreign_keys_are_valid_and_degrees_bounded(shop: Path) -> None:
    found = {name: frame.compute() for name, frame in dp.Release.open(shop / "run").synthetic().items()}
    assert set(found) == {"persons", "orders", "products", "countries", "ratings"}
    persons, orders, ratings = found["persons"], found["orders"], found["ratings"]
    assert list(persons.columns) == ["id", "country", "age", "sex"]
    assert list(orders.columns) == ["person", "month", "amount"]
    assert persons.id.is_unique
    assert persons.id.iloc[0] == "persons-0"
    assert orders.person.isin(persons.id).all()
    assert orders.person.value_counts().max() <= 6
    assert ratings.id.isin(persons.id).all()
    assert ratings.code.isin(found["products"].code).all()
    assert not ratings.duplicated().any()
    assert ratings.id.value_counts().max() <= 5
    assert persons.country.isin(found["countries"].country).all()
    assert len(persons) == pytest.approx(300, abs=60)


def test_keys_that_are_dictionaries_of_texts_are_texts(tmp_path: Path) -> None:
    frames = make_frames()
    towns = ["Graz", "Linz", "Wien", "Bonn", "Ulm"]
    for name in ("persons", "countries"):
        frames[name]["country"] = [towns[one] for one in frames[name]["country"]]
    for name, columns in {"persons": ["id", "country"], "orders": ["person"], "countries": ["country"]}.items():
        frames[name] = frames[name].astype(dict.fromkeys(columns, "category"))
    release = dp.run(write_job(tmp_path, data=frames), tmp_path / "run")
    found = {name: frame.compute() for name, frame in release.synthetic().items()}
    assert found["persons"].id.iloc[0] == "persons-0"
    assert found["orders"].person.isin(found["persons"].id).all()
    assert found["persons"].country.isin(towns).all()


def test_public_table_is_released_unchanged(shop: Path) -> None:
    found = dp.Release.open(shop / "run").synthetic()["products"].compute()
    truth = make_frames()["products"]
    pd.testing.assert_frame_equal(found[list(truth.columns)].astype({"label": object}), truth.astype({"label": object}),
                                  check_dtype=False)  # fmt: skip


def test_links_reflect_dependence_on_attributes(shop: Path) -> None:
    """Older persons order more, and women's orders are small."""
    found = {name: frame.compute() for name, frame in dp.Release.open(shop / "run").synthetic().items()}
    both = found["orders"].merge(found["persons"], left_on="person", right_on="id")
    each = found["orders"].person.value_counts().reindex(found["persons"].id).fillna(0).to_numpy()
    assert each[found["persons"].age == 3].mean() > 1.5 * each[found["persons"].age == 0].mean()
    assert both[both.sex == "F"].amount.mean() < 0.5 * both[both.sex == "M"].amount.mean()


def test_release_is_charged_once(shop: Path) -> None:
    assert list_charges(shop) == [("shop", "released")]
    run = shop / "run"
    cost = dp.Release.open(run).manifest["privacy"]["cost"]
    assert 0.99 * 8 < fraction_value(cost["gaussian"]) <= 8
    assert not list(run.rglob("secret.key"))


def fraction_value(text: str) -> float:
    from fractions import Fraction

    return float(Fraction(text))


def test_repeated_run_reads_and_spends_nothing(shop: Path) -> None:
    before = run_digests(shop / "run")
    again = CliRunner().invoke(main, ["run", str(shop / "job.toml"), "--run-dir", str(shop / "run"), "--quiet"])
    assert again.exit_code == 0, again.output
    assert "nothing read, nothing spent" in again.stderr
    assert run_digests(shop / "run") == before
    assert list_charges(shop) == [("shop", "released")]


@pytest.mark.parametrize("scheduler", ["threads", pytest.param("processes", marks=pytest.mark.slow)])
def test_link_sums_do_not_depend_on_engine_partitions_or_row_order(shop: Path, tmp_path: Path, scheduler: str) -> None:
    """Link sums are compared exactly; noise differs because it depends on the snapshot of the files."""
    from dpscale.engine.schedulers import resolve
    from dpscale.job import Job
    from dpscale.job.neighbours import neighbour_relation
    from dpscale.relational.features import Features
    from dpscale.runs.links.link_data import read_links

    shuffled = {name: frame.sample(frac=1, random_state=1) for name, frame in make_frames().items()}
    write_job(tmp_path, data=shuffled, parts=3)
    found = []
    for path, engine in ((shop / "job.toml", "synchronous"), (tmp_path / "job.toml", scheduler)):
        read = Job.read(path)
        with_engine = resolve(scheduler=engine)
        for link in read.link:
            exact = read_links(with_engine, read, link, neighbour_relation(read))
            sizes = [
                tuple(read.domains[name][one].size for one in read.domains[name].names)
                for name in (link.parent, link.child)
            ]
            u, v = (Features(own, tuple(np.full(size, 1 / size) for size in own), None) for own in sizes)
            degrees = [exact.by_degree(side, np.arange(6)).tolist() for side in (0, 1)]
            found.append([len(exact.rows), degrees, *(one.tolist() for one in exact.sums(u, v))])
        with_engine.close()
    half = len(found) // 2
    assert found[:half] == found[half:]


def test_resumed_run_has_same_noise(shop: Path, tmp_path: Path) -> None:
    """The run is stopped after the first sum of the first link is on disk: it stays, and the rest is the same."""

    path = write_job(tmp_path)
    original, calls = StoredDraws.store, []

    def measure_once(self: Any, *arguments: Any) -> Any:
        if calls:
            raise KeyboardInterrupt
        calls.append(1)
        return original(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoredDraws, "store", measure_once)
        with pytest.raises(KeyboardInterrupt):
            dp.run(path, tmp_path / "run")
    assert list_charges(tmp_path) == [("shop", "reserved")]
    assert len(list((tmp_path / "run").glob("links/*/*.parquet"))) == 1
    dp.run(path, tmp_path / "run")
    assert list_charges(tmp_path) == [("shop", "released")]
    for file in tmp_path.glob("ledger.sqlite*"):
        file.unlink()
    dp.run(path, tmp_path / "undisturbed")
    assert run_digests(tmp_path / "run") == run_digests(tmp_path / "undisturbed")


def test_copied_directory_with_other_links_is_refused(tmp_path: Path) -> None:
    """The release is charged once: a copy of the directory with other links is refused before a draw."""

    path = write_job(tmp_path)

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoredDraws, "store", stop)
        with pytest.raises(KeyboardInterrupt):
            dp.run(path, tmp_path / "run")
    (tmp_path / "data/ratings/0.parquet").unlink()
    make_frames(5)["ratings"].to_parquet(tmp_path / "data/ratings/0.parquet", index=False)
    with refused(dp.DataError):
        dp.run(path, tmp_path / "run")
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    (tmp_path / "run/manifest.json").write_text(json.dumps(manifest | {"snapshot": None}))
    with refused(dp.BudgetError):
        dp.run(path, tmp_path / "run")


def test_protects_both_sides(tmp_path: Path) -> None:
    link = {"kind": "many-to-many", "name": "ratings", "parent": "persons", "child": "products", "child_key": "code",
            "via": "data/ratings/*.parquet", "max_degree": 60, "protects": "both"}  # fmt: skip
    tables = {"persons": table_section("persons", "id"), "products": table_section("products", "code")}
    path = write_job(
        tmp_path, tables=tables, link=[link], budget={"method": "equal", "tables": {"products": {"share": 0.2}}}
    )
    release = dp.run(path, tmp_path / "run")
    found = {name: frame.compute() for name, frame in release.synthetic().items()}
    assert found["ratings"].code.isin(found["products"].code).all()
    assert release.manifest["privacy"]["relation"] == "replace"
    assert len(release.tables) == 2
    with closing(sqlite3.connect(tmp_path / "ledger.sqlite")) as db:
        assert list(db.execute("SELECT count(*) FROM releases")) == [(1,)]


def test_duplicate_keys_are_one_unit_in_any_order(tmp_path: Path) -> None:
    from dpscale.engine.schedulers import resolve
    from dpscale.job import Job
    from dpscale.runs.links.link_data import keyed

    data = make_frames()
    twice = data["persons"].head(20).assign(age=lambda one: 3 - one.age)
    for name, order in (("one", [data["persons"], twice]), ("other", [twice, data["persons"]])):
        write_job(tmp_path / name, data=data | {"persons": pd.concat(order)})
    engine = resolve(scheduler="synchronous")
    one, other = (keyed(engine, Job.read(tmp_path / name / "job.toml"), "persons") for name in ("one", "other"))
    assert len(one.codes) == 300
    assert (one.codes == other.codes).all()
    rejecting = make_job()["tables"] | {"persons": table_section("persons", "id", duplicates="reject")}
    with refused(dp.DataError):
        dp.run(
            write_job(tmp_path / "one", data=data | {"persons": pd.concat([data["persons"], twice])}, tables=rejecting),
            tmp_path / "run",
        )
    assert not list_charges(tmp_path / "one")


LINKS = make_job()["link"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"link": [LINKS[0] | {"parent": "person"}]}, "did you mean 'persons'"),
        ({"link": [LINKS[0] | {"kind": "many"}]}, "link.0.kind: 'many'"),
        ({"link": [LINKS[0] | {"via": "x"}]}, "is required for kind many-to-many"),
        ({"link": [LINKS[0] | {"protects": "both"}]}, "requires kind many-to-many"),
        ({"link": [LINKS[1] | {"protects": "both"}, LINKS[0]]}, "one privacy unit in a job"),
        ({"link": [LINKS[0], LINKS[0]]}, "expected distinct names"),
        ({"link": LINKS[1:]}, "rows of persons, orders to protect"),
        ({"tables": make_job()["tables"] | {"persons": table_section("persons")}}, "tables.persons.key: missing"),
        ({"tables": make_job()["tables"] | {"persons": table_section("persons", "age")}}, "which is in the domain"),
        ({"budget": {"tables": {"persons": {"share": 1.0}}}}, "no remainder for"),
        ({"tables": make_job()["tables"] | {"persons": table_section("persons", "id", mechanism="aim-green")}},
         "aim-grem"),
        ({"tables": make_job()["tables"] | {"persons": table_section("persons", "id", nonsense=1)}}, "nonsense"),
        ({"tables": make_job()["tables"] | {"products": table_section("products", "code")}},
         "rows of persons, products to protect"),
        ({"privacy": {"epsilon": 1.0}}, "delta"),
        ({"link": [LINKS[0], LINKS[0] | {"name": "more", "parent": "countries"}]}, "'person' for two keys"),
        ({"link": [LINKS[1] | {"child_key": "id"}, LINKS[0]]}, "'id' for two keys"),
        ({"link": [LINKS[1] | {"protects": "both"}],
          "tables": {"persons": table_section("persons", "id", duplicates="keep"),
                     "products": table_section("products", "code")}},
         "but neighbours replace a row"),
        ({"link": [LINKS[0] | {"child_key": "persn"}]}, "no column 'persn'"),
    ],
)  # fmt: skip
def test_invalid_job_is_refused_in_one_sentence_without_charge(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    done = CliRunner().invoke(
        main, ["run", str(write_job(tmp_path, changes)), "--run-dir", str(tmp_path / "run"), "--quiet"]
    )
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1), (done.output, done.exception)
    assert message in done.stderr
    assert not (tmp_path / "ledger.sqlite").exists() or not list_charges(tmp_path)


def make_frame(**columns: list[Any]) -> pd.DataFrame:
    return pd.DataFrame(columns)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"ratings": make_frame(id=["p1", None], code=[100, 101])}, "a null"),
        ({"ratings": make_frame(id=["p1", "nobody"], code=[100, 101])}, "a key without a row"),
        (
            {"ratings": make_frame(id=["p1"], code=[pd.Timestamp("2020-01-01")])},
            "ids that cannot be compared|in another",
        ),
    ],
)
@pytest.mark.parametrize("dropped", [False, True])
def test_invalid_foreign_keys_are_refused_or_dropped(
    tmp_path: Path, data: dict[str, pd.DataFrame], message: str, dropped: bool
) -> None:
    policies = {"nulls": "drop", "dangling": "drop"} if dropped else {}
    path = write_job(tmp_path, {"link": [LINKS[0], LINKS[1] | policies, LINKS[2]]}, make_frames() | data)
    if dropped and "in another" not in message:
        assert len(dp.run(path, tmp_path / "run").synthetic()["ratings"].columns) == 2
        return
    with refused(dp.DataError):
        dp.run(path, tmp_path / "run")
    assert not (tmp_path / "ledger.sqlite").exists() or not list_charges(tmp_path)


def test_row_with_too_many_links_is_refused_without_number(tmp_path: Path) -> None:
    link = LINKS[1] | {"protects": "both", "max_degree": 2}
    tables = {"persons": table_section("persons", "id"), "products": table_section("products", "code")}
    with refused(dp.DataError):
        dp.run(write_job(tmp_path, tables=tables, link=[link]), tmp_path / "run")
    assert not (tmp_path / "ledger.sqlite").exists() or not list_charges(tmp_path)


def test_plan_states_neighbours_without_reading_data(tmp_path: Path) -> None:
    path = write_job(tmp_path)
    shutil.rmtree(tmp_path / "data")
    done = CliRunner().invoke(main, ["plan", str(path), "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert "one row of persons, added or removed together with all its links and children" in answer["neighbours"]
    assert {one["name"]: one["moved"] for one in answer["pieces"]} == {
        "tables.persons": 1, "tables.orders": 6, "links.orders": 6, "links.ratings": 5, "links.homes": 1,
    }  # fmt: skip


def test_plan_states_expected_errors(tmp_path: Path) -> None:
    """The noise of the number of links by definition; errors decrease with the budget and the number of links."""
    expected: dict[float, dict[str, Any]] = {}
    for cost in (8.0, 32.0):
        path = write_job(tmp_path, privacy={"privacy_cost": cost, "dataset": "shop", "allow_weak_privacy": True})
        answer = json.loads(CliRunner().invoke(main, ["plan", str(path), "--json"]).stdout)
        expected[cost] = {one["name"]: one["expected"] for one in answer["pieces"]}
    little, much = expected[8.0], expected[32.0]
    share = 8.0 / 5 / 20  # five pieces; a twentieth of a link's is for how many there are
    assert little["links.ratings"]["links"] == pytest.approx(5 / share**0.5, rel=1e-3)
    assert little["links.orders"]["links"] is None
    assert little["links.homes"]["degrees"] is None
    for name in ("links.orders", "links.ratings", "links.homes"):
        assert sorted(little[name]["random"].values(), reverse=True) == list(little[name]["random"].values())
        assert all(0 < much[name]["random"][at] < one < 1 for at, one in little[name]["random"].items())
    for name in ("tables.persons", "tables.orders"):
        assert much[name]["rmse"] == pytest.approx(little[name]["rmse"] / 2, rel=1e-3)
    text = CliRunner().invoke(main, ["plan", str(path)]).stdout
    assert "expected error relative to random links" in text
    assert "expected error of a query" in text


def test_interruption_after_secret_is_destroyed_loses_nothing(tmp_path: Path) -> None:
    """The secret is destroyed before this is recorded: drawn values are on disk, and the run completes with them."""
    from dpscale.runs import run as runs

    path, destroy = write_job(tmp_path), runs.destroy_secret

    def delete_secret_and_stop(secret: Path) -> None:
        destroy(secret)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "destroy_secret", delete_secret_and_stop)
        with pytest.raises(KeyboardInterrupt):
            dp.run(path, tmp_path / "run")
    before = {name: digest for name, digest in run_digests(tmp_path / "run").items() if "links" in name}
    dp.run(path, tmp_path / "run")
    after = run_digests(tmp_path / "run")
    assert before
    assert all(after[name] == digest for name, digest in before.items())
    assert list_charges(tmp_path) == [("shop", "released")]


def test_repeated_pair_is_one_link(tmp_path: Path) -> None:
    from dpscale.engine.schedulers import resolve
    from dpscale.job import Job
    from dpscale.job.neighbours import neighbour_relation
    from dpscale.runs.links.link_data import read_links

    data, found = make_frames(), []
    for name, pairs in (("once", data["ratings"]), ("thrice", pd.concat([data["ratings"]] * 3))):
        read = Job.read(write_job(tmp_path / name, data=data | {"ratings": pairs}))
        exact = read_links(resolve(scheduler="synchronous"), read, read.link[1], neighbour_relation(read))
        found.append(sorted(map(tuple, exact.rows.tolist())))
    assert found[0] == found[1]


def stop_before_draw(path: Path, run: Path, name: str) -> None:
    """Run a job and stop it before the draw of `name`."""

    original = StoredDraws.store

    def measure(self: Any, number: int, *arguments: Any) -> Any:
        if number == LinkDraws.number(name):
            raise KeyboardInterrupt
        return original(self, number, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StoredDraws, "store", measure)
        with pytest.raises(KeyboardInterrupt):
            dp.run(path, run)


def test_copy_with_other_features_is_refused(tmp_path: Path) -> None:
    """Features follow from the synthetic rows: with other rows the same links would be summed and perturbed again."""
    path = write_job(tmp_path, {"engine": {"scheduler": "synchronous"}})
    stop_before_draw(path, tmp_path / "run", "u")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    answer = tmp_path / "copy/tables/persons/synthetic/_rows.json"
    answer.write_text(json.dumps(json.loads(answer.read_text()) | {"rows": 500}))
    dp.run(path, tmp_path / "run")
    with refused(dp.BudgetError):
        dp.run(path, tmp_path / "copy")
    assert not list((tmp_path / "copy").glob("links/*/005-00000000-00000001.parquet"))


def test_files_changed_while_links_are_read_are_refused(tmp_path: Path) -> None:

    path, original = write_job(tmp_path), parts.read_all

    def read_and_change(*arguments: Any) -> Any:
        found = original(*arguments)
        make_frames(5)["ratings"].to_parquet(tmp_path / "data/ratings/0.parquet", index=False)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "read_all", read_and_change)
        with refused(dp.DataError):
            dp.run(path, tmp_path / "run")
    assert not list_charges(tmp_path)


def test_ledger_refuses_other_links_under_same_charge(tmp_path: Path) -> None:
    """The links also differ if files are exchanged only during reading."""

    path, original = write_job(tmp_path, {"engine": {"scheduler": "synchronous"}}), parts.read_all
    stop_before_draw(path, tmp_path / "run", "links")

    def read_other_links(*arguments: Any) -> Any:
        found = original(*arguments)
        return {name: type(one)(one.rows[:-3], one.parents, one.children) for name, one in found.items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "read_all", read_other_links)
        with refused(dp.BudgetError):
            dp.run(path, tmp_path / "run")
    dp.run(path, tmp_path / "run")


@pytest.mark.parametrize("workload", [
    [{"family": "marginal", "attributes": [["month"]]}],
    [{"family": "predicates", "conditions": ["month >= 1"]}],
    [{"query": "SELECT month, COUNT(amount) FROM orders GROUP BY month"}],  # no null: the number of rows
])  # fmt: skip
def test_workload_without_an_attribute_is_refused(tmp_path: Path, workload: list[dict[str, Any]]) -> None:
    """Links are between whole rows: a run would fail after its charge."""
    tables = make_job()["tables"]
    tables["orders"]["workload"] = workload
    done = CliRunner().invoke(
        main, ["run", str(write_job(tmp_path, tables=tables)), "--run-dir", str(tmp_path / "run")]
    )
    assert (done.exit_code, "no set with 'amount'" in done.stderr) == (2, True)
    assert not (tmp_path / "run").exists()


def test_links_refer_to_written_rows(tmp_path: Path) -> None:
    """Some rows are repaired, because the domain excludes them."""
    from dpscale.runs.links.link_sampling import synthetic_codes

    path = write_job(tmp_path)
    rules = tomli_w.dumps({"attributes": DOMAINS["persons"], "rule": [{"rule": "if age < 2 then sex != 'F'"}]})
    (tmp_path / "persons.toml").write_text(rules)
    release = dp.run(path, tmp_path / "run")
    codes = synthetic_codes(open_part(tmp_path / "run/tables/persons"))
    rows = release.synthetic()["persons"].compute()
    assert (rows.age.to_numpy() == codes[:, 0]).all()
    assert ((rows.sex == "M").to_numpy() == codes[:, 1]).all()
    assert not ((rows.age <= 1) & (rows.sex == "F")).any()


def test_end_of_a_table_is_refused(shop: Path) -> None:
    done = CliRunner().invoke(main, ["job", "end", str(shop / "run/tables/persons"), "--json"])
    assert (done.exit_code, "is part of the run in" in done.stderr) == (2, True)


def test_secret_is_destroyed_after_directories_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured links lost in a later power failure could not be drawn again."""
    from dpscale.runs import charge, run as runs

    done: list[str] = []
    flushed, destroyed = charge.flush_names, runs.destroy_secret
    monkeypatch.setattr(charge, "flush_names", lambda folder: (done.append(folder.name), flushed(folder)))
    monkeypatch.setattr(runs, "destroy_secret", lambda path: (done.append(path.name), destroyed(path)))
    dp.run(write_job(tmp_path), tmp_path / "run")
    secrets = [name for name in done if name.startswith("secret")]
    assert {"homes", "orders", "ratings", "links", "run"} <= set(done[: -len(secrets)])
    assert done[-len(secrets) :] == secrets
