"""Answers over joins: coverage of 95 % intervals, means of children per parent, and the time and memory of a join.

For MovieLens and Berka it plans joins at epsilon 1, counts them once, and draws the noise of the plan for 100 seeds, as
the measure stage does, each with its own noise key. It prints the share of 95 % intervals that cover the answer of the
join after its bounds, over 200 random cells, prefixes and ranges, and over means of children per parent. The last part
counts a join of generated tables under several memory settings, beside the child table alone.

    python benchmarks/joins.py [--movielens ml-100k] [--berka berka] [--seeds 100] [--queries 200] [--rows 4e6]

Without a folder of MovieLens or Berka its part is left out. `pipelines/README.md` names the sources.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w

from dpscale.answers.number_statistics import mean_table
from dpscale.answers.tables import Answered
from dpscale.engine.counting import partition_groups, plan_passes, run_pass
from dpscale.engine.schedulers import Engine, resolve
from dpscale.job import Job
from dpscale.measurement import MeasurementStore
from dpscale.measurement.measurement import measure_all
from dpscale.privacy.secret import SecretFile, make_secret, read_secret, secret_tag
from dpscale.runs.join_part import JoinedTable
from dpscale.runs.source import open_table, rows_beyond_bound
from dpscale.runs.stages.plan import make_plan
from tests.running import begin_linked

PIPELINES = Path(__file__).parents[1] / "pipelines"
WIDTH = 1.959963984540054
JOBS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "movielens": ("ratings", [
        {"attributes": [["users.sex", "users.age", "ratings.stars"], ["users.occupation", "movies.drama"],
                        ["users.age", "movies.year"], ["ratings.stars", "movies.comedy", "users.sex"]]},
        {"per": "users", "attributes": [["users.age", "ratings.count"], ["users.sex"], ["users.occupation"]]},
        {"family": "mean", "of": "ratings.count", "per": "users", "attributes": [["users.age"], ["users.sex"],
                                                                              ["users.occupation"]]},
    ]),
    "berka": ("job", [
        {"attributes": [["accounts.frequency", "orders.bank"], ["accounts.year", "orders.symbol", "orders.amount"]]},
        {"attributes": [["districts.region", "transactions.type"], ["accounts.frequency", "transactions.operation"]],
         "through": ["transactions", "branches"]},
        {"per": "accounts", "attributes": [["accounts.frequency", "orders.count"], ["accounts.year"]]},
        {"family": "mean", "of": "orders.count", "per": "accounts", "attributes": [["accounts.frequency"],
                                                                                ["accounts.year"]]},
    ]),
}  # fmt: skip


def joins_of(name: str, source: Path, folder: Path) -> dict[str, JoinedTable]:
    """Write the tables of a pipeline, and return the planned joins of its job at epsilon 1."""
    sys.path.insert(0, str(PIPELINES))
    pipeline, databases = __import__(name), __import__("databases")
    databases.write(folder, pipeline.prepare(source))
    file, parts = JOBS[name]
    content = tomllib.loads((PIPELINES / name / f"{file}.toml").read_text())
    for table, section in content["tables"].items():
        section |= {"path": str(folder / "data" / f"{table}.parquet"),
                    "domain": str(PIPELINES / name / section["domain"])}  # fmt: skip
    content["privacy"] = {"epsilon": 1.0, "delta": 1e-6, "ledger": str(folder / "ledger.sqlite"), "dataset": name}
    content["workload"] = [{"family": "marginal", **part} for part in parts]
    (folder / "job.toml").write_text(tomli_w.dumps(content))
    return dict(begin_linked(Job.read(folder / "job.toml"), folder / "run").joins)


def exact_marginals(run: JoinedTable, engine: Engine, memory: int) -> dict[tuple[str, ...], Any]:
    """Return the exact marginals of the sets that the plan of a join counts."""
    names = list(run.domain.axis_names)
    table = open_table(run, names, engine)
    groups = partition_groups(table.partitions, engine.workers)
    dropped = rows_beyond_bound(run, engine, table, groups, names)
    found = {}
    for one in plan_passes(run.domain, run.measurement_plan.counted_sets, memory, engine.workers):
        handles = run_pass(engine, one, groups, names, dropped)
        for layout, flat in zip(one.shards, handles, strict=True):
            found |= {own.attributes: own for own in layout.marginals(np.asarray(flat, np.int64))}
    return found


def plan_join(run: JoinedTable, engine: Engine) -> None:
    run.write_plan(make_plan(run.job, run.planning_problem, engine))


def draw(run: JoinedTable, exact: dict[tuple[str, ...], Any], seed: int, folder: Path) -> Any:
    """Return the estimates of one release with the noise of a seed."""
    folder.mkdir(parents=True)
    make_secret(folder / "secret.key", seed)
    place = SecretFile(folder / "secret.key", secret_tag(read_secret(folder / "secret.key")))
    store = MeasurementStore(folder, f"seed{seed}", "benchmark", run.measurement_plan,
                             run.planning_problem.rows_per_unit, place.read)  # fmt: skip
    measure_all(exact.__getitem__, store.missing(run.measurement_plan.first_decision()), place)
    return run.job.reconstruction.estimates(store.evidence(), run.job.estimating, None)


def queries_of(run: JoinedTable, count: int, rng: np.random.Generator) -> Iterator[tuple[tuple[str, ...], np.ndarray]]:
    """Yield random cells, prefixes and ranges over random sets without numbers."""
    sets = [own for own in run.workload.sets
            if not set(own) & set(run.domain.number_names) and not own[-1].endswith(".cut")]  # fmt: skip
    for number in range(count if sets else 0):
        names = sets[rng.integers(len(sets))]
        query = np.ones(())
        for size in run.domain.shape(names):
            low, high = sorted(rng.integers(0, size, 2))
            low, high = ((low, low), (0, high), (low, high))[number % 3]
            query = np.multiply.outer(query, ((np.arange(size) >= low) & (np.arange(size) <= high)).astype(float))
        yield names, query


def print_coverage(name: str, source: Path, seeds: int, count: int) -> None:
    """Print the coverage of the intervals of every join of a database."""
    engine, rng = resolve(scheduler="threads"), np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as place:
        for join, run in joins_of(name, source, Path(place)).items():
            plan_join(run, engine)
            exact = exact_marginals(run, engine, 1 << 30)
            queries = list(queries_of(run, count, rng))
            inside, means, widths = 0, [0, 0], []
            for seed in range(seeds):
                estimates = draw(run, exact, seed, Path(place) / f"{join}-{seed}")
                for names, query in queries:
                    estimate, error = estimates.answer(names, query)
                    true = float((query * exact_of(exact, names)).sum())
                    inside += abs(estimate - true) <= WIDTH * error
                    widths.append(error)
                means = [sum(own) for own in zip(means, mean_coverage(run, estimates, exact), strict=True)]
            rows = exact_of(exact, run.domain.names[:1]).sum()
            told = f"{name} {join}: {rows:,.0f} rows, rows per unit {run.planning_problem.rows_per_unit}"
            if queries:
                share, error = 100 * inside / (seeds * len(queries)), np.mean(widths)
                told += f"; {share:.2f} % of {len(queries)} x {seeds} intervals cover, standard error {error:.1f}"
            print(told + (f"; means {100 * means[0] / means[1]:.2f} % of {means[1]}" if means[1] else ""), flush=True)


def exact_of(exact: dict[tuple[str, ...], Any], names: tuple[str, ...]) -> np.ndarray:
    """Return the exact marginal of a set in records from that of the smallest counted set with its attributes."""
    own = min((one for one in exact if set(names) <= set(one)), key=lambda one: exact[one].counts.size)
    counts = exact[own].counts / exact[own].denominator
    found = counts.sum(axis=tuple(axis for axis, name in enumerate(own) if name not in names))
    kept = [name for name in own if name in names]
    return found.transpose([kept.index(name) for name in names])


def mean_coverage(run: JoinedTable, estimates: Any, exact: dict[tuple[str, ...], Any]) -> tuple[int, int]:
    """Return how many intervals of the means of children per parent cover, and their number."""
    inside = total = 0
    for number in run.domain.number_names:
        values = run.domain[number].cell_values  # type: ignore[attr-defined]
        for own in {names for names in run.workload.sets if number in names and len(names) > 1}:
            by = [name for name in own if name != number]
            table = exact_of(exact, (*by, number))
            found = mean_table(Answered(estimates, "benchmark"), number, by, 0.95).to_pandas()
            rows = table.sum(axis=-1).reshape(-1)
            true = np.divide(table @ values, table.sum(axis=-1), out=np.zeros(table.shape[:-1]),
                             where=table.sum(axis=-1) > 0).reshape(-1)  # fmt: skip
            seen = (rows > 0) & found.low.notna().to_numpy()
            inside += int(((found.low <= true) & (true <= found.high))[seen].sum())
            total += int(seen.sum())
    return inside, total


def write_generated(folder: Path, rows: int) -> None:
    """Write parents and children, ten for each parent on average, in eight files."""
    rng, parents = np.random.default_rng(0), rows // 10
    own = {"a": rng.integers(0, 8, parents).astype(np.int8), "b": rng.integers(0, 12, parents).astype(np.int8)}
    pq.write_table(pa.table({"id": rng.permutation(parents), **own}), folder / "parents.parquet")
    for number in range(8):
        count = rows // 8
        table = pa.table({"parent": rng.integers(0, parents, count), "c": rng.integers(0, 6, count).astype(np.int8),
                          "d": rng.integers(0, 20, count).astype(np.int8)})  # fmt: skip
        pq.write_table(table, folder / f"children-{number}.parquet", row_group_size=1 << 18)
    sizes = {"parents": {"a": 8, "b": 12}, "children": {"c": 6, "d": 20}}
    for name, own in sizes.items():
        domain = {"attributes": {one: {"kind": "coded", "size": size} for one, size in own.items()}}
        (folder / f"{name}.toml").write_text(tomli_w.dumps(domain))


def count_generated(folder: Path, memory: str, joined: bool) -> None:
    """Count a join of the generated tables, or the children alone, and print seconds and peak memory."""
    job = {
        "tables": {"parents": {"path": "parents.parquet", "domain": "parents.toml", "key": "id"},
                   "children": {"path": "children-*.parquet", "domain": "children.toml"}},
        "link": [{"kind": "one-to-many", "parent": "parents", "child": "children", "child_key": "parent",
                  "max_degree": 20}],
        "workload": [{"family": "marginal", "attributes": [["parents.a", "parents.b", "children.c"],
                                                           ["parents.a", "children.d"]]}],
        "privacy": {"epsilon": 1.0, "delta": 1e-6, "ledger": "ledger.sqlite", "dataset": "generated"},
        "engine": {"memory": memory, "scheduler": "threads"},
    }  # fmt: skip
    (folder / "job.toml").write_text(tomli_w.dumps(job))
    run = begin_linked(Job.read(folder / "job.toml"), Path(tempfile.mkdtemp()) / "run")
    engine = resolve(scheduler="threads")
    measured = run.joins["children-parents"] if joined else run.tables["children"]
    names = list(measured.domain.axis_names)
    before, start = resource.getrusage(resource.RUSAGE_SELF), perf_counter()
    table = open_table(measured, names, engine)
    groups = partition_groups(table.partitions, engine.workers)
    dropped = rows_beyond_bound(measured, engine, table, groups, names)
    sets = list(measured.workload.sets) if joined else [("c", "d")]
    counted = [run_pass(engine, one, groups, names, dropped)
               for one in plan_passes(measured.domain, sets, measured.job.engine.bytes, engine.workers)]  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_SELF)
    rows = sum(int(np.asarray(flat).sum()) for handles in counted for flat in handles[:1])
    parts = len({getattr(one, "part", ()) for one in table.partitions})
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    what = "join" if joined else "children alone"
    print(f"{what}, memory {memory}: {perf_counter() - start:.1f} s, {cpu:.1f} CPU s, "
          f"peak {after.ru_maxrss / 1024:.0f} MiB ({before.ru_maxrss / 1024:.0f} before), {parts} parts of keys, "
          f"checksum {rows}", flush=True)  # fmt: skip


def print_times(rows: int) -> None:
    """Print times and memory; every measurement has a process of its own."""
    with tempfile.TemporaryDirectory() as place:
        write_generated(Path(place), rows)
        for memory, joined in (("4GiB", False), ("4GiB", True), ("256MiB", True), ("64MiB", True)):
            subprocess.run([sys.executable, __file__, "--count", place, memory, str(int(joined))], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in JOBS:
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--rows", type=float, default=4e6)
    parser.add_argument("--count", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.count:
        count_generated(Path(given.count[0]), given.count[1], given.count[2] == "1")
        return
    for name in JOBS:
        if (source := getattr(given, name)) is not None:
            print_coverage(name, source, given.seeds, given.queries)
    if given.rows:
        print_times(int(given.rows))


if __name__ == "__main__":
    main()
