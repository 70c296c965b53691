"""Linked tables: links, chains and joins.

python benchmarks/linked_tables.py links    errors of sampled links, relative to random links between tables
python benchmarks/linked_tables.py joins    coverage of intervals, time and memory of joins
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest.mock import PropertyMock, patch

import base
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from base import DATA
from linked_data import DATABASES, PIPELINES, Job, make_database

from dpscale import job as dp_job
from dpscale.answers.number_statistics import mean_table
from dpscale.answers.tables import Answered
from dpscale.engine.counting import partition_groups, plan_passes, run_pass
from dpscale.engine.schedulers import Engine, resolve
from dpscale.measurement import MeasurementStore
from dpscale.measurement.measurement import measure_all
from dpscale.privacy.secret import SecretFile, make_secret, read_secret, secret_tag
from dpscale.runs.join_part import JoinedTable
from dpscale.runs.source import open_table, rows_beyond_bound
from dpscale.runs.stages.plan import make_plan
from tests.running import begin_linked

sys.path.insert(0, str(PIPELINES))

from databases import cells, released_job, sizes, variation

import dpscale as dp
from dpscale.base.numerics import one_thread
from dpscale.job.allocation import Divisible
from dpscale.job.neighbours import neighbour_relation
from dpscale.job.sdv import metadata
from dpscale.job.sections import LinkSection, LinkShare
from dpscale.runs.links.link_data import ExactLinks, read_links

DELTA, EPSILONS, APART = 1e-5, (0.5, 1.0, 2.0, 4.0), 1e-4
CHAIN_EPSILONS = (1.0, 4.0)
Figures = dict[str, tuple[float, float]]


class Measured:
    """Links of a database within the bounds of its job."""

    def __init__(self, content: Job) -> None:
        self.content = content
        self.job = dp_job.Job.parse(content | {"privacy": {"privacy_cost": 1.0, "dataset": "benchmark"}}, Path())
        self.links = read_all(self.job)

    def job_at(self, epsilon: float, seed: int, folder: str, method: str = "planned") -> dp_job.Job:
        privacy = {"epsilon": epsilon, "delta": DELTA, "ledger": f"{folder}/ledger.sqlite", "dataset": "benchmark"}
        engine = {"scheduler": "synchronous", "seed": seed}
        sections = {"privacy": privacy, "engine": engine, "budget": {"method": method}}
        return dp_job.Job.parse(self.content | sections, Path())

    def apart(self, epsilon: float, seed: int, folder: str) -> dp_job.Job:
        """Return a job whose tables have nearly all of the budget."""
        job = self.job_at(epsilon, seed, folder, "equal")
        links = [one.model_copy(update={"mechanism": "maxent"}) for one in job.link]
        shares = {one.called: LinkShare(share=APART) for one in job.link}
        budget = job.budget.model_copy(update={"links": shares})
        return job.model_copy(update={"link": links, "budget": budget})

    def figures(self, released: dict[str, ExactLinks], rng: np.random.Generator | None = None) -> Figures:
        """Return error and distance of degrees of every link, with random links if `rng` is given."""
        found, rows = {}, {}
        for link in self.job.link:
            true, made = self.links[link.called], released[link.called]
            own = rows[link.called] = made.rows if rng is None else _random(link, made, len(true.rows), rng)
            error = variation(cells(true, true.rows), cells(made, own), sizes(self.job, link))
            found[link.called] = error, _distance(true, true.rows, made, own)

        for one, two in two_steps(self.job):
            ends = [_joined(links[one.called], links[two.called], own[one.called], own[two.called])
                    for links, own in ((self.links, {name: made.rows for name, made in self.links.items()}),
                                       (released, rows))]  # fmt: skip
            of = sizes(self.job, one)[0], sizes(self.job, two)[1]
            found[f"{one.parent} to {two.child}"] = variation(*ends, of), 0.0
        return found


def two_steps(job: dp_job.Job) -> list[tuple[LinkSection, LinkSection]]:
    """Return the pairs of links from a table to the children of its children."""
    return [(one, two) for one in job.link for two in job.link
            if one.child == two.parent != one.parent and not one.via and not two.via]  # fmt: skip


def _joined(one: ExactLinks, two: ExactLinks, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows at both ends of two links, of the children that have both."""
    above = np.full(len(one.children), -1)
    above[first[:, 1]] = first[:, 0]
    ends = np.c_[above[second[:, 0]], second[:, 1]]
    ends = ends[ends[:, 0] >= 0]
    return one.parents[ends[:, 0]], two.children[ends[:, 1]]


def read_all(job: dp_job.Job) -> dict[str, ExactLinks]:
    engine = resolve(scheduler="synchronous")
    try:
        return {link.called: read_links(engine, job, link, neighbour_relation(job)) for link in job.link}
    finally:
        engine.close()


def _random(link: LinkSection, made: ExactLinks, count: int, rng: np.random.Generator) -> np.ndarray:
    children = np.arange(len(made.children)) if link.via is None else rng.integers(0, max(len(made.children), 1), count)
    return np.stack([rng.integers(0, max(len(made.parents), 1), len(children)), children], axis=1)


def _distance(true: ExactLinks, links: np.ndarray, made: ExactLinks, rows: np.ndarray) -> float:
    """Return the Kolmogorov distance of the degrees of parents."""
    shares = [np.bincount(np.bincount(own[:, 0], minlength=len(one.parents))) / max(len(one.parents), 1)
              for one, own in ((true, links), (made, rows))]  # fmt: skip
    most = max(map(len, shares))
    first, second = (np.cumsum(np.pad(own, (0, most - len(own)))) for own in shares)
    return float(np.abs(first - second).max())


def release(job: dp_job.Job, folder: str) -> dict[str, ExactLinks]:
    """Run a job and return the links of the released tables."""
    return read_all(released_job(job, dp.run(job.to_dict(), f"{folder}/run")))


def hma(measured: Measured, python: str, seconds: int) -> Figures | str:
    """Return the figures of SDV's HMA on the data, or why there are none."""
    import dask.dataframe

    with tempfile.TemporaryDirectory() as folder:
        place, job = Path(folder), measured.job
        sources = {name: one.path for name, one in job.tables.items()}
        sources |= {link.called: link.via for link in job.link if link.via}
        for name, source in sources.items():
            dask.dataframe.read_parquet(source).compute().to_parquet(place / f"{name}.parquet")
        (place / "metadata.json").write_text(json.dumps(metadata(job)))
        try:
            script = str(base.ROOT / "benchmarks" / "rivals" / "hma_rows.py")
            done = subprocess.run([python, script, folder], capture_output=True, text=True,
                                  timeout=seconds, env=os.environ | {"PYTHONPATH": ""})  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"not finished in {seconds} s"
        if done.returncode:
            return next((line for line in done.stderr.splitlines() if "Error: " in line), "failed")
        tables = {name: one.model_copy(update={"path": str(place / "hma" / f"{name}.parquet")})
                  for name, one in job.tables.items()}  # fmt: skip
        dropped = {"nulls": "drop", "dangling": "drop"}
        files = {
            one.called: {"via": str(place / "hma" / f"{one.called}.parquet")} if one.via else {} for one in job.link
        }
        links = [one.model_copy(update=dropped | files[one.called]) for one in job.link]
        try:
            return measured.figures(read_all(job.model_copy(update={"tables": tables, "link": links})))
        except dp.DpscaleError as error:
            return str(error)


def trials(measured: Measured, epsilon: float, seeds: int, also: Sequence[str] = ()) -> Iterator[dict[str, Figures]]:
    """Yield the figures of each seed by kind of release."""
    for seed in range(seeds):
        found = {}
        for kind in ("ours", "random", *also):
            with tempfile.TemporaryDirectory() as folder:
                if kind == "random":
                    links = release(measured.apart(epsilon, seed, folder), folder)
                    found[kind] = measured.figures(links, np.random.default_rng(seed))
                elif kind == "links":
                    with patch.object(Divisible, "chains", new_callable=PropertyMock, return_value={}):
                        found[kind] = measured.figures(release(measured.job_at(epsilon, seed, folder), folder))
                else:
                    method = "equal" if kind == "equal" else "planned"
                    found[kind] = measured.figures(release(measured.job_at(epsilon, seed, folder, method), folder))
        yield found


def summary(found: Sequence[dict[str, Figures]], kind: str) -> dict[str, Any]:
    """Return the mean errors and ratios of every link, their geometric mean, and the excess of degree distances."""
    names = list(found[0]["random"])
    links = [name for name in names if " to " not in name]  # names of links have no spaces
    mean = {one: {link: np.mean([seed[one][link] for seed in found], axis=0) for link in links}
            for one in (kind, "random")}  # fmt: skip
    chains = {name: float(np.mean([seed[kind][name][0] for seed in found]) / np.mean(
        [seed["random"][name][0] for seed in found])) for name in names if name not in links}  # fmt: skip
    ratios = {link: float(mean[kind][link][0] / mean["random"][link][0]) for link in links}
    excess = {link: float(mean[kind][link][1] - mean["random"][link][1]) for link in links}
    errors = {link: float(mean[kind][link][0]) for link in links}
    return {"ratios": ratios, "geometric": float(np.exp(np.mean(np.log(list(ratios.values()))))),
            "excess": max(excess.values()), "chains": chains, "errors": errors}  # fmt: skip


def print_chains(seeds: int, database: str, epsilons: Sequence[float]) -> dict[str, float]:
    """Print and return the errors of links and of both links in a chain, and the seeds above random links."""
    found, kinds = {}, ("ours", "links", "random")
    with tempfile.TemporaryDirectory() as folder:
        measured = Measured(make_database(database, Path(folder)))
        for epsilon in epsilons:
            runs = list(trials(measured, epsilon, seeds, ("links",)))
            for kind in ("ours", "links"):
                one = summary(runs, kind)
                print(
                    f"{database}, ε = {epsilon:g}, {kind}: geometric mean over links {one['geometric']:.3f} of random, "
                    + ", ".join(f"{name} {ratio:.3f}" for name, ratio in one["chains"].items()),
                    flush=True,
                )
            for link in runs[0]["random"]:
                errors = {kind: [run[kind][link][0] for run in runs] for kind in kinds}
                found |= {f"{link}, {kind}, {epsilon:g}": float(np.mean(own)) for kind, own in errors.items()}
                print(f"{link}, ε = {epsilon:g}: " + ", ".join(
                    f"{kind} {np.mean(own):.4f} ({' '.join(f'{one:.4f}' for one in own)})"
                    for kind, own in errors.items()), flush=True)  # fmt: skip
    return found


def print_links() -> None:
    """Whole linked databases: the error of linked rows, beside random links between tables that are released apart.

    For every database, ε (δ = 1e-5) and seed, dpscale releases all tables and links from one job without shares, and
    the tables alone with equal shares of the same budget, whose rows are then linked at random: every child to a
    parent, or as many pairs as there are. Errors are mean total variations over all marginals of two attributes of one
    end of a link and one of the other, against the links within the bounds of the job, as a ratio; distances of degrees
    are Kolmogorov's. The same job with equal shares of tables and links is `equal`, which was the division of versions
    before this one.

        python benchmarks/linked_tables.py links [--data 100K 1M berka chinook generated] [--epsilons 0.5 1 2 4]
            [--seeds 5]
            [--equal]       also with equal shares
            [--chains]      rentals at ε = 1 and 4, also with shares that ignore chains of two links; with --save no
                            others
            [--chained chinook]  this database instead, at the given --epsilons
            [--save]        save the figures of --chains in results/
            [--hma PYTHON]  also SDV's HMA, which is not private, once, with an interpreter that has SDV (`hma_rows.py`)
    """
    parser = base.command_parser(print_links.__doc__)
    parser.add_argument("--data", nargs="*", default=list(DATABASES), choices=DATABASES)
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--equal", action="store_true", help="also with equal shares")
    parser.add_argument("--chains", action="store_true", help="generated rentals alone")
    parser.add_argument("--chained", default="rentals", help="database of --chains")
    parser.add_argument("--save", action="store_true", help="save the figures of --chains")
    parser.add_argument("--hma", help="an interpreter that has SDV")
    parser.add_argument("--hma-seconds", type=int, default=1800)
    arguments = parser.parse_args()
    if arguments.save and arguments.chained != "rentals":
        parser.error("--save is of the rentals")
    if arguments.chains:
        with one_thread():
            own = arguments.chained != "rentals"
            found = print_chains(arguments.seeds, arguments.chained, arguments.epsilons if own else CHAIN_EPSILONS)
        if arguments.save:
            base.save("linked_chains", found)
        return
    if not DATA.exists():
        raise SystemExit(f"{DATA} is not there: real data does not travel with dpscale")
    with one_thread():
        for name in arguments.data:
            with tempfile.TemporaryDirectory() as folder:
                measured = Measured(make_database(name, Path(folder)))
                if arguments.hma:
                    start, found = time.perf_counter(), hma(measured, arguments.hma, arguments.hma_seconds)
                    errors = (
                        found
                        if isinstance(found, str)
                        else ", ".join(
                            f"{link} {error:.3f} (degrees {distance:.3f})" for link, (error, distance) in found.items()
                        )
                    )
                    print(f"{name}, HMA, not private: {errors} ({time.perf_counter() - start:.0f} s)", flush=True)
                for epsilon in arguments.epsilons:
                    start = time.perf_counter()
                    found = list(trials(measured, epsilon, arguments.seeds, ["equal"] if arguments.equal else []))
                    for kind in ("ours", *(["equal"] if arguments.equal else [])):
                        one = summary(found, kind)
                        each = ", ".join(f"{link} {one['errors'][link]:.3f} ({ratio:.2f})"
                                         for link, ratio in one["ratios"].items())  # fmt: skip
                        each += "".join(f", {chain} ({ratio:.2f})" for chain, ratio in one["chains"].items())
                        print(f"{name}, ε = {epsilon:g}, {kind}: geometric mean {one['geometric']:.3f}, largest "
                              f"{max(one['ratios'].values()):.3f}, degrees beyond random {one['excess']:+.3f}: {each} "
                              f"({time.perf_counter() - start:.0f} s)", flush=True)  # fmt: skip


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
    return dict(begin_linked(dp_job.Job.read(folder / "job.toml"), folder / "run").joins)


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
    run = begin_linked(dp_job.Job.read(folder / "job.toml"), Path(tempfile.mkdtemp()) / "run")
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
            subprocess.run([sys.executable, __file__, "joins", "--count", place, memory, str(int(joined))], check=True)


def print_joins() -> None:
    """Answers over joins: coverage of 95 % intervals, means of children per parent, and the time and memory of a join.

    For MovieLens and Berka it plans joins at epsilon 1, counts them once, and draws the noise of the plan for 100
    seeds, as the measure stage does, each with its own noise key. It prints the share of 95 % intervals that cover the
    answer of the join after its bounds, over 200 random cells, prefixes and ranges, and over means of children per
    parent. The last part counts a join of generated tables under several memory settings, beside the child table alone.

        python benchmarks/linked_tables.py joins [--movielens ml-100k] [--berka berka] [--seeds 100] [--queries 200]
            [--rows 4e6]

    Without a folder of MovieLens or Berka its part is left out. `pipelines/README.md` names the sources.
    """
    parser = base.command_parser(print_joins.__doc__)
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


COMMANDS = {
    "links": print_links,
    "joins": print_joins,
}

if __name__ == "__main__":
    base.run_command(COMMANDS, __doc__)
