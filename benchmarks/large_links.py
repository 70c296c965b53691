"""Links at scale: a million users, a hundred thousand films, ten million links between them, from Parquet.

Both tables are public, so that the seconds are those of the links: reading, truncation, sums, fit, drawing, writing,
report. Users prefer films of their own kind, and films differ in popularity. Prints seconds, peak memory, and the mean
total variation over 2-way cross marginals compared with random links; ε = 1, δ = 1e-9, at most 40 links per user.

    python benchmarks/large_links.py [--scale 1.0]
"""

from __future__ import annotations

import argparse
import os
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pandas as pd

import dpscale as dp

USERS, FILMS, LINKS, MOST = 1_000_000, 100_000, 10_000_000, 40
USER_SIZES, FILM_SIZES = (10, 8, 6, 5, 4, 3, 12, 2), (9, 7, 5, 4, 20, 2)
FILES = 8
Pairs = tuple[np.ndarray, np.ndarray]


def draw_attributes(rng: np.random.Generator, rows: int, sizes: tuple[int, ...]) -> np.ndarray:
    return np.stack([np.minimum(rng.geometric(2 / max(size, 3), rows) - 1, size - 1) for size in sizes], axis=1)


def draw_links(rng: np.random.Generator, users: np.ndarray, films: np.ndarray, links: int) -> Pairs:
    """Draw links by popularity of films; two in five are with films of the user's kind."""
    lively = rng.gamma(1.5, 1, len(users)) * (1 + 0.1 * users[:, 0])
    who = np.repeat(np.arange(len(users)), np.minimum(rng.poisson(lively / lively.mean() * links / len(users)), MOST))
    popular = rng.gamma(1.0, 1.0, len(films)) * (1 + 0.2 * films[:, 4])
    order = np.argsort(films[:, 0], kind="stable")
    ends = np.cumsum(popular[order])
    edges = np.concatenate([[0.0], ends])[np.searchsorted(films[order, 0], np.arange(FILM_SIZES[0] + 1))]
    kind, own = np.minimum(users[who, 0], FILM_SIZES[0] - 1), rng.random(len(who)) < 0.4
    points = np.where(own, edges[kind] + rng.random(len(who)) * (edges[kind + 1] - edges[kind]),
                      rng.random(len(who)) * ends[-1])  # fmt: skip
    what = order[np.searchsorted(ends, points).clip(0, len(films) - 1)]
    pairs = np.unique(who * np.int64(len(films)) + what)
    return pairs // len(films), pairs % len(films)


def write_inputs(place: Path, users: np.ndarray, films: np.ndarray, links: Pairs) -> dict[str, object]:
    """Write the files and return the job."""
    for name, table, sizes in (("users", users, USER_SIZES), ("films", films, FILM_SIZES)):
        frame = pd.DataFrame(table, columns=[f"a{i}" for i in range(len(sizes))]).assign(
            **{name[:-1]: np.arange(len(table))}
        )
        frame.to_parquet(place / f"{name}.parquet", index=False, row_group_size=1 << 18)
        lines = [f'[attributes.a{i}]\nkind = "coded"\nsize = {size}\n' for i, size in enumerate(sizes)]
        (place / f"{name}.toml").write_text("".join(lines))
    pairs = pd.DataFrame({"user": links[0], "film": links[1]}).sample(frac=1, random_state=0)
    (place / "links").mkdir()
    for number in range(FILES):
        pairs.iloc[number::FILES].to_parquet(place / "links" / f"{number}.parquet", index=False)
    tables = {name: {"path": str(place / f"{name}.parquet"), "domain": str(place / f"{name}.toml"), "key": name[:-1],
                     "public": True} for name in ("users", "films")}  # fmt: skip
    link = {"kind": "many-to-many", "name": "seen", "parent": "users", "child": "films", "child_key": "film",
            "via": str(place / "links/*.parquet"), "max_degree": MOST}  # fmt: skip
    privacy = {"epsilon": 1.0, "delta": 1e-9, "dataset": "links", "ledger": str(place / "ledger.sqlite")}
    return {"tables": tables, "link": [link], "privacy": privacy}


def mean_total_variation(users: np.ndarray, films: np.ndarray, one: Pairs, other: Pairs) -> float:
    """Return the mean total variation over 2-way cross marginals."""
    found = []
    for i, a in enumerate(USER_SIZES):
        for j, b in enumerate(FILM_SIZES):
            counts = [np.bincount(users[who, i] * b + films[what, j], minlength=a * b) / len(who)
                      for who, what in (one, other)]  # fmt: skip
            found.append(0.5 * np.abs(counts[0] - counts[1]).sum())
    return float(np.mean(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0)
    scale, rng = parser.parse_args().scale, np.random.default_rng(0)
    users, films = (
        draw_attributes(rng, int(rows * scale), sizes) for rows, sizes in ((USERS, USER_SIZES), (FILMS, FILM_SIZES))
    )
    true = draw_links(rng, users, films, int(LINKS * scale))
    with tempfile.TemporaryDirectory() as folder:
        job = write_inputs(Path(folder), users, films, true)
        if (child := os.fork()) == 0:  # its memory is its own
            began = time.perf_counter()
            dp.run(job, Path(folder) / "run")
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
            print(f"{time.perf_counter() - began:.1f} s from Parquet to the report, peak {peak:.2f} GiB (with the data "
                  "that the benchmark made)", flush=True)  # fmt: skip
            os._exit(0)
        os.waitpid(child, 0)
        frame = pd.read_parquet(Path(folder) / "run/synthetic/seen")
    drawn = frame["user"].to_numpy(), frame["film"].to_numpy()
    random = rng.integers(0, len(users), len(true[0])), rng.integers(0, len(films), len(true[0]))
    own, chance = mean_total_variation(users, films, drawn, true), mean_total_variation(users, films, random, true)
    print(f"{len(true[0]):,} links: mean total variation {own:.4f}, random links {chance:.4f}; {len(drawn[0]):,} drawn")


if __name__ == "__main__":
    main()
