"""Real tables with links between them, coded: MovieLens (100K, and a tenth of 1M), Berka.

They are in ../shared/data and are not part of dpscale.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

DATA = Path(__file__).parents[2] / "shared" / "data"
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
