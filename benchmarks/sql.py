"""SELECT statements, and counts in databases.

python benchmarks/sql.py statements    error of one plan for a file of statements
python benchmarks/sql.py databases     counts of rows in a database beside the same rows in Parquet
"""

from __future__ import annotations

import itertools
import math
import sqlite3
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import base
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import dpscale as dp
from dpscale.counting.count import Layout, count
from dpscale.counting.grouped import count_groups
from dpscale.domain import Domain
from dpscale.privacy import gdp_mu
from dpscale.records.table import Table
from dpscale.workload import Workload
from dpscale.workload.sql.statements import Statement, read_statements

PIPELINES = base.ROOT / "pipelines"
GOALS = {"mixed": 0.75, "nested": 0.6, "hospital": 0.6}
BEST, GAP = 0.9, 1.005
EPSILON, DELTA = 1.0, 1e-9
COUNTED = ("visits", "plans", "health")  # plain counts, which OpenDP's front end answers


def files() -> Iterator[tuple[str, str, Domain]]:
    """Yield the name, text and domain of each file."""
    texts = {name: (PIPELINES / "sql" / f"{name}.sql").read_text() for name in GOALS}
    rand = Domain.read(Path(dp.__file__).parent / "cli" / "demo" / "domain.toml")
    yield "mixed", texts["mixed"], rand
    yield "nested", texts["nested"], rand
    folder = PIPELINES / "hospital"
    tables = {name: Domain.read(folder / f"{name}.domain.toml") for name in ("patients", "encounters")}
    joined = {f"{name}.{one.name}": one.describe() for name, own in tables.items() for one in own.attributes}
    yield "hospital", texts["hospital"], Domain.from_dict({"attributes": joined})


def error_of(statements: list[Statement], domain: Domain) -> tuple[float, float]:
    """Return Σ weight · variance of a plan at unit cost, and its certified gap."""
    workload = Workload(domain)
    for one in statements:
        workload.add_sql(f"-- name: {one.name}\n{one.text}")
    plan = dp.plan(workload)
    return plan.rmse() ** 2 * workload.query_count, plan.optimality_gap


def compared(text: str, domain: Domain) -> dict[str, float]:
    """Return the figures of a file."""
    statements = read_statements(text)
    together, gap = error_of(statements, domain)
    single = [error_of([one], domain)[0] for one in statements]
    equal, best = len(single) * math.fsum(single), math.fsum(map(math.sqrt, single)) ** 2
    asked, charged = session_error(statements, domain)
    return {"statements": len(single), "equal": math.sqrt(together / equal), "best split": math.sqrt(together / best),
            "gap": 1 + gap, "session": math.sqrt(asked / equal), "charged": charged / len(single)}  # fmt: skip


def session_error(statements: list[Statement], domain: Domain) -> tuple[float, float]:
    """Return the error of a session at unit cost, and its cost if every statement alone costs 1.

    A plan of error E with shares s has Σ c / s with c = s² E. A session measures residual t until it has the largest
    share of all statements.
    """
    plans = [dp.plan(Workload(domain).add_sql(f"-- name: {one.name}\n{one.text}"), "residual-planner")
             for one in statements]  # fmt: skip
    shares = [dict(zip(plan.blocks.sets, plan.blocks.share.tolist(), strict=True)) for plan in plans]
    known: dict[Any, float] = {}
    for one in shares:
        for names, share in one.items():
            known[names] = max(share, known.get(names, 0.0))
    cost = math.fsum(known.values())
    errors = (share**2 * plan.error / known[names] for plan, one in zip(plans, shares, strict=True)
              for names, share in one.items())  # fmt: skip
    return math.fsum(errors) * cost, cost


def against_opendp(text: str, domain: Domain) -> dict[str, float]:
    """Return the error of plain counts by OpenDP over that in the plan of all mixed statements."""
    statements = read_statements(text)
    workload = Workload(domain).add_sql(text)
    plan, cost, found = dp.plan(workload), gdp_mu(EPSILON, DELTA) ** 2, {}
    deviations = opendp_deviations(domain, len(statements))
    for name in COUNTED:
        parts = [part for part in workload.parts if part.name == name]
        total = math.fsum(float(plan.accuracy.part_variances(part, own).sum()) for part in parts for own in part.sets)
        count = sum(sum(part.counts) for part in parts)
        found[name] = deviations[name] / math.sqrt(total / count / cost)
    return found


def opendp_deviations(domain: Domain, parts: int) -> dict[str, float]:
    """Return the standard deviation of each count of OpenDP's Context API on polars, of an equal part of the budget."""
    import opendp.prelude as odp
    import polars as pl

    odp.enable_features("contrib")
    names = sorted({name for names in KEYS.values() for name in names})
    frame = pl.LazyFrame({name: [0] for name in names}, schema=dict.fromkeys(names, pl.Int32))
    context = odp.Context.compositor(
        data=frame, privacy_unit=odp.unit_of(contributions=1), privacy_loss=odp.loss_of(epsilon=EPSILON, delta=DELTA),
        split_evenly_over=parts, margins=[odp.polars.Margin(max_length=100_000)],
    )  # fmt: skip
    found = {}
    for name in COUNTED:
        keys = pl.LazyFrame(_grid(domain, KEYS[name]))
        query = context.query().group_by(KEYS[name]).agg(odp.len()).with_keys(keys)
        summary = query.summarize()
        scale, kind = float(summary["scale"][0]), str(summary["distribution"][0])
        found[name] = scale * (math.sqrt(2) if "Laplace" in kind else 1.0)
    return found


KEYS = {"visits": ["mdvis"], "plans": ["lncoins", "idp"], "health": ["hlthg", "hlthf", "hlthp"]}


def _grid(domain: Domain, names: list[str]) -> dict[str, Any]:
    import numpy as np

    cells = np.indices(domain.shape(domain.ordered(names))).reshape(len(names), -1)
    return {name: cells[domain.ordered(names).index(name)].astype(np.int32) for name in names}


def print_statements() -> None:
    """Files of SELECT statements: planned together, beside the same statements with a budget of their own.

        python benchmarks/sql.py statements [--save] [--opendp]

    The error of a plan is the root of Σ weight · variance over all answers at one budget; a mean has the weights of its
    sum and its number of records (`dpscale.workload.sql.aggregates`). Printed for each file:

        equal        error of one plan over that of plans of single statements, each with an equal part of the budget
        best split   the same, with the parts of the budget that have the least total error
        gap          certified squared error above the optimum of the workload
        session      the same as equal for `dp.Session`, where the statements are asked in turn, each at what it would
                     cost alone, and known residuals are not measured again
        charged      part of the sum of these costs that the session is charged
        opendp       with --opendp: error of the counts of statements that OpenDP's polars front end answers, each with
                     an equal part of the same budget, over that of the same counts in one plan of all statements

    "mixed" and "nested" are on the RAND sample of the demo, "hospital" on the join of two tables of pipelines/hospital.
    The statements are those of pipelines/sql, and were written before they were planned.
    """
    parser = base.command_parser(print_statements.__doc__)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--opendp", action="store_true")
    given = parser.parse_args()
    figures: dict[str, float] = {}
    for name, text, domain in files():
        found = compared(text, domain)
        figures |= {f"{name} {key}": value for key, value in found.items()}
        equal = f"equal {found['equal']:.3f} (goal {GOALS[name]}), best split {found['best split']:.3f} (goal {BEST})"
        print(
            f"{name:<9} {found['statements']:.0f} statements: {equal}, gap {found['gap']:.5f} (goal {GAP}),"
            f" session {found['session']:.3f} at {found['charged']:.3f} of the cost",
            flush=True,
        )
    if given.opendp:
        for name, ratio in against_opendp(*next(files())[1:]).items():
            figures[f"opendp {name}"] = ratio
            print(f"opendp    {name}: {ratio:.3f} times the error of the plan")
    if given.save:
        base.save("sql", figures)


NAMES = [*(f"a{k}" for k in range(6)), "s"]
DOMAIN = dp.Domain(**dict.fromkeys(NAMES[:6], 10), s=["x", "y", "z"])
LAYOUTS = {degree: Layout(DOMAIN, tuple(itertools.combinations(NAMES, degree))) for degree in (1, 2, 3)}
TURNS = 3


def make_rows(rows: int) -> pa.Table:
    random = np.random.default_rng(0)
    numbers = {name: pa.array(random.integers(0, 10, rows).astype(np.int32)) for name in NAMES[:6]}
    return pa.table(numbers | {"s": pa.array(random.choice(["x", "y", "z"], rows))})


def fill(place: Path, rows: pa.Table, postgres: str | None) -> dict[str, str]:
    """Write the rows into each database and return the addresses."""
    import duckdb

    with duckdb.connect(str(place / "t.duckdb")) as db:
        db.execute("CREATE TABLE t AS SELECT * FROM rows")
    columns = ", ".join(f"{name} INTEGER" for name in NAMES[:6])
    with sqlite3.connect(place / "t.sqlite") as lite:
        lite.execute(f"CREATE TABLE t({columns}, s TEXT)")
        values = zip(*(rows[name].to_pylist() for name in NAMES), strict=True)
        lite.executemany("INSERT INTO t VALUES (?, ?, ?, ?, ?, ?, ?)", values)
    lite.close()
    addresses = {name: f"{name.lower()}:///{place / f't.{name.lower()}'}?table=t" for name in ("DuckDB", "SQLite")}
    if postgres:
        from adbc_driver_postgresql.dbapi import connect

        with connect(postgres) as opened, opened.cursor() as cursor:
            cursor.adbc_ingest("t", rows, mode="create")
            opened.commit()
        addresses["PostgreSQL"] = f"{postgres}?table=t"
    return addresses


def print_databases() -> None:
    """Counts of rows in a database: read in ranges, or counted by the database, beside the same rows in Parquet.

        python benchmarks/sql.py databases [--rows 200000] [--postgres ADDRESS] [--save]

    The table has six columns of ten whole numbers and a column of three texts. Printed for all sets of 1, 2 and 3
    columns, as ratios to the wall time of the same counts from Parquet in the same run on a single worker, the best of
    three turns:

        rows    rows are read, and counted by dpscale
        groups  the database counts (`count_in_database`)

    `--postgres` names an empty database that may be written to, with the password in PGPASSWORD.
    """
    parser = base.command_parser(print_databases.__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--postgres", metavar="ADDRESS")
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()

    figures: dict[str, float] = {"rows": given.rows}
    with tempfile.TemporaryDirectory() as folder:
        rows = make_rows(given.rows)
        pq.write_table(rows, Path(folder) / "t.parquet")
        file = Table.open(str(Path(folder) / "t.parquet"), DOMAIN).split()
        for name, address in fill(Path(folder), rows, given.postgres).items():
            table = Table.open(address, DOMAIN)
            for degree, layout in LAYOUTS.items():
                ways = {
                    "file": partial(count, layout, file.partitions),
                    "rows": partial(count, layout, table.partitions),
                    "groups": partial(count_groups, [layout], table.partitions),
                }
                if any((way() != ways["file"]()).any() for way in ways.values()):
                    raise SystemExit(f"the counts of {name} differ from those of Parquet")
                least = {what: min(base.time_call(way) for _ in range(TURNS)) for what, way in ways.items()}
                more = {what: least[what] / least["file"] for what in ("rows", "groups")}
                figures |= {f"{name} {degree} {what}": ratio for what, ratio in more.items()}
                print(f"{name:<10} {degree}-way, {len(layout.sets)} sets: rows {more['rows']:.1f} times Parquet,"
                      f" groups {more['groups']:.1f} times", flush=True)  # fmt: skip

    if given.save:
        base.save("databases", figures)


COMMANDS = {
    "statements": print_statements,
    "databases": print_databases,
}

if __name__ == "__main__":
    base.run_command(COMMANDS, __doc__)
