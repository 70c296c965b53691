"""One release of each kind, whose streams and figures are frozen: several tables, joins, periods, searches, …

`python -m tests.golden.kinds [CASE ...]` makes the stored files again, which is allowed only if an issue changes the
draws.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

import dpscale as dp
from tests.golden.streams import recorded_streams

STORED = Path(__file__).parent / "stored" / "kinds"
ENGINE = {"scheduler": "synchronous", "memory": "1GiB", "seed": 0}
Columns = dict[str, np.ndarray]


def write_files(place: Path, columns: Columns, files: int = 2) -> None:
    """Write a table as CSV text with the same bytes for any version of any library."""
    place.mkdir(parents=True, exist_ok=True)
    rows = list(zip(*(values.tolist() for values in columns.values()), strict=True))
    for number in range(files):
        with open(place / f"{number}.csv", "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([list(columns), *rows[number::files]])


def write_toml(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(tomli_w.dumps(content))
    return path


def coded(**sizes: int) -> dict[str, Any]:
    return {"attributes": {name: {"kind": "coded", "size": size} for name, size in sizes.items()}}


def write_shop(place: Path) -> None:
    """Write persons of a public country, their orders, and their ratings of public products."""
    rng = np.random.default_rng(3)
    persons, products, countries = np.arange(240), np.arange(20), np.arange(4)
    age = rng.integers(0, 4, len(persons))
    buyers = np.repeat(persons, rng.integers(0, 3 + age))
    pairs = np.unique(np.stack([rng.integers(0, 240, 500), rng.integers(0, 20, 500)], axis=1), axis=0)
    write_files(place / "persons", {"id": persons, "age": age, "sex": rng.integers(0, 2, 240),
                                    "country": rng.integers(0, 4, 240)})  # fmt: skip
    write_files(place / "orders", {"person": buyers, "month": rng.integers(0, 3, len(buyers)),
                                   "size": (age[buyers] + rng.integers(0, 2, len(buyers))) // 2})  # fmt: skip
    write_files(place / "products", {"code": products, "kind": products % 3}, files=1)
    write_files(place / "countries", {"country": countries, "north": countries % 2}, files=1)
    write_files(place / "ratings", {"id": pairs[:, 0], "code": pairs[:, 1]})
    sizes = {"persons": {"age": 4, "sex": 2}, "orders": {"month": 3, "size": 3}, "products": {"kind": 3},
             "countries": {"north": 2}}  # fmt: skip
    for name, own in sizes.items():
        write_toml(place / f"{name}.toml", coded(**own))


def shop_job(place: Path, amount: float = 6.0, **sections: Any) -> dict[str, Any]:
    """Return a job of two private and two public tables with three links."""
    pairs = [{"family": "marginal", "degree": 2}]
    private = {"mechanism": "identity", "workload": pairs}
    keys = {"persons": {"key": "id", **private}, "orders": private, "products": {"key": "code", "public": True},
            "countries": {"key": "country", "public": True}}  # fmt: skip
    return {
        "tables": {name: {"path": f"{name}/*.csv", "domain": f"{name}.toml", **own} for name, own in keys.items()},
        "link": [
            {"kind": "one-to-many", "parent": "persons", "child": "orders", "child_key": "person", "max_degree": 4},
            {"kind": "many-to-many", "name": "ratings", "parent": "persons", "child": "products",
             "via": "ratings/*.csv", "child_key": "code", "max_degree": 3},
            {"kind": "one-to-many", "name": "homes", "parent": "countries", "child": "persons", "child_key": "country"},
        ],
        "budget": {"method": "equal"},
        "privacy": {"privacy_cost": amount, "dataset": "golden", "ledger": "ledger.sqlite"},
        "engine": ENGINE,
        **sections,
    }  # fmt: skip


def release_shop(place: Path, **sections: Any) -> dp.Release:
    write_shop(place)
    return dp.run(write_toml(place / "job.toml", shop_job(place, **sections)), place / "run")


def release_tables(place: Path) -> dp.Release:
    """Release two tables with a link, a table of pairs and a public parent, with equal shares."""
    return release_shop(place)


def release_planned(place: Path) -> dp.Release:
    """Release tables whose shares follow from a first measurement, with degrees that are bounded privately."""
    links = shop_job(place)["link"]
    links[0]["max_degree"] = "private"
    return release_shop(place, link=links, budget={"method": "planned"})


def release_published(place: Path) -> dp.Release:
    """Release links by the published loop of selections and measurements."""
    links = [link | {"mechanism": "published", "rounds": 2, "marginals": 1} for link in shop_job(place)["link"]]
    return release_shop(place, link=links)


def release_joins(place: Path) -> dp.Release:
    """Release joins along two links, with rows beyond a bound, and a join for each parent."""
    parts = [
        {"family": "marginal", "name": "orders-of", "attributes": [["persons.sex", "orders.size"]],
         "max_rows_per_unit": 2},
        {"family": "marginal", "name": "rated", "attributes": [["persons.age", "products.kind"]]},
        {"family": "marginal", "name": "degrees", "attributes": [["persons.sex", "orders.count"]], "per": "persons"},
    ]  # fmt: skip
    return release_shop(place, workload=parts)


def table_job(place: Path, **sections: Any) -> Path:
    """Write a job of one table in files of CSV."""
    job = {"data": {"path": "data", "domain": "domain.toml"}, "workload": [{"family": "marginal", "degree": 2}],
           "privacy": {"privacy_cost": 0.7}, "mechanism": {"name": "identity"}, "engine": ENGINE}  # fmt: skip
    for name, section in sections.items():
        job[name] = {**job.get(name, {}), **section} if isinstance(section, dict) else section
    job["privacy"] |= {"dataset": "golden", "ledger": "ledger.sqlite"}
    return write_toml(place / "job.toml", job)


def write_table(place: Path, rows: int = 900) -> None:
    rng = np.random.default_rng(5)
    a, person = rng.integers(0, 4, rows), rng.integers(0, rows // 3, rows)
    write_files(place / "data", {"person": person, "a": a, "b": rng.integers(0, 2, rows) + a // 2,
                                 "c": rng.integers(0, 3, rows) * (a > 1), "d": rng.integers(0, 2, rows)})  # fmt: skip
    write_toml(place / "domain.toml", coded(a=4, b=3, c=3, d=2))


def release_units(place: Path) -> dp.Release:
    """Release numbers of rows and of distinct units, and the number of rows that the bound cuts."""
    write_table(place)
    workload = [{"family": "marginal", "degree": 1},
                {"family": "marginal", "attributes": [["a", "b"], []], "count": "units"}]  # fmt: skip
    data = {"privacy_unit": "person", "max_rows_per_unit": 2}
    return dp.run(table_job(place, workload=workload, data=data, budget={"cut": 0.1}), place / "run")


def release_refined(place: Path) -> dp.Release:
    """Refine a fixed plan twice."""
    write_table(place)
    first = dp.run(table_job(place, privacy={"privacy_cost": 0.3}), place / "run")
    second = dp.refine(first, 1.0, 1e-6, run_dir=place / "second")
    return dp.refine(second, 2.0, 1e-6, run_dir=place / "third")


def release_adaptive(place: Path) -> dp.Release:
    """Refine an adaptive plan."""
    write_table(place)
    job = table_job(place, mechanism={"name": "aim-grem"}, reconstruct={"errors": "none"})
    return dp.refine(dp.run(job, place / "run"), 1.0, 1e-6, run_dir=place / "second")


def write_months(place: Path, months: tuple[str, ...], rows: int = 300) -> None:
    rng = np.random.default_rng(7)
    for month in months:
        columns = {"a": rng.integers(0, 3, rows), "b": rng.integers(0, 4, rows), "c": rng.integers(0, 2, rows)}
        write_files(place / "data" / f"month={month}", columns)
    write_toml(place / "domain.toml", coded(a=3, b=4, c=2))


def release_periods(place: Path, **sections: Any) -> dp.Release:
    """Release three periods of a growing table, with answers of each, of all up to it, and of windows of two."""
    write_months(place, ("2020-01", "2020-02", "2020-03"))
    time = {"horizon": 4, "answers": ["period", "cumulative", "window"], "window": 2}
    job = table_job(place, data={"period": "month"}, time=time, **sections)
    return dp.run(job, place / "run")


def release_adaptive_periods(place: Path) -> dp.Release:
    """Release three periods with a structure that is chosen in the first one."""
    return release_periods(place, mechanism={"name": "aim-grem"}, reconstruct={"errors": "none"})


def write_searched(place: Path, rows: int = 1200) -> dict[str, Any]:
    """Write a table with cells of every kind that is searched, and return its domain."""
    rng = np.random.default_rng(9)
    cities, codes = np.array(["Bonn", "Ulm", "Trier", "Jena"]), np.array(["A1x", "A1y", "A2x", "B1x", "B1y", "B2x"])
    columns = {
        "person": np.arange(rows) // 2,
        "city": cities[np.minimum(rng.integers(0, 9, rows) // 3, 3)],
        "shop": cities[rng.integers(0, 2, rows)],
        "age": np.minimum(rng.integers(0, 30, rows), rng.integers(0, 30, rows)),
        "code": codes[np.minimum(rng.integers(0, 9, rows), rng.integers(0, 6, rows))],
        "sex": rng.integers(0, 2, rows),
        "pay": rng.integers(1, 40, rows) * rng.integers(1, 20, rows),
    }
    write_files(place / "data", columns)
    tree = {
        "code": codes,
        "block": np.array([code[:2] for code in codes]),
        "part": np.array([code[0] for code in codes]),
    }
    write_files(place / "codes", tree, files=1)
    attributes = {
        "city": {"kind": "discover", "max_length": 20},
        "shop": {"kind": "discover", "max_length": 20, "count": "units"},
        "age": {"kind": "bins", "edges": "private", "low": 0, "high": 31, "bins": 4},
        "code": {"kind": "discover", "file": "codes/0.csv", "leaf": "code", "levels": ["part", "block"]},
        "sex": {"kind": "coded", "size": 2},
    }
    return {"attributes": attributes, "numbers": {"pay": {"low": 0, "high": "private"}}}


def release_searches(place: Path) -> dp.Release:
    """Release counts and means after searches for values, votes, edges, codes and ends of numbers."""
    write_toml(place / "domain.toml", write_searched(place))
    workload = [{"family": "marginal", "attributes": [["city", "sex"], ["age"], ["code"], ["shop"]]},
                {"family": "mean", "of": "pay", "attributes": [["sex"]]}]  # fmt: skip
    job = table_job(place, workload=workload, data={"privacy_unit": "person", "max_rows_per_unit": 2},
                    privacy={"privacy_cost": 5.0}, budget={"discover": 0.4, "discover_delta": 1e-6})  # fmt: skip
    return dp.run(job, place / "run")


def release_counted_search(place: Path) -> dp.Release:
    """Release the counts of one column, which the search itself measures."""
    domain = write_searched(place)
    write_toml(place / "domain.toml", {"attributes": {"city": domain["attributes"]["city"]}})
    job = table_job(place, workload=[{"family": "marginal", "degree": 1}], budget={"discover_delta": 1e-6})
    return dp.run(job, place / "run")


def release_searched_tables(place: Path) -> dp.Release:
    """Release two tables with searches and distinct units under one charge."""
    write_shop(place)
    units = {"family": "marginal", "count": "units", "attributes": [["month"]]}
    job = shop_job(place, 8.0)
    job["tables"]["orders"]["workload"] = [{"family": "marginal", "degree": 1}, units]
    job["budget"]["tables"] = {"orders": {"discover": 0.3, "discover_delta": 1e-6, "units": 0.3},
                               "persons": {"discover": 0.2, "discover_delta": 1e-6}}  # fmt: skip
    write_toml(place / "orders.toml", {"attributes": {"month": {"kind": "coded", "size": 3},
                                                      "size": {"kind": "discover"}}})  # fmt: skip
    write_toml(
        place / "persons.toml", {"attributes": {"age": {"kind": "discover"}, "sex": {"kind": "coded", "size": 2}}}
    )
    return dp.run(write_toml(place / "job.toml", job), place / "run")


CASES: dict[str, Callable[[Path], dp.Release]] = {
    "tables": release_tables,
    "first-measurement": release_planned,
    "published-links": release_published,
    "joins": release_joins,
    "units": release_units,
    "refined": release_refined,
    "refined-adaptive": release_adaptive,
    "periods": release_periods,
    "adaptive-periods": release_adaptive_periods,
    "searches": release_searches,
    "counted-search": release_counted_search,
    "searched-tables": release_searched_tables,
}


def read_case(case: str) -> dict[str, Any]:
    return dict(json.loads((STORED / f"{case}.json").read_text()))


def run_case(case: str, place: Path) -> tuple[list[list[str]], dict[str, list[float]]]:
    """Return the streams of a case, and its figures by name."""
    with recorded_streams(case) as records:
        figures = read_figures(CASES[case](place))
    return records.lines, dict(sorted(figures.items()))


def read_figures(release: dp.Release) -> dict[str, list[float]]:
    """Return the estimated marginals of all sets that a release answers, by table, join, period and kind of answer."""
    if release.periods:
        kinds = ("period", "cumulative", "window")
        own = {f"{period}/{kind}": release.at(period, kind) for period in release.periods for kind in kinds}
    else:
        own = {**release.tables, **release.joins}
    found = {}
    for name, one in own.items():
        for names in one.plan.workload.sets:
            found[f"{name}:{'+'.join(names)}"] = one.marginal(names).reshape(-1).tolist()
    return found


def _store(cases: list[str]) -> None:
    STORED.mkdir(parents=True, exist_ok=True)
    for case in cases or CASES:
        with tempfile.TemporaryDirectory() as place:
            drawn, figures = run_case(case, Path(place))
        rounded = {name: [float(f"{value:.10g}") for value in values] for name, values in figures.items()}
        lines = ",\n".join(json.dumps(line) for line in drawn)
        text = f'{{"drawn": [\n{lines}\n],\n"figures": {json.dumps(rounded)}}}\n'
        (STORED / f"{case}.json").write_text(text)


if __name__ == "__main__":
    _store(sys.argv[1:])
