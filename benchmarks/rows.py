"""Synthetic rows: their 3-way errors beside those of the estimates they are drawn from; δ = 1e-9.

Error: mean over all 3-way marginals of ‖rows' counts − counts‖₁ / N. CPU seconds are of learning and drawing alone, on
one core. Real tables are in ../shared/data and do not travel with dpscale.

    python benchmarks/rows.py [--tables adult acs salary titanic] [--epsilons 0.1 1 10] [--seeds 3] [--parts 1 4]
        --speed                rows a second of the drawing loop, by attributes
        --save                 keep the errors in results/
Reported elsewhere, Adult, ε = 1: AIM by Private-PGM 0.179 in 349 s, dpsynth's SWIFT 0.180 in 302 s, MST 0.226 in 41 s.
"""

from __future__ import annotations

import argparse
import time
from itertools import chain, combinations, product

import numpy as np
import results
from adaptive import LEARNING_BYTES, LEARNING_STEPS, adaptive, tables, which
from marginal_tables import CONSTRUCTED, Table, constructed, generated

from dpscale.mechanisms.aim_grem import Options
from dpscale.privacy.streams import PublicStream
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.pairwise.learn import (
    PairwiseModel,
    add_triples,
    complete_pairs,
    learn,
    learning_steps,
    missing_triples,
)
from dpscale.reconstruction.pairwise.pairs import CellDistribution, pair_targets
from dpscale.synthesis.cells import refine_to_cells
from dpscale.synthesis.draw import RowPart, draw
from dpscale.synthesis.one_way_rounding import match_one_ways
from dpscale.synthesis.three_way import ThreeWayTargets, three_way_targets
from dpscale.synthesis.tree import tree_start

MEMORY = 4 << 30
SHOWN = {("adult", 0.1), ("adult", 1.0), ("adult", 10.0), ("acs", 1.0), ("salary", 1.0), ("titanic", 1.0)}


def rows_of(
    model: LowOrder, learnt: PairwiseModel, release: str, count: int, parts: int, held: ThreeWayTargets | None = None
) -> np.ndarray:
    """All rows over cells. `held`: what polished ones are held to over three attributes."""
    drawn = []
    for number in range(parts):
        part = RowPart(count, parts, number)
        own = draw(learnt, part, release, held)
        cells = CellDistribution(model.groups, model.ones, model.rules)
        drawn.append(
            match_one_ways(
                learnt.targets,
                cells,
                refine_to_cells(learnt.targets, cells, own, PublicStream(release, "cells", number)),
            )
        )
    return np.concatenate(drawn)


def error(table: Table, rows: np.ndarray, degree: int = 3, most: int = 400) -> float:
    """Of the rows' marginals, as they are."""
    every = list(combinations(range(len(table.names)), degree))
    every = every[:: -(-len(every) // most)]
    found = []
    for kept in every:
        truth = table.counts(tuple(table.names[i] for i in kept))
        cells = np.zeros(len(rows), np.int64)
        for i in kept:
            cells = cells * table.sizes[table.names[i]] + rows[:, i]
        found.append(np.abs(np.bincount(cells, minlength=truth.size).reshape(truth.shape) - truth).sum() / table.rows)
    return float(np.mean(found))


def of_estimates(table: Table, model: LowOrder, degree: int, most: int = 400) -> float:
    every = tuple(combinations(table.names, degree))
    return table.error(model.marginal, every[:: -(-len(every) // most)])


def off_ones(table: Table, model: LowOrder, rows: np.ndarray) -> float:
    """The largest distance of a 1-way of the rows from the released one, L1 / N."""
    found = [np.abs(np.bincount(rows[:, i], minlength=table.sizes[name]) / len(rows) - model.ones[name] / model.total)
             for i, name in enumerate(table.names)]  # fmt: skip
    return float(max(one.sum() for one in found))


def released_model(table: Table, model: LowOrder, release: str) -> LowOrder:
    """The estimates of a job by `maxent`: completed by one model of all pairs where that takes about a minute."""
    asked = pair_targets(model, LEARNING_BYTES)
    if learning_steps(asked) > LEARNING_STEPS:
        return model
    learnt = learn(asked, release)
    return add_triples(complete_pairs(model, learnt), learnt, missing_triples(model, table.targets), release)


def compare(table: Table, epsilon: float, seeds: range, parts: list[int]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for seed in seeds:
        release = f"seed {seed}"
        model = released_model(table, adaptive(table, epsilon, seed, Options()).fit.model, release)
        began = time.process_time()
        learnt = learn(pair_targets(model, MEMORY), release, start=tree_start)
        found.setdefault("learning, CPU s", []).append(time.process_time() - began)
        for degree in (2, 3):
            found.setdefault(f"estimates, {degree}-way", []).append(of_estimates(table, model, degree))
        began = time.process_time()
        threes = three_way_targets(learnt, model, release, MEMORY)
        found.setdefault("threes, CPU s", []).append(time.process_time() - began)
        for count, (kind, held) in product(parts, {"": None, "polished ": threes}.items()):
            began = time.process_time()
            rows = rows_of(model, learnt, release, round(model.total), count, held)
            found.setdefault(f"drawing {kind}{count} parts, CPU s", []).append(time.process_time() - began)
            for degree in (2, 3):
                found.setdefault(f"{kind}rows in {count} parts, {degree}-way", []).append(error(table, rows, degree))
            found.setdefault(f"{kind}rows in {count} parts, 1-way from released", []).append(
                off_ones(table, model, rows)
            )
    means = {name: float(np.mean(values)) for name, values in found.items()}
    line = ", ".join(f"{name} {value:.4g}" for name, value in means.items())
    print(f"{table.name}, epsilon {epsilon:g}: {line}", flush=True)
    return means


def speed() -> None:
    """Rows a second of drawing (sweeps over all pairs, counts and cells), on one core; what polish makes of it."""
    for shape in ("census", "loans"):
        table = generated(shape)
        model = adaptive(table, 1.0, 100, Options()).fit.model
        began = time.process_time()
        learnt = learn(pair_targets(model, MEMORY), "speed", start=tree_start)
        learned, count = time.process_time(), 50_000
        rows_of(model, learnt, "speed", count, 1)
        drawn = time.process_time()
        rows_of(model, learnt, "speed", count, 1, three_way_targets(learnt, model, "speed", MEMORY))
        polished = time.process_time()
        print(f"{shape}: {len(table.names)} attributes, learning {learned - began:.1f} CPU s, {count:,} rows in "
              f"{drawn - learned:.1f} CPU s, {count / (drawn - learned):,.0f} rows/s; polished in "
              f"{polished - drawn:.1f} CPU s", flush=True)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which(parser)
    parser.add_argument("--constructed", nargs="*", default=[], choices=CONSTRUCTED)
    parser.add_argument("--parts", type=int, nargs="+", default=[1])
    for flag in ("speed", "save"):
        parser.add_argument(f"--{flag}", action="store_true")
    asked = parser.parse_args()
    if asked.speed:
        speed()
        return
    kept = {}
    for table in chain(tables(asked.tables, asked.data), map(constructed, asked.constructed)):
        for epsilon in asked.epsilons:
            seeds = range(asked.first_seed, asked.first_seed + asked.seeds)
            means = compare(table, epsilon, seeds, asked.parts)
            if (table.name, epsilon) in SHOWN:
                shown = {"estimates": "estimates", "rows": "polished rows in 1 parts", "unpolished": "rows in 1 parts"}
                kept |= {f"{table.name}, {epsilon:g}, {name}": means[f"{of}, 3-way"] for name, of in shown.items()}
            if (table.name, epsilon) == ("adult", 1.0):
                kept["unpolished seconds"] = means["learning, CPU s"] + means["drawing 1 parts, CPU s"]
                polishing = ("learning, CPU s", "threes, CPU s", "drawing polished 1 parts, CPU s")
                kept["seconds"] = sum(means[name] for name in polishing)
    if asked.save:
        results.save("rows", kept)


if __name__ == "__main__":
    main()
