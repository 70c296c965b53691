"""Synthetic rows: their errors, uses, rules, hierarchies and histories.

python benchmarks/rows.py errors              3-way errors compared with those of the estimates
python benchmarks/rows.py classes             errors by the number of attributes of a set, over the least of
    [--tables NAME ...] [--epsilons 0.1 1 10] [--mechanisms NAME ...] [--seeds 1]       estimates and rows of pairs
    [--degree 3] [--save]
python benchmarks/rows.py usefulness          models trained on rows, and models that separate rows from records
    [--epsilons 0.1 1 10] [--seeds 3] [--first-seed 100]
python benchmarks/rows.py targets             models trained on rows with a target ([synthesize] target)
    [--epsilons 0.1] [--seeds 20] [--rows 4000] [--save]
python benchmarks/rows.py declared_parents    errors with and without a declared hierarchy
    [--seeds 5] [--rows 50000] [--save]
python benchmarks/rows.py rules               rows that break a rule, and errors of counts
    [--seeds 10] [--rows 20000] [--mechanisms weighted-residuals aim-grem] [--save]
python benchmarks/rows.py histories           rows of children in order
    [--data movielens berka] [--epsilons 1 2 4] [--seeds 3]
"""

from __future__ import annotations

import math
import os
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any

import base
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from adaptive import complete_model, cost_of, run_adaptive
from base import (
    CONSTRUCTED,
    DATA,
    KEPT,
    LINKED,
    Table,
    add_table_options,
    construct_table,
    load_table,
    load_tables,
    write_generated,
)

import dpscale as dp
from dpscale import Domain, Workload, job as dp_job
from dpscale.base.numerics import one_thread
from dpscale.domain.attribute import Attribute
from dpscale.engine.schedulers import LocalEngine, resolve
from dpscale.evaluation.inputs import names_of, open_data, open_rows, sample
from dpscale.evaluation.models import MOST, propensity, target_of, tstr_scores
from dpscale.job.allocation import LinkBudget
from dpscale.job.neighbours import neighbour_relation
from dpscale.measurement.adaptive import run
from dpscale.mechanisms.aim_grem import Options, plan as plan_adaptively
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.privacy.streams import PublicStream, seeded_secret
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.maxent import LEARNING_BYTES
from dpscale.reconstruction.pairwise import (
    CellDistribution,
    PairwiseModel,
    add_triples,
    complete_pairs,
    learn,
    missing_triples,
    pair_targets,
)
from dpscale.relational.history import HistoryTables, step_counts
from dpscale.runs.estimates import low_order_tables, model_folder, read_sampler
from dpscale.runs.links.link_data import ExactLinks, read_links
from dpscale.runs.opening import open_run
from dpscale.runs.runner import run_stages
from dpscale.runs.stages.synthesize import request_rows
from dpscale.synthesis.cells import refine_to_cells
from dpscale.synthesis.draw import PairwiseSampler, RowPart, draw, one_way_counts, tree_start
from dpscale.synthesis.one_way_rounding import match_one_ways
from dpscale.synthesis.set_targets import THREES, SetTargets, set_targets

MEMORY = 4 << 30
SHOWN = {("adult", 0.1), ("adult", 1.0), ("adult", 10.0), ("acs", 1.0), ("salary", 1.0), ("titanic", 1.0)}


def draw_rows(
    model: LowOrder, learnt: PairwiseModel, release: str, count: int, parts: int, targets: SetTargets | None = None
) -> np.ndarray:
    """Draw all rows over cells; `targets` are the three-way targets of polished rows."""
    drawn = []
    for number in range(parts):
        part = RowPart(count, parts, number)
        own = draw(learnt, part, release, targets)
        cells = CellDistribution(model.groups, model.ones, model.rules)
        drawn.append(
            match_one_ways(
                learnt.targets,
                cells,
                refine_to_cells(learnt.targets, cells, own, PublicStream(release, "cells", number)),
                one_way_counts(learnt.targets.layout.names, cells, part, release),
            )
        )
    return np.concatenate(drawn)


def row_error(table: Table, rows: np.ndarray, degree: int = 3, most: int = 400) -> float:
    """Return the error of the marginals of the rows."""
    every = list(combinations(range(len(table.names)), degree))
    every = every[:: -(-len(every) // most)]
    found = []
    for subset in every:
        truth = table.counts(tuple(table.names[i] for i in subset))
        cells = np.zeros(len(rows), np.int64)
        for i in subset:
            cells = cells * table.sizes[table.names[i]] + rows[:, i]
        found.append(np.abs(np.bincount(cells, minlength=truth.size).reshape(truth.shape) - truth).sum() / table.rows)
    return float(np.mean(found))


def estimate_error(table: Table, model: LowOrder, degree: int, most: int = 400) -> float:
    every = tuple(combinations(table.names, degree))
    return table.error(model.marginal, every[:: -(-len(every) // most)])


def floor_error(table: Table, model: LowOrder, seed: int, degree: int = 3, most: int = 400) -> float:
    """Return the error of as many records drawn from the estimate of each set by itself."""
    rng, every = np.random.default_rng(seed), tuple(combinations(table.names, degree))
    found = []
    for names in every[:: -(-len(every) // most)]:
        shares = model.marginal(names)
        drawn = rng.multinomial(round(model.total), (shares / shares.sum()).reshape(-1)).reshape(shares.shape)
        found.append(np.abs(drawn - table.counts(names)).sum() / table.rows)
    return float(np.mean(found))


def one_way_error(table: Table, model: LowOrder, rows: np.ndarray) -> float:
    """Return the largest L1 / N distance of a 1-way marginal of the rows from the released one."""
    found = [np.abs(np.bincount(rows[:, i], minlength=table.sizes[name]) / len(rows) - model.ones[name] / model.total)
             for i, name in enumerate(table.names)]  # fmt: skip
    return float(max(one.sum() for one in found))


def compare(table: Table, epsilon: float, seeds: range, parts: list[int]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for seed in seeds:
        release = f"seed {seed}"
        model = complete_model(table, run_adaptive(table, epsilon, seed, Options()).fit.model, release)
        began = time.process_time()
        learnt = learn(pair_targets(model, MEMORY), release, start=tree_start)
        found.setdefault("learning, CPU s", []).append(time.process_time() - began)
        for degree in (2, 3):
            found.setdefault(f"estimates, {degree}-way", []).append(estimate_error(table, model, degree))
        found.setdefault("floor, 3-way", []).append(floor_error(table, model, seed))
        began = time.process_time()
        threes = set_targets(learnt, model, release, MEMORY, model.total)
        found.setdefault("threes, CPU s", []).append(time.process_time() - began)
        for count, (kind, targets) in product(parts, {"": None, "polished ": threes}.items()):
            began = time.process_time()
            rows = draw_rows(model, learnt, release, round(model.total), count, targets)
            found.setdefault(f"drawing {kind}{count} parts, CPU s", []).append(time.process_time() - began)
            for degree in (2, 3):
                found.setdefault(f"{kind}rows in {count} parts, {degree}-way", []).append(
                    row_error(table, rows, degree)
                )
            found.setdefault(f"{kind}rows in {count} parts, 1-way from released", []).append(
                one_way_error(table, model, rows)
            )
    means = {name: float(np.mean(values)) for name, values in found.items()}
    means["rows over estimates"] = means[f"polished rows in {parts[0]} parts, 3-way"] / means["estimates, 3-way"]
    line = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
    print(f"{table.name}, epsilon {epsilon:g}: {line}", flush=True)
    return means


def print_speed() -> None:
    """Print rows per second of drawing (sweeps over all pairs, counts and cells) on one core, with and without
    polishing.
    """
    for shape in ("census", "loans"):
        table = write_generated(shape)
        model = run_adaptive(table, 1.0, 100, Options()).fit.model
        began = time.process_time()
        learnt = learn(pair_targets(model, MEMORY), "speed", start=tree_start)
        learned, count = time.process_time(), 50_000
        draw_rows(model, learnt, "speed", count, 1)
        drawn = time.process_time()
        draw_rows(model, learnt, "speed", count, 1, set_targets(learnt, model, "speed", MEMORY, count))
        polished = time.process_time()
        print(f"{shape}: {len(table.names)} attributes, learning {learned - began:.1f} CPU s, {count:,} rows in "
              f"{drawn - learned:.1f} CPU s, {count / (drawn - learned):,.0f} rows/s; polished in "
              f"{polished - drawn:.1f} CPU s", flush=True)  # fmt: skip


def print_errors() -> None:
    """Synthetic rows: their 3-way errors compared with those of the estimates they are drawn from; δ = 1e-9.

    Error: mean over all 3-way marginals of ‖rows' counts − counts‖₁ / N. The floor is that of as many records drawn
    from the estimate of each set by itself. CPU seconds are of learning and drawing only, on one core. Real tables are
    in ../shared/data and are not part of dpscale.

        python benchmarks/rows.py errors [--tables adult acs salary titanic] [--epsilons 0.1 1 10] [--seeds 3]
            [--parts 1 4]
            --speed                rows per second of the drawing loop, by attributes
            --save                 save the errors in results/

    Published for Adult, ε = 1: AIM by Private-PGM 0.179 in 349 s, dpsynth's SWIFT 0.180 in 302 s, MST 0.226 in 41 s.
    """
    parser = base.command_parser(print_errors.__doc__)
    add_table_options(parser)
    parser.add_argument("--constructed", nargs="*", default=[], choices=CONSTRUCTED)
    parser.add_argument("--parts", type=int, nargs="+", default=[1])
    for flag in ("speed", "save"):
        parser.add_argument(f"--{flag}", action="store_true")
    arguments = parser.parse_args()
    if arguments.speed:
        print_speed()
        return
    figures: dict[str, float] = {}
    names = [*KEPT, *LINKED] if arguments.tables == ["all"] else arguments.tables
    ratios: dict[float, list[float]] = {epsilon: [] for epsilon in arguments.epsilons}
    for table in chain(load_tables(names, arguments.data), map(construct_table, arguments.constructed)):
        for epsilon in arguments.epsilons:
            seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
            means = compare(table, epsilon, seeds, arguments.parts)
            ratios[epsilon].append(means["rows over estimates"])
            if (table.name, epsilon) in SHOWN:
                shown = {
                    "estimates": "estimates",
                    "floor": "floor",
                    "rows": "polished rows in 1 parts",
                    "unpolished": "rows in 1 parts",
                }
                figures |= {f"{table.name}, {epsilon:g}, {name}": means[f"{of}, 3-way"] for name, of in shown.items()}
            if (table.name, epsilon) == ("adult", 1.0):
                figures["unpolished seconds"] = means["learning, CPU s"] + means["drawing 1 parts, CPU s"]
                polishing = ("learning, CPU s", "threes, CPU s", "drawing polished 1 parts, CPU s")
                figures["seconds"] = sum(means[name] for name in polishing)
    for epsilon, found in ratios.items():
        mean, largest = float(np.exp(np.mean(np.log(found)))), max(found)
        print(
            f"epsilon {epsilon:g}: rows over estimates, 3-way: {mean:.3f}, at most {largest:.3f}, {len(found)} tables"
        )
        figures |= {f"mean ratio, {epsilon:g}": mean, f"largest ratio, {epsilon:g}": largest}
    if arguments.save:
        base.save("rows", figures)


KEPT_OUT, TARGET = 0.2, "income>50K"
TARGETS = {"telco": "Churn", "adult": TARGET, "nltcs": "a15"}
SAVED = (0.1, 1.0, 10.0)


def prepare_job(
    table: Table,
    epsilon: float,
    seed: int,
    place: Path,
    kept_out: float = KEPT_OUT,
    mechanism: str = "aim-grem",
    target: str | None = None,
) -> dict[str, object]:
    """Return the job as a dict; its records and the held-out ones are written to files."""
    out = np.random.default_rng(seed).random(table.rows) < kept_out
    for name, which in (("job", ~out), ("out", out)):
        pq.write_table(pa.table({own: codes[which] for own, codes in table.columns.items()}), place / f"{name}.parquet")
    attributes = {name: {"kind": "coded", "size": size} for name, size in table.sizes.items()}
    (place / "domain.toml").write_text(tomli_w.dumps({"attributes": attributes}))
    return {
        "data": {"path": str(place / "job.parquet"), "domain": str(place / "domain.toml")},
        "privacy": {"epsilon": epsilon, "delta": 1e-9, "ledger": str(place / "ledger.sqlite"), "dataset": "adult"},
        "workload": [{"family": "marginal", "degree": 3}],
        "mechanism": {"name": mechanism},
        "engine": {"scheduler": "synchronous", "seed": seed},
        "synthesize": {} if target is None else {"target": target},
    }


def learn_target(
    job: dict[str, object], place: Path, target: str
) -> tuple[dict[str, float], Sequence[Attribute], dict[str, np.ndarray]]:
    """Return the areas under the curve of models of a target, the attributes, and the cells of rows and records.

    The job is released. A model is trained on its rows and another on its records; both predict the held-out records.
    """
    dp.run(job, place / "run")
    run, engine = open_run(place / "run").table, LocalEngine("synchronous")
    rows = open_rows(run)
    names = names_of(rows)
    sides = {"rows": rows, **{name: open_data(run, [str(place / f"{name}.parquet")], names) for name in ("job", "out")}}
    codes = {name: sample(engine, side, names, MOST, run.manifest["release"]) for name, side in sides.items()}
    attributes = [run.domain[name] for name in names]
    areas = {}
    for name, label in (("rows", "trained on rows"), ("job", "trained on records")):
        learnt = tstr_scores(attributes, target_of(attributes, target), {name: codes[name]}, codes["out"])
        areas[label] = 0.5 if learnt is None else learnt.results[name]["auc"]  # too few rows to learn from
    return areas, attributes, codes


def figures(job: dict[str, object], place: Path) -> dict[str, float]:
    """Return the scores of one job."""
    began = time.process_time()
    areas, attributes, codes = learn_target(job, place, TARGET)
    scores = {name: propensity(attributes, codes[name], codes["rows"]) for name in ("out", "job")}
    return {
        **areas,
        **{
            f"propensity, {label}": math.nan if scores[name] is None else scores[name].results["auc"]
            for name, label in (("out", "kept out"), ("job", "the job's"))
        },
        "seconds": time.process_time() - began,
    }


def print_usefulness() -> None:
    parser = base.command_parser(__doc__)
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(SAVED))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    table = load_table("adult", arguments.data)
    if table is None:
        raise SystemExit(f"no real table in {arguments.data}")
    saved: dict[str, float] = {}
    for epsilon in arguments.epsilons:
        found = []
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            with tempfile.TemporaryDirectory() as place:
                found.append(figures(prepare_job(table, epsilon, seed, Path(place)), Path(place)))
            print(f"epsilon {epsilon:g}, seed {seed}: {format_figures(found[-1])}", flush=True)
        means = {name: float(np.mean([one[name] for one in found])) for name in found[0]}
        print(f"epsilon {epsilon:g}, mean: {format_figures(means)}", flush=True)
        saved |= {f"{epsilon:g}, {name}": value for name, value in means.items() if epsilon in SAVED}
    if arguments.save:
        base.save("usefulness", {name: value for name, value in saved.items() if "seconds" not in name})


def print_targets() -> None:
    """Print the area under the curve of a model that is trained on rows with and without a target, and on records.

    The gain of a target is the mean of the differences of the same seeds; its standard error is printed beside it.
    """
    parser = base.command_parser(__doc__)
    parser.add_argument("--tables", nargs="+", default=["telco", "adult"], choices=TARGETS)
    parser.add_argument("--mechanisms", nargs="+", default=["weighted-residuals", "aim-grem"])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    saved: dict[str, float] = {}
    for name, mechanism, epsilon in product(given.tables, given.mechanisms, given.epsilons):
        whole, column = load_table(name), TARGETS[name]
        if whole is None:
            raise SystemExit(f"no table {name} in {DATA}")
        areas: dict[str, list[float]] = {"records": [], "rows": [], "rows with a target": []}
        for seed, target in product(range(given.seeds), (None, column)):
            some = np.random.default_rng(seed).permutation(whole.rows)[: given.rows]
            table = Table(name, whole.sizes, np.stack([whole.columns[own][some] for own in whole.names], axis=1))
            with tempfile.TemporaryDirectory() as place:
                job = prepare_job(table, epsilon, seed, Path(place), KEPT_OUT, mechanism, target)
                learnt, _, _ = learn_target(job, Path(place), column)
            areas["rows" if target is None else "rows with a target"].append(learnt["trained on rows"])
            areas["records"].append(learnt["trained on records"])
        gains = np.subtract(areas["rows with a target"], areas["rows"])
        scores = {what: float(np.mean(values)) for what, values in areas.items()}
        scores |= {"gain": float(gains.mean()), "error of the gain": float(gains.std(ddof=1) / math.sqrt(len(gains)))}
        print(f"{name}, {mechanism}, epsilon {epsilon:g}, {given.rows:,} records, {given.seeds} seeds: "
              f"{format_figures(scores)}", flush=True)  # fmt: skip
        saved |= {f"{name}, {mechanism}, {epsilon:g}, {what}": score for what, score in scores.items()}
    if given.save:
        base.save("targets", saved)


def format_figures(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in values.items())


TOWNS, REGIONS, CELLS, OWN = 60, 8, (5, 8, 4, 6, 10), 0.4
NAMES = ("town", "region", *(f"x{i}" for i in range(len(CELLS))))


def draw_people(rows: int, seed: int, in_order: bool) -> tuple[Table, list[int]]:
    """Return a table and the region of every town; with `in_order`, towns are listed region by region."""
    rng = np.random.default_rng(seed)
    of = np.sort(np.append(np.arange(REGIONS), rng.integers(0, REGIONS, TOWNS - REGIONS)))
    of = of if in_order else rng.permutation(of)
    town = rng.choice(TOWNS, rows, p=rng.dirichlet(np.full(TOWNS, 0.7)))
    columns = [town, of[town]]
    for number, cells in enumerate(CELLS):
        law, own = rng.dirichlet(np.full(cells, 0.6), REGIONS)[of], rng.dirichlet(np.full(cells, 0.6), TOWNS)
        reach = np.cumsum(law if number % 2 else (1 - OWN) * law + OWN * own, axis=1)
        columns.append((rng.random((rows, 1)) > reach[town]).sum(axis=1).clip(0, cells - 1))
    sizes = dict(zip(NAMES, (TOWNS, REGIONS, *CELLS), strict=True))
    return Table("people", sizes, np.stack(columns, axis=1)), of.tolist()


def release_model(table: Table, epsilon: float, seed: int, of: list[int] | None) -> LowOrder:
    """Return the default `maxent` model of a job; `of` is the declared region of every town."""
    rules = [f"if town = {town} then region = {region}" for town, region in enumerate(of or ())]
    domain = Domain(dict(table.sizes), rules)
    workload = Workload(domain).add("marginal", attributes=table.targets)
    problem = PlanningProblem(workload, Budget(GAUSSIAN, cost_of(epsilon)))
    model = run(plan_adaptively(problem, Options()), table.counts, seeded_secret(seed)).fit.model
    learnt = learn(pair_targets(model, LEARNING_BYTES), str(seed))
    return add_triples(complete_pairs(model, learnt), learnt, missing_triples(model, table.targets), str(seed))


def measure_outcome(table: Table, model: LowOrder, of: list[int]) -> tuple[float, float]:
    """Return the error, and the share of records that the estimates have in a wrong region."""
    pair = model.marginal(("town", "region"))
    return table.error(model.marginal), 1 - float(pair[np.arange(TOWNS), of].sum() / pair.sum())


def print_declared_parents() -> None:
    parser = base.command_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    figures: dict[str, float] = {}
    for order in ("in order", "in any order"):
        for epsilon in (0.1, 1.0, 10.0):
            found = []
            for seed in range(given.seeds):
                table, of = draw_people(given.rows, seed, order == "in order")
                found.append([x for declared in (of, None)
                              for x in measure_outcome(table, release_model(table, epsilon, seed, declared),
                                                       of)])  # fmt: skip
            known, never, without, off = np.mean(found, axis=0)
            assert never < 1e-9
            print(f"{order:13} epsilon {epsilon:4g}: declared {known:.4f}, not {without:.4f}, ratio "
                  f"{known / without:.3f}; in a wrong region {100 * off:.2f} %", flush=True)  # fmt: skip
            name = f"{order}, {epsilon:g}"
            figures |= {f"{name}, declared": known, f"{name}, not": without, f"{name}, wrong": off}
    if given.save:
        base.save("declared_parents", figures)


def class_errors(table: Table, mechanism: str, epsilon: float, degree: int, most: int = 300) -> dict[int, list[float]]:
    """Return the errors of estimates, of rows without targets above pairs, and of rows, by number of attributes."""
    frame = pd.DataFrame(table.columns)
    made, drawn = release(frame, mechanism, degree, epsilon, degree, table.sizes)
    part = made._run.table
    polished = (model_folder(part) / THREES).exists()  # not if the noisy total is far below the number of rows
    sampler = read_sampler(model_folder(part), "polished" if polished else "sampler")
    model = low_order_tables(part)
    assert isinstance(sampler, PairwiseSampler)
    small = replace(model, tables={names: counts for names, counts in model.tables.items() if len(names) < 3})
    larger = set_targets(sampler.model, small, "pairs", LEARNING_BYTES, table.rows, polished)
    of_pairs = replace(sampler, larger=larger).rows(RowPart(table.rows, 1, 0), "pairs")
    rows = Table(table.name, table.sizes, drawn[list(table.names)].to_numpy())
    pairs = Table(table.name, table.sizes, of_pairs[:, [sampler.names.index(name) for name in table.names]])
    errors = {}
    for order in range(1, degree + 1):
        every = tuple(combinations(table.names, order))
        sets = every[:: -(-len(every) // most)]
        errors[order] = [table.error(marginal, sets) for marginal in (made.marginal, pairs.counts, rows.counts)]
    return errors


def print_classes() -> None:
    parser = base.command_parser(__doc__)
    parser.add_argument("--tables", nargs="+", default=["salary", "titanic", "nursery", "krkopt", "mushroom", "nltcs"])
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(SAVED))
    parser.add_argument("--mechanisms", nargs="+", default=["weighted-residuals", "aim-grem"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--degree", type=int, default=3)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    os.environ["DPSCALE_DATA"] = tempfile.mkdtemp()
    warnings.simplefilter("ignore")
    figures: dict[str, float] = {}
    for name, epsilon, mechanism in product(given.tables, given.epsilons, given.mechanisms):
        table = load_table(name)
        if table is None:
            raise SystemExit(f"no table {name} in {DATA}")
        releases = [class_errors(table, mechanism, epsilon, given.degree) for _ in range(given.seeds)]
        for order in releases[0]:
            estimates, pairs, rows = np.mean([errors[order] for errors in releases], axis=0)
            ratio = rows / min(estimates, pairs)
            figures[f"{name}, {mechanism}, {epsilon:g}, {order}-way"] = ratio
            print(f"{name}, {mechanism}, epsilon {epsilon:g}, {order}-way: estimates {estimates:.4g}, rows of pairs "
                  f"{pairs:.4g}, rows {rows:.4g}, over the least {ratio:.3f}", flush=True)  # fmt: skip
    for epsilon in given.epsilons:
        ratios = [ratio for name, ratio in figures.items() if f", {epsilon:g}, " in name]
        print(f"epsilon {epsilon:g}: {len(ratios)} cells, median {np.median(ratios):.3f}, largest {max(ratios):.3f}, "
              f"above 1.05 {np.mean(np.array(ratios) > 1.05):.2f}")  # fmt: skip
    if given.save:
        base.save("row_classes", figures)


RULES = ("discharge >= admission", "part <= whole")
STAY = {
    "admission": {"kind": "date", "by": "month", "low": "2019-01", "high": "2020-12"},
    "discharge": {"kind": "date", "by": "month", "low": "2019-01", "high": "2021-04"},
    "ward": {"kind": "categories", "values": list("abcde")},
    "part": {"kind": "bins", "edges": [0, 5, 10, 20, 40, 60]},
    "whole": {"kind": "bins", "edges": [0, 10, 20, 30, 50, 80]},
}


def draw_stays(rows: int, seed: int) -> pd.DataFrame:
    """Return stays in a hospital, of about nine days, and a part of their days."""
    rng = np.random.default_rng(seed)
    first = np.datetime64("2019-01-01") + rng.integers(0, 730, rows)
    ward = rng.integers(0, 5, rows)
    days = np.minimum(rng.geometric(1 / (4 + 2 * ward)), 59)
    whole = np.minimum(days + rng.integers(0, 20, rows), 79)
    return pd.DataFrame({"admission": first, "discharge": first + days, "ward": np.array(list("abcde"))[ward],
                         "part": days, "whole": whole})  # fmt: skip


def release_stays(stays: pd.DataFrame, mechanism: str, epsilon: float, seed: int, rules: bool) -> tuple[float, float]:
    """Return the share of rows that break a rule, and the mean L1 error / N of the 1- and 2-way marginals of rows."""
    with tempfile.TemporaryDirectory() as place:
        stays.to_parquet(f"{place}/stays.parquet", index=False)
        stated = {"rule": [{"rule": rule} for rule in RULES]} if rules else {}
        Path(place, "domain.toml").write_text(tomli_w.dumps({"attributes": STAY, **stated}))
        job = {
            "data": {"path": f"{place}/stays.parquet", "domain": f"{place}/domain.toml"},
            "privacy": {"epsilon": epsilon, "delta": 1e-9, "ledger": f"{place}/ledger.sqlite", "dataset": "stays"},
            "workload": [{"family": "marginal", "degree": 2}],
            "mechanism": {"name": mechanism},
            "engine": {"scheduler": "synchronous", "seed": seed},
            "synthesize": {"rows": len(stays), "types": "input"},
        }
        rows = dp.run(job, f"{place}/run").synthetic().compute()
        rows.to_parquet(f"{place}/rows.parquet", index=False)
        domain = Domain.from_dict({"attributes": STAY})
        counts = [dp.count_marginals(dp.Table.open(f"{place}/{name}.parquet", domain), MARGINALS)
                  for name in ("stays", "rows")]  # fmt: skip
    wrong = (pd.to_datetime(rows.discharge) < pd.to_datetime(rows.admission)) | (rows.part > rows.whole)
    errors = [np.abs(counts[0][names] - counts[1][names]).sum() / len(stays) for names in MARGINALS]
    return float(wrong.mean()), float(np.mean(errors))


MARGINALS = [*((name,) for name in STAY), *combinations(STAY, 2)]


def print_rules() -> None:
    parser = base.command_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--epsilons", type=float, nargs="+", default=list(SAVED))
    parser.add_argument("--mechanisms", nargs="+", default=["weighted-residuals", "aim-grem", "aim-pgm"])
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    figures: dict[str, float] = {}
    for mechanism in given.mechanisms:
        for epsilon in given.epsilons:
            found = np.array([[release_stays(draw_stays(given.rows, seed), mechanism, epsilon, seed, rules)
                               for rules in (False, True)] for seed in range(given.seeds)])  # fmt: skip
            (free, error), (broken, own) = found.mean(axis=0)
            print(
                f"{mechanism:18} epsilon {epsilon:4g}: rows that break a rule {100 * free:.1f} % without rules, "
                f"{100 * broken:.1f} % with; error {error:.4f} and {own:.4f}, {own / error:.3f} times",
                flush=True,
            )
            name = f"{mechanism}, {epsilon:g}"
            figures |= {f"{name}, free": free, f"{name}, broken": broken, f"{name}, ratio": own / error}
    if given.save:
        base.save("rules", figures)


DELTA, BOUND = 1e-5, 50
Job = dict[str, Any]
AGES, YEARS = [0, 18, 25, 35, 45, 56, 100], [1900, 1970, 1980, 1990, 1995, 1997, 1999]
AMOUNTS = [0, 100, 500, 1000, 2500, 5000, 10000, 20000, 100000]
BALANCES = [-100000, 0, 10000, 20000, 30000, 50000, 75000, 300000]


def movielens(folder: Path) -> Job:
    source = DATA / "movielens/ml-100k"
    ratings = pd.read_csv(source / "u.data", sep="\t", names=["user", "film", "stars", "time"])
    ratings["week"] = (ratings.time - 874_368_000) // 604_800  # since the first rating of the public description
    users = pd.read_csv(source / "u.user", sep="|", names=["user", "age", "sex", "work", "zip"])
    films = pd.read_csv(source / "u.item", sep="|", encoding="latin1", header=None)
    genre = films[list(range(5, 24))].to_numpy().argmax(1)
    year = pd.to_numeric(films[2].str[-4:]).fillna(1995)
    tables = {
        "films": _table(folder, "films", pd.DataFrame({"film": films[0], "year": year, "genre": genre}), "film",
                        year={"kind": "bins", "edges": YEARS, "outside": "clip"}, genre={"kind": "coded", "size": 19}),
        "users": _table(folder, "users", users[["user", "age", "sex"]], "user",
                        age={"kind": "bins", "edges": AGES}, sex={"kind": "categories", "values": ["F", "M"]}),
        "ratings": _table(folder, "ratings", ratings, None, stars={"kind": "integer", "low": 1, "high": 5},
                          week={"kind": "integer", "low": 0, "high": 31}),
    }  # fmt: skip
    tables["films"]["public"] = True
    films_link = {"name": "rated", "kind": "one-to-many", "parent": "films", "child": "ratings", "child_key": "film"}
    link = {"name": "raters", "kind": "one-to-many", "parent": "users", "child": "ratings", "child_key": "user",
            "max_degree": BOUND, "order_by": ["week", "time"], "parents": ["rated"]}  # fmt: skip
    return {"tables": tables, "link": [films_link, link]}


def berka(folder: Path) -> Job:
    source = DATA / "berka"
    rows = pd.read_csv(source / "trans_48k.asc", sep=";")
    rows["date"] = pd.to_datetime(rows.date.astype(str), format="%y%m%d")
    rows = rows.drop(columns="account").rename(
        columns={"k_symbol": "symbol", "trans_id": "number", "account_id": "account"}
    )
    for name in ("operation", "symbol"):
        rows[name] = rows[name].fillna("").str.strip()
    accounts = pd.read_csv(source / "account.asc", sep=";").rename(columns={"account_id": "account"})
    accounts["opened"] = 1900 + accounts.date // 10000
    accounts = accounts[accounts.account.isin(rows.account)]
    listed = {
        name: {"kind": "categories", "values": sorted(set(rows[name]))} for name in ("type", "operation", "symbol")
    }
    columns = ["account", "number", "date", "type", "operation", "symbol", "amount", "balance"]
    tables = {
        "accounts": _table(folder, "accounts", accounts[["account", "frequency", "opened"]], "account",
                           frequency={"kind": "categories", "values": sorted(set(accounts.frequency))},
                           opened={"kind": "integer", "low": 1993, "high": 1997}),
        "transactions": _table(folder, "transactions", rows[columns], None,
                               date={"kind": "date", "by": "month", "low": "1993-01-01", "high": "1994-03-31"},
                               **listed, amount={"kind": "bins", "edges": AMOUNTS, "outside": "clip"},
                               balance={"kind": "bins", "edges": BALANCES, "outside": "clip"}),
    }  # fmt: skip
    link = {"name": "transactions", "kind": "one-to-many", "parent": "accounts", "child": "transactions",
            "child_key": "account", "max_degree": BOUND, "order_by": ["date", "number"]}  # fmt: skip
    rules = [{"rule": "if accounts.opened >= 1994 then transactions.date >= 1994-01-01"}]
    return {"tables": tables, "link": [link], "rule": rules}


DATABASES = {"movielens": movielens, "berka": berka}


def _table(folder: Path, name: str, frame: pd.DataFrame, key: str | None, **attributes: Any) -> Job:
    frame.to_parquet(folder / f"{name}.parquet", index=False)
    (folder / f"{name}.toml").write_text(tomli_w.dumps({"attributes": attributes}))
    section = {"path": str(folder / f"{name}.parquet"), "domain": str(folder / f"{name}.toml")}
    return section | ({"key": key} if key else {})


class Histories:
    """A database, and the exact tables of its histories."""

    def __init__(self, content: Job) -> None:
        self.content = content
        job = self.job(1.0, 0, "ledger")
        self.name = next(one.called for one in job.link if one.order)
        self.tables: HistoryTables = self.piece(job).history  # type: ignore[assignment]
        self.exact = self.figures(job)

    def job(self, epsilon: float, seed: int, folder: str, ordered: bool = True) -> dp_job.Job:
        privacy = {"epsilon": epsilon, "delta": DELTA, "ledger": f"{folder}/ledger.sqlite", "dataset": "benchmark"}
        content = self.content | {"privacy": privacy, "engine": {"scheduler": "synchronous", "seed": seed}}
        if not ordered:
            content = {key: one for key, one in content.items() if key != "rule"}
            links = [{key: one for key, one in link.items() if key not in ("order_by", "parents")}
                     for link in content["link"]]  # fmt: skip
            content = content | {"link": links}
        return dp_job.Job.parse(content, Path())

    def piece(self, job: dp_job.Job) -> LinkBudget:
        link = next(one for one in job.link if one.called == self.name)
        return LinkBudget(job, neighbour_relation(job), link)

    def figures(self, job: dp_job.Job, as_written: bool = False) -> tuple[np.ndarray, float, int]:
        """Return unweighted lag-1 tables, mean span and broken rules of the rows that a job reads.

        `as_written` orders rows of equal cells by their place in the files.
        """
        engine = resolve(scheduler="synchronous")
        try:
            links: ExactLinks = read_links(engine, job, self.piece(job).link, neighbour_relation(job))
        finally:
            engine.close()
        if as_written:
            order = np.argsort(links.children[:, self.tables.order], kind="stable")
            links.ranks[order] = np.arange(len(order))
        rows, parents = links.history()
        counts = step_counts(rows, parents, self.tables) / np.repeat(self.tables.weights, np.diff(self.tables.starts))
        first = np.flatnonzero(np.r_[True, parents[1:] != parents[:-1]])
        dates = rows[:, self.tables.order]
        return counts, float((dates[np.r_[first[1:], len(dates)] - 1] - dates[first]).mean()), self.broken(links)

    def broken(self, links: ExactLinks) -> int:
        """Return the number of links that break a rule of the database."""
        job = self.job(1.0, 0, "ledger")
        link = self.piece(job).link
        cells = {}
        for table, codes, rows in (
            (link.parent, links.parents, links.rows[:, 0]),
            (link.child, links.children, links.rows[:, 1]),
        ):
            cells |= {f"{table}.{name}": codes[rows, i] for i, name in enumerate(job.domains[table].names)}
        rules = job.linked_rules.get(link.called, [])
        return int(np.any([one.rule.broken(cells.__getitem__) for one in rules], axis=0).sum()) if rules else 0

    def released(self, epsilon: float, seed: int, ordered: bool) -> tuple[np.ndarray, float, int, float]:
        """Return the figures of a release, and the standard deviation of the noise of its weighted tables."""
        with tempfile.TemporaryDirectory() as folder:
            job = self.job(epsilon, seed, folder, ordered)
            path = f"{folder}/run"
            dp.run(job.to_dict(), path)
            run = open_run(path).content
            sigma = LinkBudget(run.closed_job, run.neighbours, self.piece(run.job).link).steps_draw(
                self.tables).lattice_variance**0.5 if ordered else 0.0  # fmt: skip
            again = {key: one for key, one in self.content.items() if key != "rule"} | {
                "privacy": {"privacy_cost": 1.0, "dataset": "benchmark"}
            }
            again["tables"] = {name: one if one.get("public") else one | {"path": f"{path}/synthetic/{name}/*.parquet"}
                               for name, one in self.content["tables"].items()}  # fmt: skip
            again["link"] = [one if "order_by" not in one else one | {"order_by": one["order_by"][0]}
                             for one in self.content["link"]]  # fmt: skip
            return *self.figures(dp_job.Job.parse(again, Path()), as_written=True), sigma

    def distances(self, counts: np.ndarray) -> np.ndarray:
        """Return the total variation of every lag-1 table."""
        true = self.exact[0]
        cells = [slice(a, b) for a, b in zip(self.tables.starts[:-1], self.tables.starts[1:], strict=True)]
        return np.array([np.abs(_share(counts[one]) - _share(true[one])).sum() / 2 for one in cells])

    def direct(self, sigma: float, rng: np.random.Generator) -> np.ndarray:
        """Return the distances of noisy counts whose weighted tables have this noise."""
        weights = np.repeat(self.tables.weights, np.diff(self.tables.starts))
        return self.distances(self.exact[0] + rng.normal(0, sigma, len(weights)) / weights)

    def alone(self, sigma: float, rng: np.random.Generator) -> np.ndarray:
        """Return the distances of noisy counts if only the tables of each attribute with itself are released."""
        squared = (self.tables.weights**2).sum() / len(self.tables.sizes)
        return self.distances(self.exact[0] + rng.normal(0, sigma / squared**0.5, len(self.exact[0])))


def _share(counts: np.ndarray) -> np.ndarray:
    positive = np.maximum(counts, 0.0)
    return positive / max(positive.sum(), 1.0)


def print_histories() -> None:
    parser = base.command_parser(__doc__)
    parser.add_argument("--data", nargs="*", default=list(DATABASES), choices=DATABASES)
    parser.add_argument("--epsilons", nargs="+", type=float, default=[1.0, 2.0, 4.0])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    if not DATA.exists():
        raise SystemExit(f"{DATA} is not there: real data does not travel with dpscale")
    with one_thread():
        for name in arguments.data:
            with tempfile.TemporaryDirectory() as folder:
                histories = Histories(DATABASES[name](Path(folder)))
                for epsilon in arguments.epsilons:
                    report(name, histories, epsilon, arguments.seeds)


def report(name: str, histories: Histories, epsilon: float, seeds: int) -> None:
    start, rng = time.perf_counter(), np.random.default_rng(0)
    found = [histories.released(epsilon, seed, True) for seed in range(seeds)]
    other = [histories.released(epsilon, seed, False) for seed in range(seeds)]
    same = np.array([i == j for i, j in histories.tables.pairs])
    ours = np.mean([histories.distances(one[0]) for one in found], axis=0)
    without = np.mean([histories.distances(one[0]) for one in other], axis=0)
    noisy = np.mean([histories.direct(one[3], rng) for one in found], axis=0)
    alone = np.mean([histories.alone(one[3], rng) for one in found], axis=0)
    span = histories.exact[1]
    figures = [
        f"lag-1 tables, same attribute {ours[same].mean():.3f} (largest {ours[same].max():.3f}; measured"
        f" {noisy[same].mean():.3f}, alone {alone[same].mean():.3f}, without order {without[same].mean():.3f}, largest"
        f" ratio to measured {(ours / noisy)[same].max():.2f}, to alone {(ours / alone)[same].max():.2f})",
        f"others {ours[~same].mean():.3f} (measured {noisy[~same].mean():.3f}, without order"
        f" {without[~same].mean():.3f}, largest ratio to measured {(ours / noisy)[~same].max():.2f})",
        f"span {np.mean([one[1] for one in found]) / span:.3f} of {span:.2f} (without order"
        f" {np.mean([one[1] for one in other]) / span:.3f})",
        f"broken {max(one[2] for one in found)} (without rules {max(one[2] for one in other)},"
        f" data {histories.exact[2]})",
    ]
    print(f"{name}, ε = {epsilon:g}: {'; '.join(figures)} ({time.perf_counter() - start:.0f} s)", flush=True)


def release(
    frame: pd.DataFrame, mechanism: str, degree: int, epsilon: float, targets: int, sizes: dict[str, int] | None = None
) -> tuple[dp.Release, pd.DataFrame]:
    """Release the marginals of `targets` attributes, and as many rows as records."""
    domain = dp.Domain(sizes or {name: int(frame[name].max()) + 1 for name in frame})
    sets = [list(names) for names in combinations(frame.columns, targets)]
    options = {} if mechanism == "weighted-residuals" else {"degree": degree}
    plan = dp.plan(sets, domain, mechanism, epsilon=epsilon, delta=1e-9, dataset=f"laws-{time.time_ns()}", **options)
    made = dp.run(plan, data=frame, fresh=True)
    request_rows(made._run.table, len(frame))
    run_stages(made._run, only="synthesize")
    return made, dp.Release.open(made.path).synthetic().compute(scheduler="threads")[list(frame.columns)]


COMMANDS = {
    "errors": print_errors,
    "classes": print_classes,
    "usefulness": print_usefulness,
    "targets": print_targets,
    "declared_parents": print_declared_parents,
    "rules": print_rules,
    "histories": print_histories,
}

if __name__ == "__main__":
    base.run_command(COMMANDS, __doc__)
