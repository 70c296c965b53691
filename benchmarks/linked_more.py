"""Links beyond cross marginals of two tables: siblings, chains, and whole databases with synthetic tables.

- siblings: Berka's orders with the exact accounts and orders; the mean total variation of tables over ordered pairs of
  orders of one account, and of 3-way cross marginals, with links drawn without and with measured sums over siblings.
- chain: users - films - directors of the 1M extract, released by dpscale from files. A film is protected with at most
  10 ratings and 3 directors; users and directors are public. The mean total variation of 3-way marginals over user and
  director, joined on films: without and with the number of a film's ratings as an attribute of the film (`counts`).
- whole: released by dpscale from files, both tables synthetic: the mean total variation of 3-way cross marginals,
  compared with tables that have all of the budget and the same number of random links.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w
from linked_data import Linked, load_chain

import dpscale
from dpscale.relational.assignment import PairTables
from dpscale.relational.features import Side
from dpscale.relational.rounding import Cross

MORE_EPSILONS, DELTA, NEXT_TO_NOTHING = (1.0, 2.0, 4.0), 1e-5, 1e-3


def sibling_error(data: Linked, links: np.ndarray) -> float:
    """Return the mean total variation over the tables of pairs of siblings; each pair has the same weight."""
    tables = PairTables(data.sizes[1])
    true, own = (_pair_shares(data.two[one[:, 1]], one[:, 0], tables) for one in (data.links, links))
    return float(np.mean([np.abs(a - b).sum() / 2 for a, b in zip(true, own, strict=True)]))


def _pair_shares(rows: np.ndarray, parents: np.ndarray, tables: PairTables) -> list[np.ndarray]:
    frame = pd.DataFrame(rows).add_prefix("a").assign(parent=parents, own=np.arange(len(rows)))
    both = frame.merge(frame, on="parent")
    both = both[both.own_x != both.own_y]
    cells = [both[f"a{i}_x"] * tables.sizes[j] + both[f"a{j}_y"] for i, j in tables.pairs]
    return [np.bincount(one, minlength=tables.sizes[i] * tables.sizes[j]) / len(both)
            for one, (i, j) in zip(cells, tables.pairs, strict=True)]  # fmt: skip


def cross_shares(one: np.ndarray, two: np.ndarray, links: np.ndarray, sizes: Any) -> tuple[np.ndarray, int]:
    """Return all 3-way cross marginals of linked rows as shares, and their number."""
    u, v = (Side.made(rows, size) for rows, size in zip((one, two), sizes, strict=True))
    cells, cross = np.zeros((len(u.counts), len(v.counts))), Cross.of(u, v)
    np.add.at(cells, (u.of[links[:, 0]], v.of[links[:, 1]]), 1 / len(links))
    return cross.marginals(cells), len(cross.columns)


def make_error(data: Linked) -> Callable[[np.ndarray, np.ndarray, np.ndarray], float]:
    """Return a function that computes the mean total variation of other tables and links from the given ones."""
    truth, count = cross_shares(data.one, data.two, data.links, data.sizes)
    return lambda one, two, links: float(np.abs(cross_shares(one, two, links, data.sizes)[0] - truth).sum() / 2 / count)


def make_frame(codes: np.ndarray, **keys: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame(codes, columns=[f"a{i}" for i in range(codes.shape[1])]).assign(**keys)


def frame_codes(frame: pd.DataFrame, sizes: tuple[int, ...]) -> np.ndarray:
    return frame[[f"a{i}" for i in range(len(sizes))]].to_numpy()


def release_database(
    frames: dict[str, pd.DataFrame],
    sizes: dict[str, Any],
    links: list[dict[str, Any]],
    epsilon: float,
    seed: int,
    public: tuple[str, ...] = (),
) -> dict[str, pd.DataFrame]:
    """Release tables with dpscale: those in `sizes` have attributes and the key `key`, others are pairs."""
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
            "allocation": {"method": "equal" if any("share" in link for link in links) else "planned"},
        }
        return {name: one.compute() for name, one in dpscale.run(job, f"{folder}/run").synthetic().items()}


def make_pairs_link(name: str, parent: str, child: str, bound: int, **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": "many-to-many", "parent": parent, "child": child, "parent_key": "from",
            "child_key": "to", "max_degree": bound, **more}  # fmt: skip


def pairs_frame(links: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"from": links[:, 0], "to": links[:, 1]})


def release_tables(
    data: Linked, epsilon: float, seed: int, share: float | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return both tables, synthetic, and their links."""
    sizes = {"one": data.sizes[0], "two": data.sizes[1]}
    frames = {name: make_frame(rows, key=np.arange(len(rows))) for name, rows in (("one", data.one), ("two", data.two))}
    if data.known:
        frames["two"]["parent"] = pd.Series(data.links[:, 0], data.links[:, 1]).reindex(frames["two"].key)
        link = {"name": "links", "kind": "one-to-many", "parent": "one", "child": "two", "child_key": "parent",
                "max_degree": data.bound}  # fmt: skip
    else:
        frames["links"] = pairs_frame(data.links)
        link = make_pairs_link("links", "one", "two", data.bound, protects="both")
    link |= {"share": share} if share else {}
    made = release_database(frames, sizes, [link], epsilon, seed)
    found = made["links"] if "links" in made else made["two"].dropna().rename(columns={"parent": "from", "key": "to"})
    return *(frame_codes(made[name], sizes[name]) for name in sizes), found[["from", "to"]].to_numpy(np.int64)


def database_errors(data: Linked, epsilon: float, seeds: int) -> dict[str, float]:
    """Return the mean errors of several releases: ours, and tables with random links."""
    error, ours, alone = make_error(data), [], []
    for seed in range(seeds):
        ours.append(error(*release_tables(data, epsilon, seed)))
        one, two, _ = release_tables(data, epsilon, seed, NEXT_TO_NOTHING)
        alone.append(error(one, two, random_links(data, len(one), len(two), np.random.default_rng(seed))))
    return {"ours": float(np.mean(ours)), "apart": float(np.mean(alone))}


def random_links(data: Linked, one: int, two: int, rng: np.random.Generator) -> np.ndarray:
    count = two if data.known else len(data.links)
    return np.c_[rng.integers(0, one, count), np.arange(two) if data.known else rng.integers(0, two, count)]


def chain_errors(epsilon: float, seeds: int) -> dict[str, float]:
    """Return the mean errors of user × director over several releases."""
    first, second = load_chain()
    sizes = {"films": first.sizes[0], "users": first.sizes[1], "directors": second.sizes[1]}
    rows = {"films": first.one, "users": first.two, "directors": second.two}
    frames = {name: make_frame(own, key=np.arange(len(own))) for name, own in rows.items()}
    frames |= {"ratings": pairs_frame(first.links), "credits": pairs_frame(second.links)}
    joined = Linked("chain", first.two, second.two, (first.sizes[1], second.sizes[1]), _join(frames), 0, False)
    error, found = make_error(joined), {}
    for name, counts in (("without", {}), ("with", {"counts": ["ratings"]})):
        links = [make_pairs_link("ratings", "films", "users", first.bound),
                 make_pairs_link("credits", "films", "directors", second.bound, **counts)]  # fmt: skip
        runs = (release_database(frames, sizes, links, epsilon, seed, ("users", "directors")) for seed in range(seeds))
        found[name] = float(np.mean([error(first.two, second.two, _join(made)) for made in runs]))
    return found


def _join(frames: dict[str, pd.DataFrame]) -> np.ndarray:
    """Return (rows, 2): users and directors of one film."""
    return frames["ratings"].merge(frames["credits"], on="from")[["to_x", "to_y"]].to_numpy(np.int64)
