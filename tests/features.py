"""Small jobs, one for each kind of part of a release, which every mechanism is given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

Content = dict[str, Any]
ROWS = 240
CITIES = {"kind": "categories", "values": ["Berlin", "Bonn", "Rom"], "parent": {"country": {"D": ["Berlin", "Bonn"],
                                                                                         "I": ["Rom"]}}}  # fmt: skip
SEX = {"kind": "categories", "values": ["F", "M"]}
AGE = {"kind": "integer", "low": 0, "high": 9}


def frame() -> pd.DataFrame:
    """Return records of persons, whose sex depends on the age."""
    rng = np.random.default_rng(7)
    age = rng.integers(0, 10, ROWS)
    return pd.DataFrame({
        "id": np.arange(ROWS), "person": rng.integers(0, ROWS // 2, ROWS), "age": age,
        "sex": np.where(rng.random(ROWS) < age / 10, "F", "M"), "city": rng.choice(["Berlin", "Bonn", "Rom"], ROWS),
        "fee": rng.integers(0, 101, ROWS), "visits": rng.integers(0, 4, ROWS),
    })  # fmt: skip


def table(folder: Path, workload: list[Content], attributes: Content | None = None, **data: Any) -> Content:
    """Write the records, and return a job of one table."""
    people = frame()
    people.to_parquet(folder / "people.parquet")
    domain = {"attributes": attributes or {"age": AGE, "sex": SEX}}
    domain |= {"numbers": {"fee": {"low": 0, "high": 100}}} if any("of" in part for part in workload) else {}
    write_domain(folder / "people.domain.toml", domain)
    return {"data": {"path": str(folder / "people.parquet"), "domain": str(folder / "people.domain.toml"), **data},
            "workload": workload}  # fmt: skip


def write_domain(path: Path, content: Content) -> None:
    import tomli_w

    path.write_text(tomli_w.dumps(content))


PAIRS: list[Content] = [{"family": "marginal", "degree": 2}]


def counts(folder: Path) -> Content:
    return table(folder, PAIRS)


def ranges(folder: Path) -> Content:
    return table(
        folder, [{"family": "prefix", "attributes": [["age"]]}, {"family": "range", "attributes": [["age"]]}, *PAIRS]
    )


def statements(folder: Path) -> Content:
    text = "SELECT sex, COUNT(*) AS n, COUNT(*) FILTER (WHERE age >= 5) / COUNT(*) AS old FROM t GROUP BY sex"
    return table(folder, [{"query": text}])


def sums(folder: Path) -> Content:
    return table(folder, [*PAIRS, {"family": "mean", "of": "fee", "attributes": [["sex"]]}])


def levels(folder: Path) -> Content:
    return table(folder, [{"family": "marginal", "attributes": [["city", "sex"], ["country"]]}],
                 {"city": CITIES, "sex": SEX})  # fmt: skip


def searches(folder: Path) -> Content:
    job = table(folder, PAIRS, {"city": {"kind": "discover", "max_length": 20}, "sex": SEX},
                privacy_unit="person", max_rows_per_unit=3)  # fmt: skip
    return job | {"budget": {"discover": 0.3}}


def units(folder: Path) -> Content:
    return table(folder, [*PAIRS, {"family": "marginal", "count": "units", "attributes": [["sex"]]}],
                 privacy_unit="person", max_rows_per_unit=3)  # fmt: skip


def periods(folder: Path) -> Content:
    for month in ("2026-01", "2026-02"):
        (folder / "data" / f"month={month}").mkdir(parents=True)
        frame()[["age", "sex"]].to_parquet(folder / "data" / f"month={month}" / "part.parquet")
    month = {"kind": "date", "by": "month", "low": "2026-01", "high": "2026-02"}
    write_domain(folder / "people.domain.toml", {"attributes": {"month": month, "age": AGE, "sex": SEX}})
    return {"data": {"path": str(folder / "data"), "domain": str(folder / "people.domain.toml"), "period": "month"},
            "time": {"answers": ["period", "cumulative"]}, "workload": PAIRS}  # fmt: skip


def synthetic_rows(folder: Path) -> Content:
    return table(folder, PAIRS) | {"synthesize": {"rows": 50}}


def tables(folder: Path, mechanism: str) -> Content:
    """Return a job of two linked tables, each with the mechanism, which releases rows."""
    rng = np.random.default_rng(3)
    people = frame()
    people.to_parquet(folder / "people.parquet")
    visits = pd.DataFrame({"person": rng.integers(0, ROWS, 2 * ROWS), "kind": rng.choice(["a", "b"], 2 * ROWS)})
    visits.to_parquet(folder / "visits.parquet")
    write_domain(folder / "people.domain.toml", {"attributes": {"age": AGE, "sex": SEX}})
    write_domain(folder / "visits.domain.toml", {"attributes": {"kind": {"kind": "categories", "values": ["a", "b"]}}})
    return {
        "tables": {name: {"path": str(folder / f"{name}.parquet"), "domain": str(folder / f"{name}.domain.toml"),
                          "mechanism": mechanism, **({"key": "id"} if name == "people" else {})}
                   for name in ("people", "visits")},
        "link": [{"kind": "one-to-many", "parent": "people", "child": "visits", "child_key": "person",
                  "max_degree": 3}],
    }  # fmt: skip


def join(folder: Path, mechanism: str) -> Content:
    """Return a job of two linked tables with a table over their join, each with the mechanism."""
    joined = {"family": "marginal", "attributes": [["people.sex", "visits.kind"]]}
    own = {"visits-people": {"mechanism": {"name": mechanism}}}
    return tables(folder, mechanism) | {"workload": [joined], "joins": own}


def without_delta(folder: Path) -> Content:
    return table(folder, PAIRS) | {"privacy": {"delta": None}}


FEATURES = {
    "counts": counts, "ranges": ranges, "SELECT": statements, "sums and means": sums, "levels": levels,
    "searches": searches, "distinct units": units, "periods": periods, "rows": synthetic_rows, "several tables": tables,
    "joins": join, "no δ": without_delta,
}  # fmt: skip


def feature_job(folder: Path, feature: str, mechanism: str) -> Content:
    """Write the data of a feature, and return a job that asks for it from a mechanism."""
    if FEATURES[feature] in (tables, join):
        content = FEATURES[feature](folder, mechanism)
    else:
        content = FEATURES[feature](folder) | {"mechanism": {"name": mechanism}}
    privacy = {"epsilon": 4.0, "delta": 1e-6, "ledger": str(folder / "ledger.sqlite"), "dataset": "people"}
    privacy |= content.get("privacy", {})
    stated = {key: value for key, value in privacy.items() if value is not None}
    return content | {"privacy": stated, "engine": {"scheduler": "synchronous", "seed": 1}}
