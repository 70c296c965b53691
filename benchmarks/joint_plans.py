"""Plans of joint and arbitrary queries over the optimum of all matrix mechanisms, with an independent check.

Prints for each workload the cells, CPU seconds of planning, the root mean square error at unit cost, its ratio to the
plan's own bound over all mechanisms, and its ratio to an independent bound. The error is recomputed from the explicit
strategy by a pseudoinverse, after its largest column norm is checked. The independent bound is the dual
(tr (F diag μ Fᵀ)^½)², with μ found by scipy's L-BFGS, or the semidefinite program in cvxpy up to 40 cells.

    python benchmarks/joint_plans.py [--random 40] [--large] [--save]
        --large   also the named workloads above 1,000 cells, without the independent bound
"""

from __future__ import annotations

import argparse
import math
import os
import time
from itertools import combinations
from typing import Any

import base
import numpy as np
from scipy.optimize import minimize

import dpscale as dp
from dpscale.base.numerics import Floats
from dpscale.optimize.implicit_workload import explicit_gram
from dpscale.workload import root_of
from tests.oracles import explicit_strategy

FAMILIES = ("affine", "abs", "random", "prefix", "range", "marginal", "circular")
JOINT = ("affine", "abs", "random")
SEMIDEFINITE_CELLS, INDEPENDENT_CELLS = 40, 1000


def made(sizes: tuple[int, ...], *parts: tuple[str, int]) -> dp.Workload:
    workload = dp.Workload(dp.Domain({f"x{i}": size for i, size in enumerate(sizes)}))
    for family, degree in parts:
        workload.add(family, degree=degree)
    return workload


def signs(sizes: tuple[int, ...], queries: int, seed: int = 1) -> dp.Workload:
    """Return random ±1 queries, divided among all pairs of attributes."""
    workload, rng = made(sizes), np.random.default_rng(seed)
    pairs = list(combinations(workload.domain.names, 2))
    for pair in pairs:
        workload.add_queries(pair, rng.choice([-1, 1], (queries // len(pairs), *workload.domain.shape(pair))))
    return workload


NAMED = {
    "affine + abs [8,8,8]": made((8, 8, 8), ("affine", 2), ("abs", 2)),
    "affine + 3-way prefix [8,8,8]": made((8, 8, 8), ("affine", 2), ("prefix", 3)),
    "affine + abs [7,7,9]": made((7, 7, 9), ("affine", 2), ("abs", 2)),
    "affine [6,8,9]": made((6, 8, 9), ("affine", 2)),
    "90 signs [7,8,9]": signs((7, 8, 9), 90),
    "90 signs [8,9,6]": signs((8, 9, 6), 90),
    "affine + abs [10,10,10]": made((10, 10, 10), ("affine", 2), ("abs", 2)),
    "90 signs [10,10,10]": signs((10, 10, 10), 90),
}


def predicates(size: int) -> dp.Workload:
    """Return five ranges of an attribute."""
    fifth = size // 5
    ranges = [f"x0 in 0..{fifth - 1}", f"x0 in {fifth // 2}..{fifth + fifth // 2 - 1}", f"x0 >= {4 * fifth}", "total",
              f"x0 in {2 * fifth}..{3 * fifth - 1}"]  # fmt: skip
    return made((size,)).add_product({"x0": ranges})


def groups(size: int, number: int) -> dp.Workload:
    """Return the counts of groups of the values of an attribute, drawn at random, by another attribute."""
    group = np.random.default_rng(3).integers(0, number, size)
    matrix = (group[None] == np.arange(number)[:, None]).astype(float)
    return made((size, 2)).add_product({"x0": matrix, "x1": "identity"})


LARGE = {
    "5 ranges [5000]": predicates(5000),
    "x < 20 or y >= 150 [200,200]": made((200, 200)).add_conditions(["x0 < 20 or x1 >= 150", "total"]),
    "300 groups of 70,000 codes": groups(70_000, 300),
    "abs [40,40]": made((40, 40), ("abs", 2)),
    "affine + abs [12,12,13]": made((12, 12, 13), ("affine", 2), ("abs", 2)),
    "90 signs [12,12,13]": signs((12, 12, 13), 90),
    "900 signs [12,12,13]": signs((12, 12, 13), 900),
    "affine [20,20,20]": made((20, 20, 20), ("affine", 2)),
    "abs + prefix [30,30,20]": made((30, 30, 20), ("abs", 2), ("prefix", 1)),
    "240 signs [15]^4": signs((15,) * 4, 240),
    "affine + abs [10]^5": made((10,) * 5, ("affine", 2), ("abs", 2)),
}


def drawn(seed: int) -> dp.Workload:
    """Return a random workload with at least one joint family on 12 to 500 cells."""
    rng = np.random.default_rng(seed)
    while True:
        sizes = tuple(int(size) for size in rng.integers(2, 11, rng.integers(2, 5)))
        if 12 <= math.prod(sizes) <= 500:
            break
    parts = [(str(rng.choice(JOINT)), 2)]
    for _ in range(int(rng.integers(0, 3))):
        family = str(rng.choice(FAMILIES))
        parts.append((family, 2 if family in JOINT else int(rng.integers(1, len(sizes) + 1))))
    return made(sizes, *dict.fromkeys(parts))


def explicit_error(plan: Any, gram: Floats) -> float:
    """Return tr(G (AᵀA)⁺) of the plan's explicit strategy; exit if a column is longer than 1."""
    strategy = explicit_strategy(plan, [block.unit_variance for block in plan.blocks])
    if (strategy**2).sum(axis=0).max() > 1 + 1e-9:
        raise SystemExit(f"{plan}: the largest column norm is above 1")
    return float((gram * np.linalg.pinv(strategy.T @ strategy, rcond=1e-11, hermitian=True)).sum())


def independent_bound(gram: Floats) -> float:
    """Return a lower bound of tr(G X⁺) over diag(X) ≤ 1, by another solver than the planner's."""
    scale = float(np.trace(gram))
    rows = root_of(gram / scale)
    return scale * (_by_cvxpy(gram / scale) if len(gram) <= SEMIDEFINITE_CELLS else _by_descent(rows))


def _by_cvxpy(gram: Floats) -> float:
    import cvxpy as cp

    rows, size = root_of(gram), len(gram)
    strategy, inverse = cp.Variable((size, size), PSD=True), cp.Variable((len(rows), len(rows)), symmetric=True)
    problem = cp.Problem(cp.Minimize(cp.trace(inverse)),
                         [cp.bmat([[strategy, rows.T], [rows, inverse]]) >> 0, cp.diag(strategy) <= 1])  # fmt: skip
    return float(problem.solve(solver=cp.CLARABEL)) * (1 - 1e-6)


def _by_descent(rows: Floats) -> float:
    def value(logs: Floats) -> tuple[float, Floats]:
        weights = np.exp(logs - logs.max())
        weights /= weights.sum()
        _, sigma, right = np.linalg.svd(rows * np.sqrt(weights), full_matrices=False)
        half = np.einsum("rc,rc,r->c", right, right, sigma)  # d trace / d log weights, times 2
        return -float(np.log(sigma.sum())), -(half / sigma.sum() - weights) / 2

    start = np.zeros(rows.shape[1])
    found = minimize(value, start, jac=True, method="L-BFGS-B", options={"maxiter": 300, "maxcor": 30})
    return float(np.exp(-2 * found.fun))


def compare(name: str, workload: dp.Workload, independent: bool = True) -> tuple[float, float, float]:
    """Print one row; return the ratios to both bounds (the second is 1 if it is not computed) and the seconds."""
    started = time.process_time()
    plan = dp.plan(workload)
    seconds, bound = time.process_time() - started, plan.bound_all or math.nan
    cells, other, other_bound = workload.domain.cells(workload.domain.names), math.nan, math.nan
    if independent:
        _, gram = explicit_gram(workload)
        other = math.sqrt(explicit_error(plan, gram) / workload.query_count)
        other_bound = math.sqrt(independent_bound(gram) / workload.query_count)
        if abs(other / plan.rmse() - 1) > 1e-6:
            raise SystemExit(f"{name}: the plan says {plan.rmse()}, its explicit strategy has {other}")
    above, checked = plan.rmse() / bound, plan.rmse() / other_bound
    print(f"{name:<40} {cells:>6} cells {seconds:7.1f} s  RMSE {plan.rmse():8.4f}  over the plan's bound {above:.5f}"
          f"  over the independent bound {checked:.5f}", flush=True)  # fmt: skip
    return above, checked, seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--random", type=int, default=40)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    os.environ["DPSCALE_STORE"] = "off"
    figures: dict[str, float] = {}
    for name, workload in NAMED.items():
        figures[f"{name}, above"], figures[f"{name}, checked"], figures[f"{name}, seconds"] = compare(name, workload)
    for name, workload in LARGE.items() if arguments.large else ():
        figures[f"{name}, above"], _, figures[f"{name}, seconds"] = compare(name, workload, independent=False)
    found = [compare(f"random workload {seed}", drawn(seed)) for seed in range(arguments.random)]
    if found:
        figures["random, above"], figures["random, checked"], _ = np.max(found, axis=0).tolist()
        print(f"{len(found)} random workloads: at most {figures['random, above']:.5f} times the plan's bound and "
              f"{figures['random, checked']:.5f} times the independent bound")  # fmt: skip
    if arguments.save:
        base.save("joint_plans", figures)


if __name__ == "__main__":
    main()
