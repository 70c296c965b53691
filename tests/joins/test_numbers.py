"""Numbers over joins: numbers of children and of their children, and sums of numbers of both tables."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale.engine.schedulers import resolve
from tests.joins.small import exact_counts, join_job, joins_of, make_database

PERSONS = """
attributes.sex = {kind = "categories", values = ["F", "M"]}
numbers.income = {low = 0, high = 100, nulls = "skip"}
"""
ORDERS = """
attributes.kind = {kind = "coded", size = 3}
numbers.amount = {low = 0, high = 10, step = 0.01}
numbers.spent = {from = "amount", low = -20, high = 20, step = 0.01, per_unit = "total"}
"""


def test_rows_two_links_below_are_counted(tmp_path: Path) -> None:
    data = make_database(0)
    run = joins_of(join_job(tmp_path / "data", data), tmp_path / "run")["below"]
    persons = data["persons"].set_index("id")
    owner = data["accounts"].set_index("account").person
    payments = data["payments"].account.map(owner).value_counts().reindex(persons.index).fillna(0).clip(upper=6)
    tags = data["tags"].drop_duplicates().account.map(owner).value_counts().reindex(persons.index).fillna(0)
    cut = {"payments.cut": data["payments"].account.map(owner).value_counts().reindex(persons.index).fillna(0) > 6,
           "tags.cut": tags > 4}  # fmt: skip
    columns = {"persons.x": persons.x, "payments.count": payments, "tags.count": tags.clip(upper=4), **cut}
    names = list(run.domain.axis_names)
    rows = pd.DataFrame(columns)[names].astype(int).itertuples(index=False, name=None)
    assert exact_counts(run, resolve(scheduler="synchronous")) == Counter(rows)


def test_sums_and_means_of_numbers_of_both_tables(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    persons = pd.DataFrame({"id": range(500), "sex": rng.choice(["F", "M"], 500), "income": rng.integers(0, 100, 500)})
    persons["income"] = persons.income.where(persons.id % 7 > 0)
    orders = pd.DataFrame({"person": rng.integers(0, 500, 2000), "amount": rng.random(2000) * 10,
                           "kind": rng.integers(0, 3, 2000)})  # fmt: skip
    persons.to_csv(tmp_path / "persons.csv", index=False)
    orders.to_parquet(tmp_path / "orders.parquet", index=False)
    (tmp_path / "persons.toml").write_text(PERSONS)
    (tmp_path / "orders.toml").write_text(ORDERS)
    tables = {name: {"path": str(tmp_path / f"{name}.{kind}"), "domain": str(tmp_path / f"{name}.toml"),
                     "mechanism": "residual-planner", "workload": [{"family": "marginal", "attributes": [[own]]}]}
              for name, kind, own in (("persons", "csv", "sex"), ("orders", "parquet", "kind"))}  # fmt: skip
    tables["persons"]["key"] = "id"
    release = dp.run({
        "tables": tables,
        "link": [{"kind": "one-to-many", "parent": "persons", "child": "orders", "child_key": "person",
                  "max_degree": 50}],
        "workload": [{"family": "mean", "of": "orders.amount", "attributes": [["persons.sex"]]},
                     {"family": "sum", "of": "persons.income", "attributes": [["orders.kind"]]},
                     {"family": "sum", "of": "orders.spent", "attributes": [["persons.sex"]], "name": "spent"}],
        "privacy": {"privacy_cost": 1e10, "allow_weak_privacy": True, "ledger": str(tmp_path / "ledger.db"),
                    "dataset": "numbers"},
        "engine": {"scheduler": "synchronous", "seed": 1},
    }, tmp_path / "run")  # fmt: skip
    joined = orders.merge(persons, left_on="person", right_on="id")
    assert release.mean("orders.amount", by="persons.sex").estimate.tolist() == pytest.approx(
        joined.groupby("sex").amount.mean().tolist(), abs=1e-3
    )
    assert release.sum("persons.income", by="orders.kind").estimate.tolist() == pytest.approx(
        joined.groupby("kind").income.sum().tolist(), rel=1e-4
    )
    spent = orders.groupby("person").amount.sum().clip(upper=20).groupby(persons.set_index("id").sex).sum()
    assert release.sum("orders.spent", by="persons.sex").estimate.tolist() == pytest.approx(spent.tolist(), rel=1e-4)
