"""Jobs of every supported shape of links, on small random tables, and the constraints of their database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

from dpscale.job import Job
from dpscale.job.protected_unit import side_tables
from dpscale.job.sections import LinkSection

Frames = dict[str, pd.DataFrame]
ATTRIBUTES = {"a": {"kind": "coded", "size": 3}, "b": {"kind": "coded", "size": 2}}


@dataclass(frozen=True)
class Shape:
    """Shape of a job: the keys of its tables ("" without one), its links, its public tables and the unit's table."""

    keys: dict[str, str | list[str]]
    links: tuple[dict[str, Any], ...]
    public: tuple[str, ...] = ()
    unit: str = ""


def one(parent: str, child: str, column: str | list[str], most: int | None = None, **more: Any) -> dict[str, Any]:
    bound = {"max_degree": most} if most else {}
    return {"kind": "one-to-many", "parent": parent, "child": child, "child_key": column, **bound, **more}


def single(parent: str, child: str, column: str, **more: Any) -> dict[str, Any]:
    return {"kind": "one-to-one", "parent": parent, "child": child, "child_key": column, **more}


def pairs(parent: str, child: str, column: str | list[str], most: int = 3, **more: Any) -> dict[str, Any]:
    return {"kind": "many-to-many", "name": "pairs", "parent": parent, "child": child, "child_key": column,
            "via": "data/pairs.parquet", "max_degree": most, **more}  # fmt: skip


SHAPES = {
    "star": Shape({"root": "id", "left": "k", "right": "k"},
                  (one("root", "left", "root_id", 2, name="l"), one("root", "right", "root_id", 3, name="r"))),
    "one to one": Shape({"root": "id", "card": "k"}, (single("root", "card", "root_id"),)),
    "chain": Shape({"root": "id", "middle": "m", "leaf": ""},
                   (one("root", "middle", "root_id", 2), one("middle", "leaf", "m_id", 2))),
    "chain of one to one": Shape({"leaf": "", "middle": "m", "root": "id"},
                                 (single("middle", "leaf", "m_id"), one("root", "middle", "root_id", 2))),
    "public parent": Shape({"root": "id", "place": "p"}, (one("place", "root", "place_id"),), ("place",)),
    "public parent of one row each": Shape({"root": "id", "place": "p"}, (single("place", "root", "place_id"),),
                                           ("place",)),
    "public composite key": Shape({"root": "id", "stop": ["line", "number"], "visit": ""},
                                  (one("root", "visit", "root_id", 3, name="visits"),
                                   one("stop", "visit", ["line", "stop_number"], name="stops")), ("stop",)),
    "two public parents": Shape({"root": "id", "place": "p", "kind": "q"},
                                (one("place", "root", "place_id", name="places"),
                                 one("kind", "root", "kind_id", name="kinds")), ("place", "kind")),
    "two links to one public table": Shape({"root": "id", "game": "", "team": "t"},
                                           (one("root", "game", "root_id", 3, name="games"),
                                            one("team", "game", "winner", name="winners"),
                                            one("team", "game", "loser", name="losers")), ("team",)),
    "pairs": Shape({"root": "id", "film": "f"}, (pairs("root", "film", "f"),), ("film",)),
    "public pairs": Shape({"root": "id", "film": "f"}, (pairs("root", "film", "f"),), ("root", "film")),
    "pairs with composite key": Shape({"root": "id", "stop": ["line", "number"]},
                                      (pairs("root", "stop", ["line", "number"]),), ("stop",)),
    "pairs of two private tables": Shape({"root": "id", "film": "f"},
                                         (pairs("root", "film", "f", 20, protects="both"),)),
    "pairs within a table": Shape({"root": "id"}, (pairs("root", "root", "other", 20, loops=False, protects="both"),)),
    "self link": Shape({"root": "id"}, (one("root", "root", "boss", 2, nulls="keep", loops=False),)),
    "published self link": Shape({"root": "id"}, (one("root", "root", "boss", 2, nulls="keep", mechanism="published",
                                                      rounds=2),)),
    "published chain": Shape({"root": "id", "leaf": ""}, (one("root", "leaf", "root_id", 2, mechanism="published",
                                                              rounds=2),)),
    "two private parents": Shape({"doctor": "k", "root": "id", "visit": ""},
                                 (one("root", "visit", "root_id", 2, name="patients"),
                                  one("doctor", "visit", "doctor_id", name="doctors")), unit="root"),
    "below a household": Shape({"house": "h", "root": "id", "visit": ""},
                               (one("house", "root", "house_id", name="members"),
                                one("root", "visit", "root_id", 2, name="visits")), unit="root"),
    "pairs with a side table": Shape({"doctor": "k", "root": "id"}, (pairs("root", "doctor", "k"),), unit="root"),
    "chain of side tables": Shape({"ward": "w", "doctor": "k", "root": "id", "visit": "", "place": "p"},
                                  (one("place", "ward", "place_id", name="places"),
                                   one("ward", "doctor", "ward_id", name="staff"),
                                   one("root", "visit", "root_id", 2, name="patients"),
                                   one("doctor", "visit", "doctor_id", name="doctors")), ("place",), unit="root"),
    "public snowflake": Shape({"root": "id", "place": "p", "land": "l"},
                              (one("place", "root", "place_id", name="places"),
                               one("land", "place", "land_id", name="lands")), ("place", "land")),
    "winner and loser": Shape({"root": "id", "player": "p"}, (one("player", "root", "winner", name="winners"),
                                                              one("player", "root", "loser", name="losers")),
                              ("player",)),
    "key of the parent": Shape({"root": "id", "card": "root_id", "use": ""},
                               (single("root", "card", "root_id"), one("card", "use", "card_id", 2))),
    "pairs with attributes": Shape({"root": "id", "film": "f", "rating": ["root_id", "film_id"]},
                                   (one("root", "rating", "root_id", 4, name="raters"),
                                    one("film", "rating", "film_id", name="films")), ("film",)),
    "pairs of a side table with attributes": Shape({"film": "f", "root": "id", "rating": ["root_id", "film_id"]},
                                                   (one("root", "rating", "root_id", 4, name="raters"),
                                                    one("film", "rating", "film_id", name="films")), unit="root"),
    "numbered children": Shape({"root": "id", "line": ["root_id", "number"], "note": ""},
                               (one("root", "line", "root_id", 3, name="lines"),
                                one("line", "note", ["line_root", "line_number"], 2, name="notes"))),
    "private composite key": Shape({"root": ["line", "number"], "middle": ["k", "part"], "leaf": ""},
                                   (one("root", "middle", ["root_line", "root_number"], 2, name="middles"),
                                    one("middle", "leaf", ["middle_k", "middle_part"], 2, name="leaves"))),
    "pairs of a composite key": Shape({"root": ["line", "number"], "film": "f"},
                                      (pairs("root", "film", "f", parent_key=["line", "number"]),), ("film",)),
    "self link of every row": Shape({"root": "id"}, (one("root", "root", "boss", 2, loops=False),)),
}  # fmt: skip


def make_frames(shape: Shape, rows: dict[str, int], seed: int) -> Frames:
    """Return random tables with so many rows each (20 by default); keys of private tables are integers."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, key in shape.keys.items():
        count = rows.get(name, 20)
        frame = pd.DataFrame({column: rng.integers(0, each["size"], count) for column, each in ATTRIBUTES.items()})
        if isinstance(key, list):
            foreign = {column for one in shape.links if one["child"] == name for column in _columns(one["child_key"])}
            number = np.arange(count) // (1 if foreign & set(key) else 3)
            frame[key[0]], frame[key[1]] = [f"line {i % 3}" for i in range(count)], number
        elif key:
            frame[key] = rng.permutation(count) + 100
        found[name] = frame
    for link in shape.links:
        _link(found, shape, link, rng)
    return found


def _link(frames: Frames, shape: Shape, link: dict[str, Any], rng: np.random.Generator) -> None:
    parent, key = frames[link["parent"]], shape.keys[link["parent"]]
    if "via" in link:
        child, other = frames[link["child"]], _columns(shape.keys[link["child"]])
        count = 2 * min(len(parent), len(child))
        starts = parent[_columns(key)].iloc[rng.integers(0, max(len(parent), 1), count)].reset_index(drop=True)
        made = starts[_columns(key)].copy()
        ends = child[other].iloc[rng.integers(0, max(len(child), 1), count)].reset_index(drop=True)
        for column, source in zip(_columns(link["child_key"]), other, strict=True):
            made[column] = ends[source]
        frames["pairs"] = made
        return
    child = frames[link["child"]]
    at = rng.permutation(max(len(parent), len(child)))[: len(child)] % max(len(parent), 1)
    if link["kind"] != "one-to-one":
        at = rng.integers(0, max(len(parent), 1), len(child))
    if link["parent"] == link["child"]:
        at = (np.arange(len(child)) + 1) % max(len(child), 1)
    for column, source in zip(_columns(link["child_key"]), _columns(key), strict=True):
        values = parent[source].iloc[at].to_numpy() if len(parent) else parent[source].to_numpy()[:0]
        child[column] = pd.Series(values, dtype=parent[source].dtype)
    if link.get("nulls") == "keep" and len(child):
        child[link["child_key"]] = child[link["child_key"]].astype("Int64").where(child.index > 0)


def _columns(key: str | list[str]) -> list[str]:
    return [key] if isinstance(key, str) else key


def private_sides(shape: Shape) -> set[str]:
    """Return the private tables whose rows belong to no row of the unit's table."""
    if not shape.unit:
        return set()
    owned = {shape.unit}
    while more := {link["child"] for link in shape.links if link["parent"] in owned and "via" not in link} - owned:
        owned |= more
    return set(shape.keys) - set(shape.public) - owned


def write_shape(
    folder: Path, shape: Shape, frames: Frames, epsilon: float, seed: int = 1, method: str = "equal", **more: Any
) -> Path:
    """Write the data, the domains and the job of a shape; `method` divides the budget, and `more` are
    settings of tables by name.
    """
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        frame.to_parquet(folder / f"data/{name}.parquet", index=False)
    (folder / "domain.toml").write_text(tomli_w.dumps({"attributes": ATTRIBUTES}))
    tables: dict[str, dict[str, Any]] = {}
    for name, key in shape.keys.items():
        own: dict[str, Any] = {"path": f"data/{name}.parquet", "domain": "domain.toml"} | ({"key": key} if key else {})
        kind = {"public": True} if name in shape.public else {"mechanism": "residual-planner"}
        side = {"public_attributes": list(ATTRIBUTES)} if name in private_sides(shape) else {}
        tables[name] = own | kind | side | more.get(name, {})
    job = {"tables": tables, "link": list(shape.links), "engine": {"scheduler": "synchronous", "seed": seed},
           "privacy": {"epsilon": epsilon, "delta": 1e-6, "dataset": "shape", "allow_weak_privacy": True,
                       **({"unit": shape.unit} if shape.unit else {})},
           "budget": {"method": method}}  # fmt: skip
    (folder / "job.toml").write_text(tomli_w.dumps(job))
    return folder / "job.toml"


def constraints(job: Job) -> Iterator[tuple[str, list[str]]]:
    """Return each released table with its constraints in SQL: keys, foreign keys, and nulls that are not permitted."""
    for name in job.tables:
        key, own = job.key(name), [link for link in job.foreign_keys if link.via is None and link.child == name]
        rules = [f"PRIMARY KEY ({_names(key)})"] if key else []
        for link in own:
            rules += [_foreign(job, link.parent, job.ends(link)[0]), *_single(job, link)]
        yield name, rules
    for link in job.link:
        if link.via is not None:
            first, second = job.ends(link)
            yield link.called, [f"PRIMARY KEY ({_names((*first, *second))})", _foreign(job, link.parent, first),
                                _foreign(job, link.child, second)]  # fmt: skip


def required_columns(job: Job, name: str) -> set[str]:
    """Return the key columns of a released table that are never null."""
    found = set(job.key(name)) if name in job.tables else set()
    for link in job.foreign_keys:
        if link.via is None and link.child == name and link.nulls != "keep":
            found |= set(job.ends(link)[0])
        elif link.via is not None and link.called == name:
            found |= {column for end in job.ends(link) for column in end}
    return found


def _foreign(job: Job, parent: str, columns: tuple[str, ...]) -> str:
    return f'FOREIGN KEY ({_names(columns)}) REFERENCES "{parent}" ({_names(job.key(parent))})'


def _single(job: Job, link: LinkSection) -> list[str]:
    return [f"UNIQUE ({_names(job.ends(link)[0])})"] if link.kind == "one-to-one" else []


def _names(columns: tuple[str, ...]) -> str:
    return ", ".join(f'"{column}"' for column in columns)


def assert_consistent(job: Job, frames: Frames) -> None:
    """Check that keys are unique, that every child has an existing parent, and that no parent exceeds its bound."""
    for name, frame in frames.items():
        if name in job.tables and job.key(name):
            assert not frame.duplicated(list(job.key(name))).any(), name
        assert not frame[sorted(required_columns(job, name))].isna().any().any(), name
    for link in job.foreign_keys:
        first, second = job.ends(link)
        table = frames[link.child if link.via is None else link.called]
        _assert_end(table, first, frames[link.parent], job.key(link.parent), most_children(job, link))
        if link.via is not None:
            both = link.bound if link.protects == "both" else None
            _assert_end(table, second, frames[link.child], job.key(link.child), both)
            assert not table.duplicated([*first, *second]).any(), link.called
        own = second if link.via is not None else job.key(link.child)
        if link.loops is False:
            assert not (table[first[0]] == table[own[0]]).any(), link.called


def most_children(job: Job, link: LinkSection) -> int | None:
    """Return the largest number of links of a parent; None without a bound."""
    free = job.tables[link.parent].public or link.parent in side_tables(job)
    return None if free and link.kind == "one-to-many" else link.bound


def _assert_end(
    table: pd.DataFrame, columns: tuple[str, ...], other: pd.DataFrame, key: tuple[str, ...], most: int | None
) -> None:
    ends = list(table[list(columns)].dropna().itertuples(index=False, name=None))
    assert set(ends) <= set(other[list(key)].itertuples(index=False, name=None))
    if most is not None and ends:
        assert pd.Series(ends).value_counts().max() <= most
