"""Databases of the benchmark of linked tables: MovieLens, Berka and Chinook from ../shared/data, and a generated one.

Each is a folder with files and a job without budget. The generated one has three levels, whose links are nearly random:
3 % of the rows copy one attribute of their parent.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from linked_data import DATA, load_linked
from linked_more import make_frame, make_pairs_link, pairs_frame

PIPELINES = Path(__file__).parents[1] / "pipelines"
SEED, PERSONS, COPIES = 5, 4000, 0.03
SIZES = {"one": (6, 4, 2, 8, 5), "two": (5, 3, 7, 4), "three": (6, 4, 3, 5)}
BOUNDS = {"two": 10, "three": 8}

Job = dict[str, Any]


def make_database(name: str, folder: Path) -> Job:
    """Write the files of a database and return its tables and links."""
    return DATABASES[name](folder)


def _table(folder: Path, name: str, codes: np.ndarray, sizes: tuple[int, ...], **keys: np.ndarray) -> Job:
    """Write a table and its domain, and return its section."""
    make_frame(codes, **keys).to_parquet(folder / f"{name}.parquet")
    attributes = {f"a{i}": {"kind": "coded", "size": int(size)} for i, size in enumerate(sizes)}
    (folder / f"{name}.toml").write_text(tomli_w.dumps({"attributes": attributes}))
    return {"path": str(folder / f"{name}.parquet"), "domain": str(folder / f"{name}.toml"), "key": "key"}


def _pairs(name: str, folder: Path) -> Job:
    data = load_linked(name)
    tables = {end: _table(folder, end, codes, sizes, key=np.arange(len(codes)))
              for end, codes, sizes in zip(("one", "two"), (data.one, data.two), data.sizes, strict=True)}  # fmt: skip
    pairs_frame(data.links).to_parquet(folder / "links.parquet")
    link = make_pairs_link("links", "one", "two", data.bound, protects="both", via=str(folder / "links.parquet"))
    return {"tables": tables, "link": [link]}


def _pipeline(module: str, source: str, job: str, folder: Path) -> Job:
    """Return the database of a pipeline of the project, which prepares the tables."""
    sys.path.insert(0, str(PIPELINES))
    for name, rows in import_module(module).prepare(DATA / source).items():
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    place = PIPELINES / module
    content = tomllib.loads((place / f"{job}.toml").read_text())
    for section in content["tables"].values():
        section |= {"path": str(folder / Path(section["path"]).name), "domain": str(place / section["domain"])}
    return {"tables": content["tables"], "link": content["link"]}


def _generated(folder: Path) -> Job:
    rng, tables, links = np.random.default_rng(SEED), {}, []
    codes = _rows(rng, PERSONS, SIZES["one"])
    tables["one"] = _table(folder, "one", codes, SIZES["one"], key=np.arange(PERSONS))
    for above, name in (("one", "two"), ("two", "three")):
        degrees = np.minimum(rng.poisson(rng.gamma(2, 1.4, len(codes))), BOUNDS[name])
        parents = np.repeat(np.arange(len(codes)), degrees)
        own = _rows(rng, len(parents), SIZES[name])
        copied = rng.random(len(own)) < COPIES
        own[copied, 0] = codes[parents[copied], 0] % SIZES[name][0]
        tables[name] = _table(folder, name, own, SIZES[name], key=np.arange(len(own)), parent=parents)
        links.append({"name": f"{name}s", "kind": "one-to-many", "parent": above, "child": name, "child_key": "parent",
                      "max_degree": BOUNDS[name]})  # fmt: skip
        codes = own
    return {"tables": tables, "link": links}


def _rows(rng: np.random.Generator, rows: int, sizes: tuple[int, ...]) -> np.ndarray:
    """Return rows whose attributes depend on a hidden class."""
    hidden, columns = rng.integers(0, 3, rows), []
    for size in sizes:
        own = rng.choice(size, rows, p=rng.dirichlet(np.ones(size) * 2))
        follows = (hidden * (size // 2 + 1) + rng.integers(0, 2, rows)) % size
        columns.append(np.where(rng.random(rows) < 0.4, follows, own))
    return np.stack(columns, axis=1)


DATABASES: dict[str, Callable[[Path], Job]] = {
    "100K": lambda folder: _pairs("100K", folder),
    "1M": lambda folder: _pairs("1M", folder),
    "berka": lambda folder: _pipeline("berka", "berka", "job", folder),
    "chinook": lambda folder: _pipeline("chinook", "chinook/Chinook_Sqlite.sqlite", "customers", folder),
    "generated": _generated,
}


def frames_of(job: Job) -> dict[str, pd.DataFrame]:
    """Return the tables of a job."""
    return {name: pd.read_parquet(one["path"]) for name, one in job["tables"].items()}
