"""What links say beyond cross marginals of two tables: siblings, chains, and whole databases with synthetic tables.

- siblings: Berka's orders, accounts and orders as they are; the mean total variation of tables over ordered pairs of
  orders of one account, and of 3-way cross marginals, with links drawn without and with what is measured of siblings.
- chain: users - films - directors of the 1M extract, as the product releases them from files. A film is protected with
  at most 10 ratings and 3 directors; users and directors are public. The mean total variation of 3-way marginals over
  user and director, joined on films: without and with the number of a film's ratings as an attribute of it (`counts`).
- whole: as the product releases them from files, both tables synthetic: the mean total variation of 3-way cross
  marginals beside tables that have all of the budget with random links, as many as there are.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w
from linked_tables import Linked, chained

import dpscale
from dpscale.relational.assignment import PairTables
from dpscale.relational.features import Side
from dpscale.relational.rounding import Cross

MORE_EPSILONS, DELTA, NEXT_TO_NOTHING = (1.0, 2.0, 4.0), 1e-5, 1e-3


def siblings_apart(data: Linked, links: np.ndarray) -> float:
    """Mean total variation over the tables of pairs of siblings; each pair weighs the same."""
    tables = PairTables(data.sizes[1])
    true, own = (_pairs(data.two[one[:, 1]], one[:, 0], tables) for one in (data.links, links))
    return float(np.mean([np.abs(a - b).sum() / 2 for a, b in zip(true, own, strict=True)]))


def _pairs(rows: np.ndarray, parents: np.ndarray, tables: PairTables) -> list[np.ndarray]:
    frame = pd.DataFrame(rows).add_prefix("a").assign(parent=parents, own=np.arange(len(rows)))
    both = frame.merge(frame, on="parent")
    both = both[both.own_x != both.own_y]
    cells = [both[f"a{i}_x"] * tables.sizes[j] + both[f"a{j}_y"] for i, j in tables.pairs]
    return [np.bincount(one, minlength=tables.sizes[i] * tables.sizes[j]) / len(both)
            for one, (i, j) in zip(cells, tables.pairs, strict=True)]  # fmt: skip


def cross_shares(one: np.ndarray, two: np.ndarray, links: np.ndarray, sizes: Any) -> tuple[np.ndarray, int]:
    """All 3-way cross marginals of linked rows as shares, and how many there are."""
    u, v = (Side.made(rows, size) for rows, size in zip((one, two), sizes, strict=True))
    cells, cross = np.zeros((len(u.counts), len(v.counts))), Cross.of(u, v)
    np.add.at(cells, (u.of[links[:, 0]], v.of[links[:, 1]]), 1 / len(links))
    return cross.marginals(cells), len(cross.columns)


def apart(data: Linked) -> Callable[[np.ndarray, np.ndarray, np.ndarray], float]:
    """Of other tables and links: their mean total variation from these."""
    truth, count = cross_shares(data.one, data.two, data.links, data.sizes)
    return lambda one, two, links: float(np.abs(cross_shares(one, two, links, data.sizes)[0] - truth).sum() / 2 / count)


def table(codes: np.ndarray, **keys: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(codes, columns=[f"a{i}" for i in range(codes.shape[1])]).assign(**keys)


def codes(frame: pd.DataFrame, sizes: tuple[int, ...]) -> np.ndarray:
    return frame[[f"a{i}" for i in range(len(sizes))]].to_numpy()


def released(frames: dict[str, pd.DataFrame], sizes: dict[str, Any], links: list[dict[str, Any]], epsilon: float,
             seed: int, public: tuple[str, ...] = ()) -> dict[str, pd.DataFrame]:  # fmt: skip
    """What the product makes of tables: those with `sizes` have attributes and the key `key`, others are of pairs."""
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: f"{folder}/{name}.parquet" for name in frames}
        for name, frame in frames.items():
            frame.to_parquet(paths[name])
        for name, own in sizes.items():
            content = {"attributes": {f"a{i}": {"kind": "coded", "size": int(size)} for i, size in enumerate(own)}}
            Path(f"{folder}/{name}.toml").write_text(tomli_w.dumps(content))
        tables = {name: {"path": paths[name], "domain": f"{folder}/{name}.toml", "key": "key",
                         **({"public": True} if name in public else {})} for name in sizes}  # fmt: skip
        links = [link | ({"via": paths[link["name"]]} if link["name"] in frames else {}) for link in links]
        privacy = {"epsilon": epsilon, "delta": DELTA, "ledger": f"{folder}/ledger.sqlite", "dataset": "benchmark"}
        job = {
            "tables": tables,
            "link": links,
            "privacy": privacy,
            "engine": {"scheduler": "synchronous", "seed": seed},
        }
        return {name: one.compute() for name, one in dpscale.run(job, f"{folder}/run").synthetic().items()}


def pairs_link(name: str, parent: str, child: str, bound: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": "many-to-many", "parent": parent, "child": child, "parent_key": "from",
            "child_key": "to", "max_degree": bound, **more}  # fmt: skip


def pairs(links: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"from": links[:, 0], "to": links[:, 1]})


def released_tables(
    data: Linked, epsilon: float, seed: int, share: float | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both tables synthetic, and their links."""
    sizes = {"one": data.sizes[0], "two": data.sizes[1]}
    frames = {name: table(rows, key=np.arange(len(rows))) for name, rows in (("one", data.one), ("two", data.two))}
    if data.known:
        frames["two"]["parent"] = pd.Series(data.links[:, 0], data.links[:, 1]).reindex(frames["two"].key)
        link = {"name": "links", "kind": "one-to-many", "parent": "one", "child": "two", "child_key": "parent",
                "max_degree": data.bound}  # fmt: skip
    else:
        frames["links"] = pairs(data.links)
        link = pairs_link("links", "one", "two", data.bound, protects="both")
    link |= {"share": share} if share else {}
    made = released(frames, sizes, [link], epsilon, seed)
    found = made["links"] if "links" in made else made["two"].dropna().rename(columns={"parent": "from", "key": "to"})
    return *(codes(made[name], sizes[name]) for name in sizes), found[["from", "to"]].to_numpy(np.int64)


def whole(data: Linked, epsilon: float, seeds: int) -> dict[str, float]:
    """Mean errors of some releases: ours, and tables apart."""
    error, ours, alone = apart(data), [], []
    for seed in range(seeds):
        ours.append(error(*released_tables(data, epsilon, seed)))
        one, two, _ = released_tables(data, epsilon, seed, NEXT_TO_NOTHING)
        alone.append(error(one, two, random_error(data, len(one), len(two), np.random.default_rng(seed))))
    return {"ours": float(np.mean(ours)), "apart": float(np.mean(alone))}


def random_error(data: Linked, one: int, two: int, rng: np.random.Generator) -> np.ndarray:
    count = two if data.known else len(data.links)
    return np.c_[rng.integers(0, one, count), np.arange(two) if data.known else rng.integers(0, two, count)]


def chain(epsilon: float, seeds: int) -> dict[str, float]:
    """Mean errors of user x director over some releases."""
    first, second = chained()
    sizes = {"films": first.sizes[0], "users": first.sizes[1], "directors": second.sizes[1]}
    rows = {"films": first.one, "users": first.two, "directors": second.two}
    frames = {name: table(own, key=np.arange(len(own))) for name, own in rows.items()}
    frames |= {"ratings": pairs(first.links), "credits": pairs(second.links)}
    joined = Linked("chain", first.two, second.two, (first.sizes[1], second.sizes[1]), _joined(frames), 0, False)
    error, found = apart(joined), {}
    for name, counts in (("without", {}), ("with", {"counts": ["ratings"]})):
        links = [pairs_link("ratings", "films", "users", first.bound),
                 pairs_link("credits", "films", "directors", second.bound, **counts)]  # fmt: skip
        runs = (released(frames, sizes, links, epsilon, seed, ("users", "directors")) for seed in range(seeds))
        found[name] = float(np.mean([error(first.two, second.two, _joined(made)) for made in runs]))
    return found


def _joined(frames: dict[str, pd.DataFrame]) -> np.ndarray:
    """(rows, 2): users and directors of one film."""
    return frames["ratings"].merge(frames["credits"], on="from")[["to_x", "to_y"]].to_numpy(np.int64)
