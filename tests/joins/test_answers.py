"""Answers over joins against joins of pandas, with noise that rounds away."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale.base.errors import DataError, PlanError
from dpscale.runs.opening import begin_run, read_job
from dpscale.runs.run import Run
from tests.links.small import DOMAINS, make_frames, make_job, write_job
from tests.messages import refused
from tests.running import run_stages

EXACT = {"privacy_cost": 1e12, "allow_weak_privacy": True, "dataset": "shop", "ledger": "ledger.db"}
WORKLOAD: list[dict[str, Any]] = [
    {"family": "marginal", "attributes": [["persons.sex", "orders.month"], ["countries.north", "orders.month"]]},
    {"family": "marginal", "attributes": [["persons.age", "products.kind"]]},
    {"family": "marginal", "attributes": [["countries.size", "persons.sex"]]},
    {"family": "marginal", "per": "persons", "attributes": [["persons.age", "orders.count"], ["ratings.count"]]},
    {"family": "mean", "per": "persons", "of": "orders.count", "attributes": [["persons.age"]]},
]


def run_of(folder: Path, frames: dict[str, pd.DataFrame], bound: int = 100, **changes: Any) -> Run:
    """Return a run of the shop, of which no stage is done."""
    links = [one | ({"max_degree": bound} if "max_degree" in one else {}) for one in make_job()["link"]]
    tables = {name: {**one, "mechanism": "residual-planner"} for name, one in make_job()["tables"].items()}
    sections = {"workload": WORKLOAD, "privacy": EXACT, "link": links, "tables": tables} | changes
    path = write_job(folder, data=frames, parts=3, **sections)
    return begin_run(read_job(path), folder / "run")


def release_of(folder: Path, frames: dict[str, pd.DataFrame], bound: int = 100, **changes: Any) -> dp.Release:
    run_stages(run_of(folder, frames, bound, **changes))
    return dp.Release.open(folder / "run")


def table_of(frame: pd.DataFrame, columns: Sequence[str], attributes: Sequence[tuple[str, str]]) -> np.ndarray:
    """Return the number of rows of a joined frame by the cells of some attributes."""
    codes = [code_of(frame[column], *where) for column, where in zip(columns, attributes, strict=True)]
    shape = [len(DOMAINS[table][name].get("values", range(DOMAINS[table][name].get("size", 2))))
             for table, name in attributes]  # fmt: skip
    found = np.zeros(shape)
    np.add.at(found, tuple(codes), 1)
    return found


def code_of(column: pd.Series, table: str, name: str) -> np.ndarray:
    values = DOMAINS[table][name].get("values")
    return column.to_numpy() if values is None else np.array([values.index(one) for one in column])


def test_joins_equal_those_of_pandas(tmp_path: Path) -> None:
    frames = make_frames()
    release = release_of(tmp_path, frames)
    persons = frames["persons"].merge(frames["countries"], on="country")
    orders = frames["orders"].merge(persons, left_on="person", right_on="id")
    rated = frames["ratings"].merge(persons, on="id").merge(frames["products"], on="code")
    for joined, names in (
        (orders, (("persons", "sex"), ("orders", "month"))),
        (orders, (("countries", "north"), ("orders", "month"))),
        (rated, (("persons", "age"), ("products", "kind"))),
        (persons, (("countries", "size"), ("persons", "sex"))),
    ):
        found = release.marginal([".".join(one) for one in names])
        assert np.allclose(found, table_of(joined, [name for _, name in names], names), atol=0.01), names
    by_sex = table_of(orders, ["sex", "month"], [("persons", "sex"), ("orders", "month")])
    crossed = release.crosstab("persons.sex", "orders.month", normalize="rows")["estimate"]
    assert np.allclose(crossed, by_sex / by_sex.sum(axis=1, keepdims=True), atol=1e-4)
    sex, month = (DOMAINS[table][name].get("values", range(9))[0] for table, name in
                  (("persons", "sex"), ("orders", "month")))  # fmt: skip
    odds = release.odds_ratio({"orders.month": month}, {"persons.sex": sex})
    outcome, others = by_sex[:, 0], by_sex[:, 1:].sum(axis=1)
    assert np.isclose(odds.estimate, outcome[0] * others[1:].sum() / others[0] / outcome[1:].sum(), rtol=1e-3)
    assert release.test("persons.sex", "orders.month").p_value > 0
    degrees = frames["orders"].person.value_counts().reindex(frames["persons"].id).fillna(0).astype(int)
    means = degrees.groupby(frames["persons"].set_index("id").age).mean()
    assert np.allclose(release.mean("orders.count", by="persons.age").estimate, means, atol=1e-4)
    expected = np.zeros((4, 101))
    np.add.at(expected, (frames["persons"].age, degrees), 1)
    assert np.allclose(release.marginal(("persons.age", "orders.count")), expected, atol=0.01)
    rates = np.bincount(frames["ratings"].id.value_counts().reindex(frames["persons"].id).fillna(0).astype(int))
    assert np.allclose(release.marginal(["ratings.count"])[: len(rates)], rates, atol=0.01)


def test_bounds_cut_rows_and_their_number_is_released(tmp_path: Path) -> None:
    frames = make_frames()
    frames["ratings"] = pd.concat([frames["ratings"], frames["ratings"].head(50)])  # a repeated pair is one link
    release = release_of(tmp_path, frames, bound=2)
    for frame, key, name in ((frames["orders"], "person", "orders"), (frames["ratings"], "id", "ratings")):
        distinct = frame.drop_duplicates() if name == "ratings" else frame
        degrees = distinct[key].value_counts().reindex(frames["persons"].id).fillna(0)
        found = release.joins["per-persons-orders-ratings"].marginal([f"{name}.cut"])
        assert np.allclose(found, [(degrees <= 2).sum(), (degrees > 2).sum()], atol=0.01)
        total = release.joins["orders-persons-countries" if name == "orders" else "ratings-persons-products"].total()
        assert total.estimate == pytest.approx(degrees.clip(upper=2).sum(), abs=0.1)
        beyond = (degrees.clip(upper=8) - 2).clip(lower=0).sum()
        share = release.cut("orders-persons-countries" if name == "orders" else "ratings-persons-products")
        assert share.estimate == pytest.approx(beyond / (beyond + degrees.clip(upper=2).sum()), abs=1e-4)
        assert share.low < share.estimate < share.high
    with refused(PlanError):
        release.cut("persons-countries")


def test_rows_without_a_key_or_a_parent_are_refused_or_left_out(tmp_path: Path) -> None:
    frames = make_frames()
    lost = pd.DataFrame({"person": ["nobody", None], "month": [0, 1], "amount": [1.0, 2.0]})
    frames["orders"] = pd.concat([frames["orders"], lost])
    with refused(DataError):
        release_of(tmp_path / "refused", frames)
    links = [one | {"nulls": "drop", "dangling": "drop", "max_degree": 100} for one in make_job()["link"][:1]]
    tables = {name: make_job()["tables"][name] for name in ("persons", "orders")}
    release = release_of(tmp_path / "dropped", frames, link=links, tables=tables, workload=[
        {"family": "marginal", "attributes": [["persons.sex", "orders.month"]]}])  # fmt: skip
    assert release.marginal(("persons.sex", "orders.month")).sum() == pytest.approx(len(frames["orders"]) - 2, abs=0.1)


def test_unknown_sets_are_refused_with_the_joins_that_exist(tmp_path: Path) -> None:
    release = release_of(tmp_path, make_frames())
    with refused(PlanError):
        release.marginal(("orders.month", "persons.age"))
    with refused(PlanError):
        release.marginal(("persons.sex",))
    assert release.joins["persons-countries"].marginal(("persons.sex",)).sum() == pytest.approx(300, abs=0.1)
    estimate, error = release.answer(("persons.sex", "orders.month"), query=np.ones((2, 3)))
    assert estimate == pytest.approx(len(make_frames()["orders"]), abs=1)
    assert 0 < error < 1
    assert list(release.table(("orders.month", "persons.sex")).columns[:2]) == ["orders.month", "persons.sex"]

    again = pickle.loads(pickle.dumps(release))
    assert list(again.tables) == list(release.tables)
    for one in (*release.tables.values(), *release.joins.values()):
        same, names = pickle.loads(pickle.dumps(one)), one.domain.names[:1]
        assert (same.marginal(names) == one.marginal(names)).all(), "releases of tables and joins too"
