"""Products of listed queries as candidates of `aim-grem` and `aim-pgm`, compared with candidates scored on cells.

Each workload has --products products over two or three attributes of a table, with 1 to 6 random predicates (ranges
and sets of cells) for each attribute. Error: mean over the products of Σ |answer − exact answer| / N, averaged over
seeds. "cells" scores candidates and groups cells as for marginals. "answers" scores the L1 distance of all answers over
its sensitivity, the largest column norm. Tables of ../shared/data are not part of dpscale.

    python benchmarks/query_candidates.py [--tables adult salary] [--epsilons 0.1 1 10] [--seeds 3] [--products 60]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
from base import Names, Table, load_table

from dpscale import Domain, Workload
from dpscale.measurement.adaptive import run
from dpscale.mechanisms import aim_grem, aim_pgm
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.privacy import gdp_mu
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.privacy.streams import seeded_secret
from dpscale.workload.query_classes import QueryCandidates
from dpscale.workload.residual.in_axis import Groups

DELTA = 1e-9
MECHANISMS: dict[str, Any] = {"aim-grem": aim_grem, "aim-pgm": aim_pgm}


def random_workload(table: Table, products: int, seed: int) -> tuple[Workload, list[tuple[Names, list[np.ndarray]]]]:
    """Return a workload of random products, and the attributes and matrices of each."""
    rng = np.random.default_rng([seed, products])
    workload, drawn = Workload(Domain(dict(table.sizes))), []
    for _ in range(products):
        chosen = set(rng.choice(len(table.names), int(rng.integers(2, 4)), replace=False).tolist())
        names = tuple(name for number, name in enumerate(table.names) if number in chosen)
        matrices = [random_predicates(rng, table.sizes[name]) for name in names]
        workload = workload.add_product(dict(zip(names, matrices, strict=True)))
        drawn.append((names, matrices))
    return workload, drawn


def random_predicates(rng: np.random.Generator, size: int) -> np.ndarray:
    """Return 1 to 6 ranges of cells, or sets of cells on an attribute of at most 20, shape (m, size)."""
    rows = []
    for _ in range(int(rng.integers(1, 7))):
        low, high = sorted(rng.integers(0, size, 2).tolist())
        is_range = size > 20 or rng.random() < 0.5
        rows.append((np.arange(size) >= low) & (np.arange(size) <= high) if is_range else rng.random(size) < 0.4)
    return np.array(rows, dtype=float)


def answer(marginal: np.ndarray, matrices: list[np.ndarray]) -> np.ndarray:
    for axis, matrix in enumerate(matrices):
        marginal = np.moveaxis(np.tensordot(matrix, marginal, axes=(1, axis)), 0, axis)
    return marginal


@dataclass(frozen=True, eq=False)
class AnswerDistance:
    """L1 distance of the answers to several products over the largest number of queries that count one record."""

    products: Sequence[list[np.ndarray]]
    noise_factor: float

    def distance(self, differences: np.ndarray) -> int:
        norms = sum(reduce(np.multiply.outer, [np.abs(one).sum(axis=0) for one in own]) for own in self.products)
        total = sum(float(np.abs(answer(differences, own)).sum()) for own in self.products)
        return int(total / max(np.max(norms), 1))


class AnswerCandidates(QueryCandidates):
    """Candidates that are scored on their answers."""

    def _classes(self, names: Names, groups: tuple[Groups, ...]) -> Any:
        classes = super()._classes(names, groups)
        listed = [(part, own) for part, own in self.listed if set(names) <= set(own)]
        products = [[self._over_groups(part, own, name, one) for name, one in zip(names, groups, strict=True)]
                    for part, own in listed]  # fmt: skip
        return None if classes is None else AnswerDistance(products, classes.noise_factor)


def mean_error(table: Table, mechanism: str, epsilon: float, seed: int, products: int, scored: str) -> float:
    """Return the mean over the products of the L1 error of the answers over the number of records."""
    workload, drawn = random_workload(table, products, seed)
    module = MECHANISMS[mechanism]
    problem = PlanningProblem(workload, Budget(GAUSSIAN, float(gdp_mu(epsilon, DELTA)) ** 2))
    made = module.plan(problem, module.Options())
    own = made.setting.queries
    queries = {"classes": own, "cells": None, "answers": AnswerCandidates(own.domain, own.listed, own.by_cells)}
    made = replace(made, setting=replace(made.setting, queries=queries[scored]))
    state = run(made, table.counts, seeded_secret(seed))
    errors = [np.abs(answer(state.marginal(names), own) - answer(table.counts(names), own)).sum()
              for names, own in drawn]  # fmt: skip
    return float(np.mean(errors)) / table.counts(()).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="*", default=["adult", "salary"])
    parser.add_argument("--epsilons", nargs="*", type=float, default=[0.1, 1.0, 10.0])
    parser.add_argument("--mechanisms", nargs="*", default=["aim-grem"], choices=list(MECHANISMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--products", type=int, default=60)
    options = parser.parse_args()
    print("table, mechanism, ε: error with classes; ratio to cells and to answers")
    for name in options.tables:
        table = load_table(name)
        for mechanism in options.mechanisms:
            for epsilon in options.epsilons:
                found = {
                    scored: np.mean([mean_error(table, mechanism, epsilon, seed, options.products, scored)
                                     for seed in range(options.seeds)])
                    for scored in ("classes", "cells", "answers")
                }  # fmt: skip
                ratios = ", ".join(f"{found['classes'] / found[other]:.3f}" for other in ("cells", "answers"))
                print(f"{name:8} {mechanism} ε = {epsilon:g}: {found['classes']:.5f}; {ratios}", flush=True)


if __name__ == "__main__":
    main()
