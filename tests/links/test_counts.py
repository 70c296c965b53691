"""Degrees as attributes of later links (`counts`): their effect, and the sensitivity of link sums by brute force."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w

import dpscale
from dpscale.base.errors import JobError
from dpscale.engine.schedulers import resolve
from dpscale.job import Job, neighbours
from dpscale.relational.assignment import PairTables
from dpscale.relational.degrees import bucket, buckets
from dpscale.relational.features import BITS, Features, squared_distance
from dpscale.runs.links import measuring, parts
from dpscale.runs.links.link_data import ExactLinks
from tests.links.small import make_frames, make_job as make_shop_job, run_digests, write_job as write_shop
from tests.links.test_neighbours import DOMAIN, PERSONS, make_database, remove_person, squared_changes
from tests.messages import refused
from tests.running import begin_linked, linked

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


def write_database(folder: Path, data: dict[str, pd.DataFrame], links: list[dict[str, Any]], seed: int) -> Job:
    """Write the tables with shuffled rows, and return the job."""
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
    return Job.parse({"tables": tables, "link": links, "privacy": {"privacy_cost": 1.0}}, folder)


def read_links(job: Job, folder: Path) -> dict[str, ExactLinks]:
    run = begin_linked(job, folder / "run")
    return measuring.read_all(run.closed_job, run.neighbours, resolve(scheduler="synchronous"))


def link_sums(exact: ExactLinks) -> list[np.ndarray]:
    """Return the sums of a link in natural units, with uniformly centred features."""
    even = [uniform_features(table) for table in attribute_sizes(exact)]
    found = exact.sums(*even)
    return [one * unit for one, unit in zip(found, (2.0**-BITS, 2.0**-BITS, 4.0**-BITS), strict=True)]


def uniform_features(sizes: tuple[int, ...]) -> Features:
    return Features(sizes, tuple(np.full(size, 1 / size) for size in sizes), None)


COUNTED = {"tags": ((3,), ()), "accounts": ((), (3, 3)), "bosses": ((3,), (3,)), "payments": ((), ()),
           "kinds": ((), ())}  # fmt: skip


def attribute_sizes(exact: ExactLinks) -> tuple[tuple[int, ...], ...]:
    """Return the sizes of x, y and the counted degrees, for bounds of 2 and 3."""
    return tuple((2, 3, *([3] * (table.shape[1] - 2))) for table in (exact.parents, exact.children))


def check_sensitivity(folder: Path, seed: int, links: list[dict[str, Any]]) -> None:
    """Remove every person in turn; raise AssertionError if the sums of a link change more than is charged."""
    data = make_database(seed)
    job = write_database(folder / "all", data, links, seed)
    protects, before = neighbours.neighbour_relation(job), read_links(job, folder / "all")
    for person in range(PERSONS):
        where = folder / f"without {person}"
        after = read_links(write_database(where, remove_person(data, person), links, seed + 1), where)
        for name, most in protects.moved.items():
            sides = [uniform_features(own) for own in attribute_sizes(before[name])]
            bounds = [(Fraction(one.squared, 4**BITS), Fraction(one.least, 4**BITS)) for one in sides]
            far = squared_changes(tuple(link_sums(before[name])), tuple(link_sums(after[name])))
            assert abs(len(before[name].rows) - len(after[name].rows)) <= most, (name, person)
            claimed = most**2 * squared_distance("add/remove", *bounds, [Fraction(1)] * 3)
            assert sum(far) <= float(claimed) * (1 + 1e-9), (name, person)
        tables = PairTables(attribute_sizes(before["accounts"])[1])
        [far] = squared_changes((before["accounts"].siblings(tables),), (after["accounts"].siblings(tables),))
        assert far <= tables.squared(2, 1)


@pytest.mark.parametrize("seed", range(3))
def test_counted_degrees_stay_within_sensitivity(tmp_path: Path, seed: int) -> None:
    check_sensitivity(tmp_path, seed, SAFE)
    job = linked(tmp_path / "all" / "run").job
    found = read_links(job, tmp_path / "all")
    assert [found[name].parents.shape[1] for name in COUNTED] == [2 + len(own) for own, _ in COUNTED.values()]
    assert [found[name].children.shape[1] for name in COUNTED] == [2 + len(own) for _, own in COUNTED.values()]


def test_missing_parents_and_forbidden_loops_stay_within_sensitivity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, data = np.random.default_rng(5), make_database(2)
    data["persons"]["boss"] = np.where(rng.random(PERSONS) < 0.3, data["persons"].id, data["persons"].boss)
    for name, key in (("persons", "boss"), ("payments", "kind")):
        frame = data[name]
        data[name] = frame.assign(**{key: frame[key].where(rng.random(len(frame)) < 0.7).astype("Int64")})
    monkeypatch.setattr(sys.modules[__name__], "make_database", lambda _: data)
    loose = [PAYMENTS, ACCOUNTS, TAGS, KINDS | {"nulls": "keep"}, BOSSES | {"nulls": "keep", "loops": False}]
    check_sensitivity(tmp_path, 2, loose)
    found = read_links(linked(tmp_path / "all" / "run").job, tmp_path / "all")
    assert 0 < len(found["kinds"].rows) < len(data["payments"])
    assert 0 < len(found["bosses"].rows) < int((data["persons"].boss.notna()).sum())


def test_planted_unsafe_count_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted fault: the number of payments of a public kind changes for all its accounts when one person leaves."""
    monkeypatch.setattr(neighbours, "_check_counts", lambda *_: None)
    unsafe = [PAYMENTS, KINDS | {"max_degree": 1}, TAGS | {"counts": ["kinds"], "max_degree": 1}, ACCOUNTS]
    data = make_database(1)
    rare = data["payments"].drop_duplicates("kind")  # each kind has one payment, which is removed with its payer
    tags = data["accounts"][["account"]].merge(pd.DataFrame({"kind": rare.kind.iloc[:1]}), how="cross")
    monkeypatch.setattr(sys.modules[__name__], "make_database", lambda _: data | {"payments": rare, "tags": tags})
    monkeypatch.setattr(sys.modules[__name__], "attribute_sizes", lambda exact: tuple(
        (2, 3, *([2] * (table.shape[1] - 2))) for table in (exact.parents, exact.children)))  # fmt: skip
    safe = [{name: own for name, own in link.items() if name != "counts"} for link in unsafe]
    (tmp_path / "safe").mkdir()
    check_sensitivity(tmp_path / "safe", 1, safe)
    with pytest.raises(AssertionError, match="tags"):
        check_sensitivity(tmp_path, 1, unsafe)


@pytest.mark.parametrize("links", [
    [TAGS | {"counts": ["payments"]}, PAYMENTS],
    [PAYMENTS, TAGS | {"counts": ["paymnts"]}],
    [PAYMENTS, ACCOUNTS, BOSSES | {"counts": ["payments"]}],
    [PAYMENTS, ACCOUNTS, KINDS, TAGS | {"counts": ["kinds"]}],
    [BOSSES, PAYMENTS, ACCOUNTS | {"counts": ["bosses"]}],
])  # fmt: skip
def test_invalid_counts_are_refused(tmp_path: Path, links: list[dict[str, Any]]) -> None:
    with refused(JobError):
        neighbours.neighbour_relation(write_database(tmp_path / "data", make_database(0), links, 0))


def test_counts_are_refused_for_replaced_rows(tmp_path: Path) -> None:
    content = make_shop_job()
    tables = {name: content["tables"][name] for name in ("persons", "products")}
    tables["products"] = {name: own for name, own in tables["products"].items() if name != "public"}
    both = content["link"][1] | {"protects": "both"}
    links = [both, both | {"name": "again", "counts": ["ratings"]}]
    job = Job.read(write_shop(tmp_path, tables=tables, link=links))
    with refused(JobError):
        neighbours.neighbour_relation(job)


@pytest.mark.parametrize("bound", [1, 2, 3, 10, 50])
def test_buckets_are_powers_of_two(bound: int) -> None:
    degrees = np.arange(bound + 1)
    assert bucket(degrees, bound).tolist() == [0 if not one else int(one).bit_length() for one in degrees]
    assert len(buckets(bound)) == bucket(degrees, bound).max() + 1


def write_correlated_job(folder: Path) -> Path:
    """Write a job for persons whose numbers of orders and ratings are correlated, independent of their attributes."""
    data, rng = make_frames(), np.random.default_rng(3)
    often = rng.random(len(data["persons"])) < 0.5
    persons = data["persons"].id.to_numpy()
    buyers = np.repeat(persons, np.where(often, 4, 0))
    data["orders"] = pd.DataFrame({"person": buyers, "month": 0, "amount": rng.random(len(buyers)) * 90})
    pairs = [(one, code) for one, own in zip(persons, often, strict=True) for code in
             rng.choice(data["products"].code, 4 if own else 1, replace=False)]  # fmt: skip
    data["ratings"] = pd.DataFrame(pairs, columns=["id", "code"])
    link = make_shop_job()["link"]
    link[1]["counts"] = ["orders"]
    return write_shop(
        folder, data=data, link=link, privacy={"privacy_cost": 50.0, "dataset": "shop", "allow_weak_privacy": True}
    )


def degree_correlation(release: Any) -> float:
    """Return the correlation of the numbers of orders and of ratings of the released persons."""
    made = {name: one.compute() for name, one in release.synthetic().items()}
    persons = made["persons"].id
    orders, ratings = (made[name][key].value_counts().reindex(persons, fill_value=0)
                       for name, key in (("orders", "person"), ("ratings", "id")))  # fmt: skip
    return float(np.corrcoef(orders, ratings)[0, 1])


def test_counts_preserve_degree_correlation(tmp_path: Path) -> None:
    path = write_correlated_job(tmp_path)
    assert degree_correlation(dpscale.run(path, tmp_path / "run")) > 0.7
    content = json.loads(json.dumps(Job.read(path).to_dict()))
    del content["link"][1]["counts"]
    assert degree_correlation(dpscale.run(content, tmp_path / "plain")) < 0.4
    drawn = np.load(tmp_path / "run" / "links" / "orders" / "drawn.npy")
    assert drawn.shape[1] == 2
    assert not list((tmp_path / "plain").glob("links/*/drawn.npy"))


def test_run_resumed_between_links_gives_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_correlated_job(tmp_path)
    whole = dpscale.run(path, tmp_path / "whole")
    measure, seen = parts.measure_link, []

    def measure_or_stop(run: Any, link: Any, *rest: Any) -> Any:
        seen.append(link.called)
        if link.called == "ratings":
            raise KeyboardInterrupt
        return measure(run, link, *rest)

    monkeypatch.setattr(parts, "measure_link", measure_or_stop)
    with pytest.raises(KeyboardInterrupt):
        dpscale.run(path, tmp_path / "again")
    monkeypatch.setattr(parts, "measure_link", measure)
    dpscale.run(path, tmp_path / "again")
    assert seen == ["orders", "ratings"]
    assert run_digests(tmp_path / "again") == run_digests(whole.path)
