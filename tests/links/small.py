"""A small shop: persons live in a public country, place orders and rate public products."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w

PERSONS, PRODUCTS, COUNTRIES = 300, 40, 5
DOMAINS = {
    "persons": {"age": {"kind": "coded", "size": 4}, "sex": {"kind": "categories", "values": ["F", "M"]}},
    "orders": {"month": {"kind": "coded", "size": 3}, "amount": {"kind": "bins", "edges": [0, 10, 100]}},
    "products": {"kind": {"kind": "coded", "size": 3}, "dear": {"kind": "coded", "size": 2}},
    "countries": {"north": {"kind": "coded", "size": 2}, "size": {"kind": "coded", "size": 3}},
}


def make_frames(seed: int = 0) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(seed)
    age, sex = rng.integers(0, 4, PERSONS), np.where(rng.random(PERSONS) < 0.5, "F", "M")
    country = rng.integers(0, COUNTRIES, PERSONS)
    persons = pd.DataFrame({"id": [f"p{i}" for i in range(PERSONS)], "age": age, "sex": sex, "country": country})
    buyers = np.repeat(np.arange(PERSONS), rng.poisson(1 + age))
    amount = rng.random(len(buyers)) * np.where(sex[buyers] == "F", 10, 100)
    orders = pd.DataFrame(
        {"person": [f"p{i}" for i in buyers], "month": rng.integers(0, 3, len(buyers)), "amount": amount}
    )
    kind, dear = rng.integers(0, 3, PRODUCTS), rng.integers(0, 2, PRODUCTS)
    codes, labels = np.arange(PRODUCTS) + 100, [f"thing {i}" for i in range(PRODUCTS)]
    products = pd.DataFrame({"code": codes, "kind": kind, "dear": dear, "label": labels})
    pairs = pd.DataFrame({"id": rng.choice(persons.id, 800), "code": rng.choice(products.code, 800)}).drop_duplicates()
    countries = pd.DataFrame({"country": range(COUNTRIES), "north": [0, 1, 0, 1, 1], "size": [0, 1, 2, 0, 1]})
    return {"persons": persons, "orders": orders, "products": products, "countries": countries, "ratings": pairs}


def write_job(folder: Path, changes: dict[str, Any] | None = None, data: dict[str, pd.DataFrame] | None = None,
          parts: int = 1, **more: Any) -> Path:  # fmt: skip
    """Write data, domains and a job; `changes` and `more` replace sections of the job."""
    for name, frame in (data or make_frames()).items():
        place = folder / "data" / name
        place.mkdir(parents=True, exist_ok=True)
        for number in range(parts):
            frame.iloc[number::parts].to_parquet(place / f"{number}.parquet", index=False)
    for name, attributes in DOMAINS.items():
        (folder / f"{name}.toml").write_text(tomli_w.dumps({"attributes": attributes}))
    path = folder / "job.toml"
    path.write_text(tomli_w.dumps(make_job() | (changes or {}) | more))
    return path


def table_section(name: str, key: str | None = None, **more: Any) -> dict[str, Any]:
    return {"path": f"data/{name}/*.parquet", "domain": f"{name}.toml", **({"key": key} if key else {}), **more}


def make_job(method: str = "equal") -> dict[str, Any]:
    """Return a job whose root is persons: their orders, ratings and countries are added or removed with them.

    `method` divides the budget; with "equal" nothing is measured before the tables are planned.
    """
    return {
        "budget": {"method": method},
        "tables": {
            "persons": table_section("persons", "id"),
            "orders": table_section("orders"),
            "products": table_section("products", "code", public=True),
            "countries": table_section("countries", "country", public=True),
        },
        "link": [
            {"kind": "one-to-many", "parent": "persons", "child": "orders", "child_key": "person", "max_degree": 6},
            {"kind": "many-to-many", "name": "ratings", "parent": "persons", "child": "products",
             "via": "data/ratings/*.parquet", "child_key": "code", "max_degree": 5},
            {"kind": "one-to-many", "name": "homes", "parent": "countries", "child": "persons", "child_key": "country"},
        ],
        "privacy": {"privacy_cost": 8.0, "dataset": "shop"},
        "engine": {"scheduler": "synchronous", "seed": 7},
    }  # fmt: skip


def run_digests(run: Path) -> dict[str, str]:
    """Return the digests of all drawn values and of the synthetic rows."""
    files = [
        *run.glob("links/*/*.parquet"),
        *run.glob("synthetic/*/*.parquet"),
        *run.glob("tables/*/measurements/**/*.parquet"),
    ]
    return {str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)}
