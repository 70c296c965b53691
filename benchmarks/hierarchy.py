"""Trees of places and codes: error by level, agreement, coverage of areas, time and memory up to 10^6 leaves.

Plans: counts at every level of a tree, at privacy cost 1, with levels balanced. Errors are root mean square errors of
a node by level: of the plan, of each level measured alone with an equal share, and of the leaves alone, summed. The gap
is that of the squared error, weighted by level as in the plan, to the certified lower bound of all matrix mechanisms.
Trees: places of the world (country, region, place) and the codes of ICD-10-CM, from ../shared/data, which is not part
of dpscale, and generated trees of places with uneven regions. "mixed": five attributes, 3-way tables of countries,
2-way of regions and 1-way of places. Coverage: 95 % intervals of unions of 1 to 3,000 leaves of one release each, and
the time of an answer. Runs: a whole job of places x age group x sex at all levels with 5 million rows, in a process of
its own; agreement is the largest difference of a node from the sum of the nodes below, relative to the number of rows.
Exponents are those of time and memory by leaves, from 10^4 to 10^6.

Publish: error of published tables of 36 cells at every level of a generated tree of five levels and 100,000 blocks.

    python benchmarks/hierarchy.py [plans coverage runs publish] [--seeds 100] [--rows 5000000]
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from itertools import combinations
from pathlib import Path

import base
import numpy as np
import pandas as pd

import dpscale as dp
from dpscale.answers.publish import publish
from dpscale.answers.tables import Answered
from dpscale.domain import Domain, Hierarchy
from dpscale.plans.plan import Plan
from dpscale.reconstruction.tree_estimates import TreeEstimates

DATA = base.DATA / "more"
OTHERS = {"age": 18, "sex": 2, "race": 6, "housing": 4, "citizen": 2}
SIZES = (10**4, 10**5, 10**6)


def write_places(folder: Path, leaves: int) -> None:
    """Write a generated tree: regions and places of log-normal sizes."""
    rng = np.random.default_rng(0)
    region = split(rng, 240 if leaves > 10**4 else 60, leaves // 36)
    place = split(rng, leaves // 36, leaves)
    names = {"country": "c", "region": "r", "place": "p"}
    cells = (region[place], place, np.arange(leaves))
    frame = {
        name: np.char.add(letter, own.astype(str)) for (name, letter), own in zip(names.items(), cells, strict=True)
    }
    pd.DataFrame(frame).to_parquet(folder / "places.parquet")


def split(rng: np.random.Generator, above: int, below: int) -> np.ndarray:
    """Return the parent of every node, with at least one child for each parent."""
    weights = rng.lognormal(0, 1, above)
    return np.sort(np.append(np.arange(above), rng.choice(above, below - above, p=weights / weights.sum())))


def write_world(folder: Path) -> None:
    frame = pd.read_parquet(DATA / "geo_cities1000.parquet").rename(columns={"cc": "country", "admin1": "region"})
    frame["country"] = frame["country"].fillna("NA")  # Namibia
    frame["place"] = np.arange(len(frame)).astype(str)
    frame[["country", "region", "place"]].to_parquet(folder / "places.parquet")


def write_codes(folder: Path) -> None:
    frame = pd.read_parquet(DATA / "icd10cm_tree.parquet").drop_duplicates("code")
    names = {"l0": "chapter", "l1": "block", "l2": "category", "l3": "subcategory", "l4": "extension", "code": "place"}
    frame.rename(columns=names)[list(names.values())].to_parquet(folder / "places.parquet")


def domain_of(folder: Path, levels: tuple[str, ...], others: dict[str, int]) -> Domain:
    listed = ", ".join(f'"{one}"' for one in levels)
    lines = ["[attributes.place]", 'kind = "hierarchy"', 'file = "places.parquet"', f"levels = [{listed}]"]
    for name, size in others.items():
        lines += [f"[attributes.{name}]", 'kind = "coded"', f"size = {size}"]
    (folder / "domain.toml").write_text("\n".join(lines) + "\n")
    return Domain.read(folder / "domain.toml")


def print_plans() -> None:
    """Print errors by level and the gap, time and memory of planning."""
    trees = {f"{leaves:,} places": (partial(write_places, leaves=leaves), ("country", "region")) for leaves in SIZES}
    if DATA.exists():
        trees["world"] = write_world, ("country", "region")
        trees["icd10cm"] = write_codes, ("chapter", "block", "category", "subcategory", "extension")
    print("error by level at privacy cost 1, from the root: dpscale / each level alone / leaves alone, summed")
    for name, (write, levels) in trees.items():
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder))
            domain = domain_of(Path(folder), levels, {})
        workload = dp.Workload(domain).add("marginal", attributes=[[], *([one] for one in (*levels, "place"))])
        start = time.perf_counter()
        plan = dp.plan(workload)
        seconds = time.perf_counter() - start
        own = domain.hierarchies[0]
        alone = math.sqrt(own.depth + 1)
        found = [f"{error:.2f} / {alone:.2f} / {flat:.2f}"
                 for error, flat in zip(level_errors(plan, own), leaf_errors(own), strict=True)]  # fmt: skip
        gap = 100 * (plan.error / plan.floor - 1)
        print(f"  {name:17} nodes {own.tree.sizes}: {'; '.join(found)}; {gap:.2f} % above the bound; "
              f"{seconds:.1f} s, peak {peak():,.0f} MiB so far", flush=True)  # fmt: skip
    print_mixed()


def print_mixed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        write_places(Path(folder), 10**5)
        domain = domain_of(Path(folder), ("country", "region"), OTHERS)
    sets = [[*level, *own] for level, degree in (([], 3), (["country"], 3), (["region"], 2), (["place"], 1))
            for own in combinations(OTHERS, degree)]  # fmt: skip
    start = time.perf_counter()
    plan = dp.plan(dp.Workload(domain).add("marginal", attributes=sets))
    seconds = time.perf_counter() - start
    print(f"  mixed, 100,000 places: {plan.notes[0]}; {100 * plan.optimality_gap:.2f} % above the bound of plans that "
          f"measure each residual alone; {seconds:.1f} s, peak {peak():,.0f} MiB", flush=True)  # fmt: skip


def level_errors(plan: Plan, own: Hierarchy) -> list[float]:
    """Return the root mean square error of a node by level, from the root."""
    part = plan.workload.parts[0]
    sets = [(), *((name,) for name in own.names)]
    return [math.sqrt(float(plan.accuracy.part_variances(part, names).mean())) for names in sets]


def leaf_errors(own: Hierarchy) -> list[float]:
    """Return the same for sums of leaves that are measured alone at the whole budget."""
    return [math.sqrt(float(counts.mean())) for counts in own.tree.leaf_counts]


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def print_coverage(seeds: int) -> None:
    """Print the coverage of intervals of unions of leaves and the time of an answer."""
    with tempfile.TemporaryDirectory() as folder:
        write_places(Path(folder), 10**5)
        domain = domain_of(Path(folder), ("country", "region"), {})
    own = domain.hierarchies[0]
    plan = dp.plan(dp.Workload(domain).add("marginal", attributes=[["country"], ["region"], ["place"]]))
    rng = np.random.default_rng(0)
    true = rng.poisson(rng.lognormal(3, 1, 10**5))
    variances = [block.unit_variance for block in plan.blocks]
    exact = [block.factors[0].apply(true) for block in plan.blocks]
    hits = total = difference_hits = 0
    spent = 0.0
    for _ in range(seeds):
        noisy = [one + rng.normal(0, math.sqrt(v), one.shape) for one, v in zip(exact, variances, strict=True)]
        estimates = TreeEstimates(plan, variances, noisy.__getitem__)
        estimates.combination("place", np.arange(1), np.ones(1), (), np.ones(()))
        for number in range(100):
            size = int(np.exp(rng.uniform(0, np.log(3000))))
            if number % 2:
                first = int(rng.integers(0, 10**5 - size))
                nodes = np.arange(first, first + size)
            else:
                nodes = rng.choice(10**5, size, replace=False)
            start = time.perf_counter()
            found, error = estimates.combination("place", nodes, np.ones(size), (), np.ones(()))
            spent += time.perf_counter() - start
            hits += abs(found - true[nodes].sum()) <= 1.959964 * error
            signs = rng.choice([-1.0, 1.0], size)
            found, error = estimates.combination("place", nodes, signs, (), np.ones(()))
            difference_hits += abs(found - signs @ true[nodes]) <= 1.959964 * error
            total += 1
    print(f"coverage of 95 % intervals, {seeds} releases x 100 unions of 1 to 3,000 of 100,000 leaves: "
          f"{100 * hits / total:.2f} %, of differences of two unions {100 * difference_hits / total:.2f} %; "
          f"{1000 * spent / total:.2f} ms a union, {own.depth} levels")  # fmt: skip


def print_runs(rows: int) -> None:
    """Print time, memory and agreement of whole runs, each in a process of its own."""
    print(f"a run of places x age group x sex at three levels, {rows:,} rows")
    found = []
    for leaves in SIZES:
        command = [sys.executable, __file__, "one-run", str(leaves), str(rows)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(
            f"  {leaves:>9,} leaves: " + ", ".join(f"{key} {value:.3g}" for key, value in found[-1].items()), flush=True
        )
    for key in ("seconds", "plan seconds", "MiB"):
        exponent = math.log(found[-1][key] / found[0][key]) / math.log(SIZES[-1] / SIZES[0])
        print(f"  exponent of {key} from {SIZES[0]:,} to {SIZES[-1]:,} leaves: {exponent:.2f}")


def run_one(leaves: int, rows: int) -> None:
    """Run one job and print figures as JSON."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_places(folder, leaves)
        domain_of(folder, ("country", "region"), {"age": 18, "sex": 2})
        rng = np.random.default_rng(1)
        weights = rng.pareto(1.3, leaves) + 0.2
        frame = {"place": np.char.add("p", rng.choice(leaves, rows, p=weights / weights.sum()).astype(str)),
                 "age": rng.integers(0, 18, rows), "sex": rng.integers(0, 2, rows)}  # fmt: skip
        pd.DataFrame(frame).to_parquet(folder / "data.parquet", row_group_size=500_000)
        job = {"data": {"path": str(folder / "data.parquet"), "domain": str(folder / "domain.toml")},
               "privacy": {"epsilon": 1.0, "delta": 1e-9, "ledger": str(folder / "ledger.sqlite")},
               "workload": [{"family": "marginal",
                             "attributes": [[level, "age", "sex"] for level in ("country", "region", "place")]}],
               "engine": {"memory": "8 GiB", "scheduler": "threads"}}  # fmt: skip
        start = time.perf_counter()
        domain = Domain.read(folder / "domain.toml")
        workload = dp.Workload(domain).add("marginal", attributes=job["workload"][0]["attributes"])
        dp.plan(workload)
        planned = time.perf_counter()
        release = dp.run(job, run_dir=folder / "run")
        seconds, memory = time.perf_counter() - planned, peak()
        own = domain.hierarchies[0]
        tables = [release.marginal((level, "age", "sex")) for level in own.names]
        worst = 0.0
        for parents, above, below in zip(own.tree.parents[1:], tables, tables[1:], strict=False):
            sums = np.zeros_like(above)
            np.add.at(sums, parents, below)
            worst = max(worst, float(np.abs(sums - above).max()))
        true = np.zeros(tables[-1].shape)
        cell = np.char.lstrip(frame["place"], "p").astype(int)
        labels = np.array([int(label[1:]) for label in domain["place"].labels])
        np.add.at(true, (np.argsort(labels)[cell], frame["age"], frame["sex"]), 1)
        errors = {}
        for level, table in zip(own.names, tables, strict=True):
            exact = np.zeros(table.shape)
            np.add.at(exact, own.ancestors(level), true)
            errors[f"error {level}"] = math.sqrt(float(((table - exact) ** 2).mean()))
        nodes = [f"p{number}" for number in rng.choice(leaves, 3000, replace=False).tolist()]
        release.area(nodes, "sex = 1")  # the first one reads the measurements
        start_area = time.perf_counter()
        for _ in range(20):
            release.area(nodes, "sex = 1")
        errors["ms an area of 3,000 leaves"] = 50 * (time.perf_counter() - start_area)
        print(json.dumps({"seconds": seconds, "plan seconds": planned - start, "MiB": memory,
                          "disagreement": worst / rows, **errors}))  # fmt: skip


def write_blocks(folder: Path) -> np.ndarray:
    """Write a tree of 8 regions, 77 districts, 6,233 municipalities and blocks of about 100 persons; return persons."""
    rng = np.random.default_rng(0)
    district, municipality = split(rng, 8, 77), split(rng, 77, 6233)
    size = np.exp(rng.uniform(np.log(50), np.log(2000), 6233)) * np.exp(rng.exponential(0.8, 6233))
    size *= 10.3e6 / size.sum()
    blocks = np.maximum(1, np.rint(size / 100)).astype(int)
    block = np.repeat(np.arange(6233), blocks)
    share = rng.lognormal(0, 0.8, len(block))
    persons = rng.poisson((size / np.bincount(block, share))[block] * share)
    cells = {"region": district[municipality][block], "district": municipality[block], "municipality": block,
             "place": np.arange(len(block))}  # fmt: skip
    pd.DataFrame({name: np.char.add(name[0], own.astype(str)) for name, own in cells.items()}).to_parquet(
        folder / "places.parquet"
    )
    return persons


def print_publish() -> None:
    """Print the L1 error of published tables relative to the number of persons, by level, and the time."""
    others = {"age": 18, "sex": 2}
    with tempfile.TemporaryDirectory() as name:
        persons = write_blocks(Path(name))
        domain = domain_of(Path(name), ("region", "district", "municipality"), others)
    own, rng = domain.hierarchies[0], np.random.default_rng(1)
    persons = persons[[int(label[1:]) for label in domain["place"].labels]]
    mixes = rng.dirichlet(np.maximum(rng.dirichlet(np.full(36, 0.4)) * 8, 1e-3), len(persons))
    true = own.tree.sums(rng.multinomial(persons, mixes).astype(float))
    names = [(), *((level,) for level in own.names)]
    sets = [domain.ordered((*level, *others)) for level in names]
    plan = dp.plan(dp.Workload(domain).add("marginal", attributes=[list(one) for one in sets]))
    empty = 100 * float((true[-1] == 0).mean())
    print(f"publish: L1 error / persons of tables of 36 cells by level, nodes {own.tree.sizes}, "
          f"{int(persons.sum()):,} persons, {empty:.0f} % of the cells of blocks are 0")  # fmt: skip
    for mu in (0.2, 1.0):
        estimates = noisy_estimates(plan, own, true, mu, rng)
        start = time.perf_counter()
        published = publish(Answered(estimates, "benchmark"), sets)
        seconds = time.perf_counter() - start
        leaves = estimates.marginal(sets[-1]).reshape(true[-1].shape)
        flat = true[-1] + rng.normal(0, 1 / mu, true[-1].shape)
        found = {
            "least squares": [estimates.marginal(one) for one in sets],
            f"published ({seconds:.1f} s)": [published.tables[one] for one in sets],
            "least squares, leaves clipped, summed": own.tree.sums(np.maximum(leaves, 0)),
            "flat leaves clipped, summed": own.tree.sums(np.maximum(flat, 0)),
            "flat leaves, summed": own.tree.sums(flat),
        }
        for method, tables in found.items():
            errors = [float(np.abs(table.reshape(exact.shape) - exact).sum()) / persons.sum()
                      for table, exact in zip(tables, true, strict=True)]  # fmt: skip
            print(f"  mu {mu}, {method:38}", "  ".join(f"{error:.5f}" for error in errors), flush=True)


def noisy_estimates(
    plan: Plan, own: Hierarchy, true: list[np.ndarray], mu: float, rng: np.random.Generator
) -> TreeEstimates:
    """Return estimates of tables by level × age × sex at a privacy cost, from the exact tables."""
    values = []
    for block in plan.blocks:
        level = 1 + own.position(next(name for name in block.attributes if name in own.names))
        table = true[level].reshape(-1, 18, 2)
        table = table.sum(axis=tuple(1 + i for i, name in enumerate(("age", "sex")) if name not in block.attributes))
        for axis, factor in enumerate(block.factors):
            table = np.moveaxis(factor.apply(np.ascontiguousarray(np.moveaxis(table, axis, 0))), 0, axis)
        values.append((table + rng.normal(0, math.sqrt(block.unit_variance) / mu, table.shape)).reshape(block.rows))
    return TreeEstimates(plan, [block.unit_variance / mu**2 for block in plan.blocks], values.__getitem__)


def main() -> None:
    if sys.argv[1:2] == ["one-run"]:
        run_one(*map(int, sys.argv[2:]))
        return
    parser = base.command_parser(__doc__)
    parser.add_argument("parts", nargs="*", default=["plans", "coverage", "runs", "publish"])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--rows", type=int, default=5_000_000)
    given = parser.parse_args()
    if "plans" in given.parts:
        print_plans()
    if "coverage" in given.parts:
        print_coverage(given.seeds)
    if "runs" in given.parts:
        print_runs(given.rows)
    if "publish" in given.parts:
        print_publish()


if __name__ == "__main__":
    main()
