"""Small tables with columns whose cells are not public, and their jobs."""

import numpy as np
import pandas as pd
import tomli_w

CITIES = ("Berlin", "Hamburg", "München", "Köln", "Bonn")
SHARES = (0.5, 0.3, 0.15, 0.049, 0.001)
PLANTED = "Einöd am See"
DOMAIN = {
    "attributes": {
        "city": {"kind": "discover", "max_length": 20, "nulls": "category"},
        "zip": {"kind": "discover", "values": [10115], "other": False},
        "age": {"kind": "bins", "edges": "private", "low": 0, "high": 127, "bins": 12},
        "sex": {"kind": "categories", "values": ["f", "m"]},
    },
    "numbers": {"pay": {"low": 0, "high": "private", "step": 0.5, "nulls": "skip"}},
}
WORKLOAD = [
    {"family": "marginal", "attributes": [["city", "sex"], ["zip"], ["age"]]},
    {"family": "mean", "of": "pay", "attributes": [["sex"], []]},
]


def make_frame(rows=6000, seed=0):
    """Return a table; one record has a city of its own."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({
        "person": np.arange(rows) // 2,
        "city": rng.choice(CITIES, rows, p=SHARES),
        "zip": rng.choice([10115, 20095, 80331, 53111], rows, p=[0.4, 0.3, 0.28, 0.02]),
        "age": rng.integers(18, 80, rows),
        "sex": rng.choice(["f", "m"], rows),
        "pay": np.round(rng.lognormal(3, 1, rows), 1),
    })  # fmt: skip
    frame.loc[17, "city"] = PLANTED
    frame.loc[rng.choice(rows, 50, replace=False), "city"] = None
    frame.loc[rng.choice(rows, 60, replace=False), "pay"] = None
    return frame


def write_frame(folder, frame, files=2):
    """Write a table as Parquet files and return their folder."""
    path = folder / "data"
    path.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        frame.iloc[number::files].to_parquet(path / f"{number}.parquet")
    return path


def write_job(folder, frame=None, domain=DOMAIN, files=2, **job):
    """Write table, domain and job; return the job as a dict."""
    path = write_frame(folder, make_frame() if frame is None else frame, files)
    (folder / "domain.toml").write_text(tomli_w.dumps(domain))
    data = {"path": str(path), "domain": str(folder / "domain.toml"), **job.pop("data", {})}
    privacy = {"epsilon": 4.0, "delta": 1e-6, "ledger": str(folder / "ledger.sqlite"), **job.pop("privacy", {})}
    engine = {"seed": 1, **job.pop("engine", {})}
    return {
        "data": data,
        "privacy": privacy,
        "engine": engine,
        "workload": WORKLOAD,
        "budget": {"discover": 0.3},
        **job,
    }
