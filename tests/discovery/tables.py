"""A small database with cells that are not public: persons, their orders, and the payments of orders."""

import numpy as np
import pandas as pd
import tomli_w

CITIES, ITEMS = ("Berlin", "Bonn", "Ulm"), ("book", "lamp", "sofa")
PLANTED = "Einöd am See"
DOMAINS = {
    "persons": {"city": {"kind": "discover", "max_length": 20}, "sex": {"kind": "categories", "values": ["f", "m"]}},
    "orders": {
        "item": {"kind": "discover"},
        "amount": {"kind": "bins", "edges": "private", "low": 0, "high": 63, "bins": 6},
        "month": {"kind": "coded", "size": 3},
    },
    "kinds": {"kind": {"kind": "coded", "size": 2}},
}
UNITS = {"family": "marginal", "count": "units"}
BOUND = 3


def make_frames(persons=400, seed=0, most=5):
    """Return the tables; one person has a city of its own, and some have more orders than the bound."""
    rng = np.random.default_rng(seed)
    ids = np.arange(persons)
    people = pd.DataFrame({"id": ids, "city": rng.choice(CITIES, persons, p=[0.5, 0.3, 0.2]),
                           "sex": rng.choice(["f", "m"], persons)})  # fmt: skip
    people.loc[persons // 2, "city"] = PLANTED
    buyers = np.repeat(ids, rng.integers(0, most, persons))
    orders = pd.DataFrame({"order": np.arange(len(buyers)) + 1000, "person": buyers,
                           "item": rng.choice(ITEMS, len(buyers)), "amount": rng.integers(0, 64, len(buyers)),
                           "month": rng.integers(0, 3, len(buyers))})  # fmt: skip
    return {"persons": people, "orders": orders}


def make_job(folder, **more):
    """Return a job with searches and numbers of units in both tables."""
    mechanism = {"mechanism": "residual-planner"}
    tables = {
        "persons": {"path": "persons/*.parquet", "domain": "persons.toml", "key": "id",
                    "workload": [{"family": "marginal", "degree": 2},
                                 {**UNITS, "attributes": [["city"], []]}]} | mechanism,
        "orders": {"path": "orders/*.parquet", "domain": "orders.toml",
                   "workload": [{"family": "marginal", "degree": 2},
                                {**UNITS, "attributes": [["item", "month"]]}]} | mechanism,
    }  # fmt: skip
    link = {"kind": "one-to-many", "parent": "persons", "child": "orders", "child_key": "person", "max_degree": BOUND}
    return {
        "tables": tables,
        "link": [link],
        "privacy": {"epsilon": 8.0, "delta": 1e-5, "dataset": "shop", "ledger": str(folder / "ledger.sqlite")},
        "engine": {"scheduler": "synchronous", "seed": 5},
        "budget": {
            "method": "equal",
            "tables": {"persons": {"discover": 0.3}, "orders": {"discover": 0.2, "units": 0.4}},
        },
        **more,
    }


def replaced_job(folder, **more):
    """Return a job in which a neighbour replaces a row of any table with its links."""
    job = make_job(folder, **more)
    job["budget"]["tables"]["persons"]["share"] = 0.5
    job["tables"]["orders"] |= {"key": "order"}
    job["link"] = [{"kind": "many-to-many", "name": "bought", "parent": "persons", "child": "orders",
                    "via": "orders/*.parquet", "parent_key": "person", "child_key": "order", "max_degree": 6,
                    "protects": "both", "links": 500}]  # fmt: skip
    return job


def write_tables(folder, job=None, frames=None, domains=None, files=1):
    """Write tables, domain files and a job; return the path of the job."""
    for name, frame in (frames or make_frames()).items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number in range(files):
            frame.iloc[number::files].to_parquet(folder / name / f"{number}.parquet", index=False)
    for name, attributes in (DOMAINS | (domains or {})).items():
        (folder / f"{name}.toml").write_text(tomli_w.dumps({"attributes": attributes}))
    path = folder / "job.toml"
    path.write_text(tomli_w.dumps(make_job(folder) if job is None else job))
    return path
