"""How many links a row has counts as its attribute in a later link: what it says there, and that no unit moves more."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w

import dpscale
from dpscale.base.errors import JobError
from dpscale.engine import resolve
from dpscale.multitable import measuring, privacy_unit, runner
from dpscale.multitable.job import DatabaseJob
from dpscale.multitable.link_data import ExactLinks
from dpscale.multitable.run import DatabaseRun
from dpscale.relational.assignment import PairTables
from dpscale.relational.degrees import bucket, buckets
from dpscale.relational.features import BITS, Features, squared_distance
from tests.multitable.small import digests, frames, job as shop, write as write_shop
from tests.multitable.test_neighbours import DOMAIN, PERSONS, database, moved, without

ONE = {"kind": "one-to-many", "dangling": "drop"}
PAYMENTS = ONE | {"name": "payments", "parent": "accounts", "child": "payments", "child_key": "account",
                  "max_degree": 3}  # fmt: skip
TAGS = {"kind": "many-to-many", "name": "tags", "parent": "accounts", "child": "kinds", "via": "tags.parquet",
        "child_key": "kind", "max_degree": 2}  # fmt: skip
ACCOUNTS = ONE | {"name": "accounts", "parent": "persons", "child": "accounts", "child_key": "person", "max_degree": 2}
BOSSES = ONE | {"name": "bosses", "parent": "persons", "child": "persons", "child_key": "boss", "max_degree": 2}
KINDS = ONE | {"name": "kinds", "parent": "kinds", "child": "payments", "child_key": "kind"}
SAFE = [PAYMENTS, TAGS | {"counts": ["payments"]}, ACCOUNTS | {"counts": ["payments", "tags"]}, KINDS,
        BOSSES | {"counts": ["accounts"]}]  # fmt: skip


def write(folder: Path, data: dict[str, pd.DataFrame], links: list[dict[str, Any]], seed: int) -> DatabaseJob:
    """Rows in any order."""
    folder.mkdir()
    (folder / "domain.toml").write_text(tomli_w.dumps(DOMAIN))
    rng = np.random.default_rng(seed)
    for name, frame in data.items():
        frame.iloc[rng.permutation(len(frame))].to_parquet(folder / f"{name}.parquet", index=False)
    keys = {"persons": "id", "accounts": "account", "payments": None, "kinds": "kind"}
    tables = {
        name: {"path": f"{name}.parquet", "domain": "domain.toml", "public": name == "kinds"}
        | ({"key": key} if key else {})
        for name, key in keys.items()
    }
    return DatabaseJob.parse({"tables": tables, "link": links, "privacy": {"privacy_cost": 1.0}}, folder)


def read(job: DatabaseJob, folder: Path) -> dict[str, ExactLinks]:
    return measuring.read_all(DatabaseRun.create(job, folder / "run"), resolve(scheduler="synchronous"))


def sums(exact: ExactLinks) -> list[np.ndarray]:
    """In natural units, centred uniformly."""
    even = [evenly(table) for table in sizes_of(exact)]
    found = exact.sums(*even)
    return [one * unit for one, unit in zip(found, (2.0**-BITS, 2.0**-BITS, 4.0**-BITS), strict=True)]


def evenly(sizes: tuple[int, ...]) -> Features:
    return Features(sizes, tuple(np.full(size, 1 / size) for size in sizes), None)


COUNTED = {"tags": ((3,), ()), "accounts": ((), (3, 3)), "bosses": ((3,), (3,)), "payments": ((), ()),
           "kinds": ((), ())}  # fmt: skip


def sizes_of(exact: ExactLinks) -> tuple[tuple[int, ...], ...]:
    """Of x, y and whatever is counted, up to bounds of 2 and 3."""
    return tuple((2, 3, *([3] * (table.shape[1] - 2))) for table in (exact.parents, exact.children))


def furthest(folder: Path, seed: int, links: list[dict[str, Any]]) -> None:
    """Every person comes or goes: AssertionError where a link's sums move further than is charged."""
    data = database(seed)
    job = write(folder / "all", data, links, seed)
    protects, before = privacy_unit.neighbour_relation(job), read(job, folder / "all")
    for person in range(PERSONS):
        where = folder / f"without {person}"
        after = read(write(where, without(data, person), links, seed + 1), where)
        for name, most in protects.moved.items():
            sides = [evenly(own) for own in sizes_of(before[name])]
            bounds = [(Fraction(one.squared, 4**BITS), Fraction(one.least, 4**BITS)) for one in sides]
            far = moved(tuple(sums(before[name])), tuple(sums(after[name])))
            assert abs(len(before[name].rows) - len(after[name].rows)) <= most, (name, person)
            claimed = most**2 * squared_distance("add/remove", *bounds, [Fraction(1)] * 3)
            assert sum(far) <= float(claimed) * (1 + 1e-9), (name, person)
        tables = PairTables(sizes_of(before["accounts"])[1])
        [far] = moved((before["accounts"].siblings(tables),), (after["accounts"].siblings(tables),))
        assert far <= tables.squared(2, 1)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_counted_moves_nothing_further(tmp_path: Path, seed: int) -> None:
    furthest(tmp_path, seed, SAFE)
    job = DatabaseRun(tmp_path / "all" / "run").job
    found = read(job, tmp_path / "all")
    assert [found[name].parents.shape[1] for name in COUNTED] == [2 + len(own) for own, _ in COUNTED.values()]
    assert [found[name].children.shape[1] for name in COUNTED] == [2 + len(own) for _, own in COUNTED.values()]


def test_children_without_a_parent_and_rows_without_loops_move_nothing_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, data = np.random.default_rng(5), database(2)
    data["persons"]["boss"] = np.where(rng.random(PERSONS) < 0.3, data["persons"].id, data["persons"].boss)
    for name, key in (("persons", "boss"), ("payments", "kind")):
        frame = data[name]
        data[name] = frame.assign(**{key: frame[key].where(rng.random(len(frame)) < 0.7).astype("Int64")})
    monkeypatch.setitem(globals(), "database", lambda _: data)
    loose = [PAYMENTS, ACCOUNTS, TAGS, KINDS | {"nulls": "keep"}, BOSSES | {"nulls": "keep", "loops": False}]
    furthest(tmp_path, 2, loose)
    found = read(DatabaseRun(tmp_path / "all" / "run").job, tmp_path / "all")
    assert 0 < len(found["kinds"].rows) < len(data["payments"])
    assert 0 < len(found["bosses"].rows) < int((data["persons"].boss.notna()).sum())


def test_counting_what_hangs_on_others_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: how many payments a public kind has changes for all who have it when one person goes."""
    monkeypatch.setattr(privacy_unit, "_check_counts", lambda *_: None)
    unsafe = [PAYMENTS, KINDS | {"max_degree": 1}, TAGS | {"counts": ["kinds"], "max_degree": 1}, ACCOUNTS]
    data = database(1)
    rare = data["payments"].drop_duplicates("kind")  # each kind has one payment, which goes with its payer
    tags = data["accounts"][["account"]].merge(pd.DataFrame({"kind": rare.kind.iloc[:1]}), how="cross")
    monkeypatch.setitem(globals(), "database", lambda _: data | {"payments": rare, "tags": tags})
    monkeypatch.setitem(globals(), "sizes_of", lambda exact: tuple(
        (2, 3, *([2] * (table.shape[1] - 2))) for table in (exact.parents, exact.children)))  # fmt: skip
    safe = [{name: own for name, own in link.items() if name != "counts"} for link in unsafe]
    (tmp_path / "safe").mkdir()
    furthest(tmp_path / "safe", 1, safe)
    with pytest.raises(AssertionError, match="tags"):
        furthest(tmp_path, 1, unsafe)


@pytest.mark.parametrize(("links", "sentence"), [
    ([TAGS | {"counts": ["payments"]}, PAYMENTS], "names of earlier links"),
    ([PAYMENTS, TAGS | {"counts": ["paymnts"]}], "did you mean 'payments'"),
    ([PAYMENTS, ACCOUNTS, BOSSES | {"counts": ["payments"]}], "links whose parent is persons"),
    ([PAYMENTS, ACCOUNTS, KINDS, TAGS | {"counts": ["kinds"]}], "their number depends on other units' rows"),
    ([BOSSES, PAYMENTS, ACCOUNTS | {"counts": ["bosses"]}], "their number depends on other units' rows"),
])  # fmt: skip
def test_what_cannot_be_counted_is_refused(tmp_path: Path, links: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(JobError, match=sentence):
        privacy_unit.neighbour_relation(write(tmp_path / "data", database(0), links, 0))


def test_links_of_rows_that_are_replaced_are_not_counted(tmp_path: Path) -> None:
    content = shop()
    tables = {name: content["tables"][name] for name in ("persons", "products")}
    tables["products"] = {name: own for name, own in tables["products"].items() if name != "public"}
    both = content["link"][1] | {"protects": "both"}
    links = [both, both | {"name": "again", "counts": ["ratings"]}]
    job = DatabaseJob.read(write_shop(tmp_path, tables=tables, link=links))
    with pytest.raises(JobError, match="replacing a row"):
        privacy_unit.neighbour_relation(job)


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 50])
def test_buckets_are_powers_of_two(bound: int) -> None:
    degrees = np.arange(bound + 1)
    assert bucket(degrees, bound).tolist() == [0 if not one else int(one).bit_length() for one in degrees]
    assert len(buckets(bound)) == bucket(degrees, bound).max() + 1


def starred(folder: Path) -> Path:
    """Persons with many orders have many ratings, whatever their attributes."""
    data, rng = frames(), np.random.default_rng(3)
    often = rng.random(len(data["persons"])) < 0.5
    persons = data["persons"].id.to_numpy()
    buyers = np.repeat(persons, np.where(often, 4, 0))
    data["orders"] = pd.DataFrame({"person": buyers, "month": 0, "amount": rng.random(len(buyers)) * 90})
    pairs = [(one, code) for one, own in zip(persons, often, strict=True) for code in
             rng.choice(data["products"].code, 4 if own else 1, replace=False)]  # fmt: skip
    data["ratings"] = pd.DataFrame(pairs, columns=["id", "code"])
    link = shop()["link"]
    link[1]["counts"] = ["orders"]
    return write_shop(
        folder, data=data, link=link, privacy={"privacy_cost": 50.0, "dataset": "shop", "allow_weak_privacy": True}
    )


def together(release: Any) -> float:
    """Of the released persons: the correlation of numbers of orders and of ratings."""
    made = {name: one.compute() for name, one in release.synthetic().items()}
    persons = made["persons"].id
    orders, ratings = (made[name][key].value_counts().reindex(persons, fill_value=0)
                       for name, key in (("orders", "person"), ("ratings", "id")))  # fmt: skip
    return float(np.corrcoef(orders, ratings)[0, 1])


def test_rows_of_many_links_here_have_many_there(tmp_path: Path) -> None:
    path = starred(tmp_path)
    assert together(dpscale.run(path, tmp_path / "run")) > 0.7
    content = json.loads(json.dumps(DatabaseJob.read(path).to_dict()))
    del content["link"][1]["counts"]
    assert together(dpscale.run(content, tmp_path / "plain")) < 0.4
    drawn = np.load(tmp_path / "run" / "links" / "orders" / "drawn.npy")
    assert drawn.shape[1] == 2
    assert not list((tmp_path / "plain").glob("links/*/drawn.npy"))


def test_a_run_that_stopped_between_links_goes_on_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = starred(tmp_path)
    whole = dpscale.run(path, tmp_path / "whole")
    measure, seen = runner.measure_link, []

    def stopping(run: Any, link: Any, *rest: Any) -> Any:
        seen.append(link.called)
        if link.called == "ratings":
            raise KeyboardInterrupt
        return measure(run, link, *rest)

    monkeypatch.setattr(runner, "measure_link", stopping)
    with pytest.raises(KeyboardInterrupt):
        dpscale.run(path, tmp_path / "again")
    monkeypatch.setattr(runner, "measure_link", measure)
    dpscale.run(path, tmp_path / "again")
    assert seen == ["orders", "ratings"]
    assert digests(tmp_path / "again") == digests(whole.path)
