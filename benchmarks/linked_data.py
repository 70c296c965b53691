"""Real tables with links between them, coded: MovieLens (100K, and a tenth of 1M), Berka.

They are in ../shared/data and are not part of dpscale.
"""

from __future__ import annotations

import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from base import DATA, ROOT

import dpscale
from dpscale.relational.assignment import PairTables
from dpscale.relational.features import Side
from dpscale.relational.rounding import Cross

MOST, DIRECTORS = 10, 3


@dataclass(frozen=True, eq=False)
class Linked:
    """Codes of two tables, their attributes' sizes, and links.

    `links`: (links, 2) rows; `bound`: links per row; `known`: whether the rows of the second table are children with
    one parent each.
    """

    name: str
    one: np.ndarray
    two: np.ndarray
    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    links: np.ndarray
    bound: int
    known: bool


def load_linked(name: str) -> Linked:
    return {"100K": _load_100k, "1M": _load_1m, "order": _load_orders, "trans": _load_transactions}[name]()


def _load_100k() -> Linked:
    folder = DATA / "movielens/ml-100k"
    user = pd.read_csv(folder / "u.user", sep="|", header=None, names=["id", "age", "sex", "work", "zip"])
    film = pd.read_csv(folder / "u.item", sep="|", header=None, encoding="latin-1")
    rating = pd.read_csv(folder / "u.data", sep="\t", header=None)
    one = np.c_[np.digitize(user.age, [18, 25, 35, 45, 50, 56]), _codes(user.sex), _codes(user.work)]
    links = np.c_[rating[0] - 1, rating[1] - 1]
    return Linked(
        "100K", one, film.iloc[:, 5:24].to_numpy(int), ((7, 2, 21), (2,) * 19), _limit_both(links), MOST, False
    )


def _load_1m() -> Linked:
    """Load the extract of the Czech Technical University: a tenth of the ratings."""
    folder = DATA / "movielens/ml-1m-ctu"
    user, film, rating = (pd.read_csv(folder / f"{name}.csv") for name in ("user", "movie", "rating_10pct"))
    one = np.c_[_codes(user.age), _codes(user.u_gender), user.occupation - user.occupation.min()]
    length = film.runningtime - film.runningtime.min()
    two = np.c_[film.year - film.year.min(), _codes(film.isEnglish), _codes(film.country), length]
    links = np.c_[_row_indices(user.user_id, rating.user_id), _row_indices(film.movie_id, rating.movie_id)]
    return Linked("1M", one, two, ((7, 2, 5), (4, 2, 4, 4)), _limit_both(links), MOST, False)


def load_chain() -> tuple[Linked, Linked]:
    """Load the extract's films with users who rated them, and with their directors; the first links of each film."""
    folder, data = DATA / "movielens/ml-1m-ctu", _load_1m()
    film, user, director, rating, credit = (
        pd.read_csv(folder / f"{name}.csv") for name in ("movie", "user", "director", "rating_10pct", "movie2director")
    )
    rated = np.c_[_row_indices(film.movie_id, rating.movie_id), _row_indices(user.user_id, rating.user_id)]
    made = np.c_[_row_indices(film.movie_id, credit.movie_id), _row_indices(director.director_id, credit.director_id)]
    of = np.c_[director.d_quality - director.d_quality.min(), director.avg_revenue - director.avg_revenue.min()]
    sizes = tuple((of.max(axis=0) + 1).tolist())
    return (
        Linked("ratings", data.two, data.one, data.sizes[::-1], _first_links(rated, MOST), MOST, False),
        Linked("credits", data.two, of, (data.sizes[1], sizes), _first_links(made, DIRECTORS), DIRECTORS, False),
    )


def _first_links(links: np.ndarray, most: int) -> np.ndarray:
    """Return the first links of every row of the first table, among links with existing rows."""
    links = np.unique(links[(links >= 0).all(axis=1)], axis=0)
    rows = pd.Series(links[:, 0])
    return links[rows.groupby(rows).cumcount().to_numpy() < most]


def _load_orders() -> Linked:
    account, order = _load_accounts(), _read_berka("order")
    two = np.c_[_codes(order.bank_to), _codes(order.k_symbol), _quantile_codes(order.amount, 5)]
    return _make_children("order", account, account.account_id, order.account_id, two, 5)


def _load_transactions() -> Linked:
    account, trans = _load_accounts(), _read_berka("trans_48k").fillna({"type": "", "operation": "", "k_symbol": ""})
    account = account[account.account_id.isin(trans.account_id)]
    kinds = [_codes(trans[name]) for name in ("type", "operation", "k_symbol")]
    two = np.c_[
        *kinds, _quantile_codes(trans.amount, 5), _quantile_codes(trans.balance, 5), (trans.date // 100 % 100 - 1) // 3
    ]
    return _make_children("trans", account, account.account_id, trans.account_id, two, 131)


def _make_children(name: str, account: pd.DataFrame, key: pd.Series, parent: pd.Series, two: np.ndarray, bound: int):
    one = account[["region", "salary", "frequency", "year", "loan", "clients", "sex", "age"]].to_numpy()
    links = np.c_[_row_indices(key, parent), np.arange(len(two))]
    sizes = tuple(tuple((table.max(axis=0) + 1).tolist()) for table in (one, two))
    return Linked(name, one, two, sizes, links, bound, True)


def _load_accounts() -> pd.DataFrame:
    """Load accounts with attributes of their district, loan, clients and owner."""
    account, district = _read_berka("account"), _read_berka("district").set_index("A1")
    given, loan = _read_berka("disp"), _read_berka("loan")
    birth = (
        given[given.type == "OWNER"].merge(_read_berka("client"), on="client_id").set_index("account_id").birth_number
    )
    birth = birth[account.account_id].to_numpy()
    return account.assign(
        region=_codes(district.A3[account.district_id]),
        salary=_quantile_codes(district.A11[account.district_id], 4),
        frequency=_codes(account.frequency),
        year=account.date // 10000 - 93,
        loan=account.account_id.isin(loan.account_id).astype(int),
        clients=np.minimum(given.groupby("account_id").size()[account.account_id].to_numpy(), 2) - 1,
        sex=(birth // 100 % 100 > 50).astype(int),
        age=_quantile_codes(birth // 10000, 4),
    )


def _read_berka(name: str) -> pd.DataFrame:
    return pd.read_csv(DATA / f"berka/{name}.asc", sep=";", low_memory=False)


def _codes(values: pd.Series) -> np.ndarray:
    return pd.Categorical(values).codes.astype(int)


def _quantile_codes(values: pd.Series, parts: int) -> np.ndarray:
    values = np.asarray(values)
    return np.digitize(values, np.unique(np.quantile(values, np.linspace(0, 1, parts + 1)[1:-1])))


def _row_indices(key: pd.Series, found: pd.Series) -> np.ndarray:
    return pd.Index(key).get_indexer(found)


def _limit_both(links: np.ndarray) -> np.ndarray:
    """Return the first MOST links of every row of the second table, then of the first."""
    for side in (1, 0):
        rows = pd.Series(links[:, side])
        links = links[rows.groupby(rows).cumcount().to_numpy() < MOST]
    return links


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
    budget: dict[str, Any] | None = None,
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
            "budget": budget or {},
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
    budget = {"method": "equal", "links": {"links": {"share": share}}} if share else None
    made = release_database(frames, sizes, [link], epsilon, seed, budget=budget)
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


PIPELINES = ROOT / "pipelines"
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


CUSTOMERS, RENTALS, PAYMENTS = (2, 6, 4, 2), (4, 7, 16, 3, 2), (7, 4, 7, 2)


def _rental_store(folder: Path) -> Job:
    """Write customers, rentals and payments, generated with the numbers of rows of the Sakila sample database.

    Customers have store, region, tenure and activity; rentals month, weekday, category, length and store; payments
    amount, month, weekday and staff. As there, rentals hardly depend on customers, and payments follow from their
    rental: the amount from category and length, the month from the month, weekday and staff in most cases.
    """
    rng = np.random.default_rng(SEED)
    region, tenure = rng.choice(6, 599, p=np.array([30, 25, 15, 12, 10, 8]) / 100), rng.integers(0, 4, 599)
    store = (rng.random(599) < 0.45).astype(int)
    customers = np.c_[store, region, tenure, rng.random(599) < 0.97].astype(int)
    renter = np.repeat(np.arange(599), np.clip(rng.poisson(26 + tenure), 1, 46))

    many = len(renter)
    month, weekday = rng.choice(4, many, p=[0.07, 0.15, 0.42, 0.36]), rng.integers(0, 7, many)
    category = np.where(rng.random(many) < 0.03, (3 * region[renter] + rng.integers(0, 3, many)) % 16,
                        rng.integers(0, 16, many))  # fmt: skip
    length = rng.integers(0, 3, many)
    counter = np.where(rng.random(many) < 0.53, store[renter], 1 - store[renter])
    rentals = np.c_[month, weekday, category, length, counter]

    paid = np.repeat(np.arange(many), rng.choice(3, many, p=[0.01, 0.97, 0.02]))
    late = rng.choice(4, len(paid), p=[0.5, 0.25, 0.15, 0.1])
    amount = np.minimum(category[paid] // 6 + length[paid] // 2 + late, 6)
    day = np.where(rng.random(len(paid)) < 0.6, weekday[paid], rng.integers(0, 7, len(paid)))
    payments = np.c_[amount, month[paid], day, np.where(rng.random(len(paid)) < 0.9, counter[paid], 1 - counter[paid])]

    tables, links = {}, []
    tables["customers"] = _table(folder, "customers", customers, CUSTOMERS, key=np.arange(599))
    for above, name, rows, sizes, parents, bound in (
        ("customers", "rentals", rentals, RENTALS, renter, 46),
        ("rentals", "payments", payments, PAYMENTS, paid, 2),
    ):
        tables[name] = _table(folder, name, rows, sizes, key=np.arange(len(rows)), parent=parents)
        links.append({"kind": "one-to-many", "parent": above, "child": name, "child_key": "parent",
                      "max_degree": bound})  # fmt: skip
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
    "rentals": _rental_store,
}


def frames_of(job: Job) -> dict[str, pd.DataFrame]:
    """Return the tables of a job."""
    return {name: pd.read_parquet(one["path"]) for name, one in job["tables"].items()}
