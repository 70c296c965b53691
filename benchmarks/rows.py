"""Synthetic rows: their 3-way errors compared with those of the estimates they are drawn from; δ = 1e-9.

Error: mean over all 3-way marginals of ‖rows' counts − counts‖₁ / N. The floor is that of as many records drawn from
the estimate of each set by itself. CPU seconds are of learning and drawing only, on one core. Real tables are in
../shared/data and are not part of dpscale.

    python benchmarks/rows.py [--tables adult acs salary titanic] [--epsilons 0.1 1 10] [--seeds 3] [--parts 1 4]
        --speed                rows per second of the drawing loop, by attributes
        --save                 save the errors in results/

Published for Adult, ε = 1: AIM by Private-PGM 0.179 in 349 s, dpsynth's SWIFT 0.180 in 302 s, MST 0.226 in 41 s.
"""

from __future__ import annotations

import argparse
import time
from itertools import chain, combinations, product

import base
import numpy as np
from adaptive import add_table_options, complete_model, load_tables, run_adaptive
from base import CONSTRUCTED, KEPT, LINKED, Table, construct_table, write_generated as generate_table

from dpscale.mechanisms.aim_grem import Options
from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.pairwise import CellDistribution, PairwiseModel, learn, pair_targets
from dpscale.synthesis.cells import refine_to_cells
from dpscale.synthesis.draw import RowPart, draw, one_way_counts, tree_start
from dpscale.synthesis.one_way_rounding import match_one_ways
from dpscale.synthesis.set_targets import SetTargets, set_targets

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
        table = generate_table(shape)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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


if __name__ == "__main__":
    main()
