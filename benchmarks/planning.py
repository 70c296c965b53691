"""Plans of small problems and single steps of planning and selecting.

python benchmarks/planning.py small_domains          # errors of default plans against the exact optimum
python benchmarks/planning.py product_tasks [--workers 1 8 16 24 64] [--size 64]
python benchmarks/planning.py selection [--candidates 20000 100000 1000000] [--draws 2000] [--codes 1000000]
python benchmarks/planning.py query_candidates [--tables adult salary] [--epsilons 0.1 1 10] [--seeds 3]
python benchmarks/planning.py largest_errors [--save]        # objective = "max" against "sum"
python benchmarks/planning.py census_products [--products 300] [--mechanisms weighted-residuals hdmm] [--save]
python benchmarks/planning.py weighted_fourier       # joint residuals by FFT, against dense strategies and the optimum
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from heapq import heapify, heapreplace
from itertools import combinations
from time import perf_counter
from typing import Any

import base
import numpy as np
from base import Names, Table, load_table

import dpscale as dp
from dpscale import Domain, Workload
from dpscale.base.numerics import one_thread
from dpscale.measurement.adaptive import Distances, Scores, run, select_candidates
from dpscale.mechanisms import aim_grem, aim_pgm, weighted_fourier
from dpscale.mechanisms.aim.decision import AimSelection
from dpscale.mechanisms.contract import PlanningProblem
from dpscale.mechanisms.eigen_design import choose_design
from dpscale.optimize.implicit_workload import Implicit, implicit
from dpscale.optimize.lower_bounds import exact_floor
from dpscale.optimize.opt_kronecker import optimise_product, optimise_union
from dpscale.privacy import gdp_mu
from dpscale.privacy.accounting import GAUSSIAN, Budget
from dpscale.privacy.selection import Urn
from dpscale.privacy.streams import KeyedStream, open_stream, seeded_secret
from dpscale.reconstruction.consistency import NoisyCounts, non_negative_counts
from dpscale.workload import PREFIX, RANGE, decompose
from dpscale.workload.query_classes import QueryCandidates
from dpscale.workload.residual import Groups, by_mass, every_cell


def make_workload(sizes: tuple[int, ...], *parts: tuple[str, int]) -> dp.Workload:
    made = dp.Workload(dp.Domain({f"x{i}": size for i, size in enumerate(sizes)}))
    for family, degree in parts:
        made.add(family, degree=degree)
    return made


ROWS = {
    "[4]^3 2-way prefix": make_workload((4,) * 3, ("prefix", 2)),
    "[4]^4 3-way prefix": make_workload((4,) * 4, ("prefix", 3)),
    "[3]^5 3-way prefix": make_workload((3,) * 5, ("prefix", 3)),
    "[6]^3 2-way prefix": make_workload((6,) * 3, ("prefix", 2)),
    "[6]^3 3-way prefix": make_workload((6,) * 3, ("prefix", 3)),
    "[4]^4 2-way range": make_workload((4,) * 4, ("range", 2)),
    "[5]^3 1-way prefix": make_workload((5,) * 3, ("prefix", 1)),
    "affine 4 x 4": make_workload((4, 4), ("affine", 2)),
    "abs 4 x 4": make_workload((4, 4), ("abs", 2)),
    "random 4 x 4": make_workload((4, 4), ("random", 2)),
    "marginal of 20": make_workload((20,), ("marginal", 1)),
    "all cells of [4]^3": make_workload((4,) * 3, ("marginal", 3)),
    "range of 64": make_workload((64,), ("range", 1)),
}


def print_small_domains() -> None:
    base.command_parser(__doc__).parse_args()
    os.environ["DPSCALE_STORE"] = "off"
    heads = ("weighted/optimum", "smasher/optimum", "weighted/hdmm", "smasher/hdmm", "Laplace: w/hdmm", "s/hdmm")
    print(f"{'RMSE':<20} " + " ".join(f"{head:>16}" for head in heads))
    for name, workload in ROWS.items():
        least = (exact_floor(workload) / workload.query_count) ** 0.5
        found = [errors(workload, noise) for noise in ("gaussian", "laplace")]
        cells = [found[0][0] / least, found[0][1] / least, *(own / hdmm for *both, hdmm in found for own in both)]
        print(f"{name:<20} " + " ".join(f"{cell:16.5f}" for cell in cells), flush=True)
    print("\nsquared error of the designs of eigen-design over that of the full one")
    for family, size in ((PREFIX, 24), (PREFIX, 512), (RANGE, 24), (RANGE, 100)):
        choice = choose_design(family.gram(size))
        listed = "; ".join(f"{name} {ratio:.3f}" for name, ratio in choice.errors.items())
        print(f"{family.name} of {size}: {choice.name} is chosen: {listed}")


def errors(workload: dp.Workload, noise: str) -> list[float]:
    """Return the RMSE of weighted-residuals, query-smasher and hdmm."""
    mechanisms = ("weighted-residuals", "query-smasher", "hdmm")
    return [dp.plan(workload, mechanism, noise=noise).rmse() for mechanism in mechanisms]


def union_of_ten(size: int) -> Implicit:
    """Return ten products of prefix and range queries over some of eight attributes of about `size` cells."""
    rng = np.random.default_rng(0)
    workload = Workload(Domain({f"x{i}": size + i for i in range(8)}))
    for number in range(10):
        names = [name for name in workload.domain.names if rng.random() < 0.6]
        workload.add("range" if number % 2 else "prefix", attributes=[names])
    return implicit(workload)


def timed(sweeps: list[list[float]]) -> Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]:
    """Return a serial map that notes the seconds of its tasks, one list for each call."""

    def each(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        results, seconds = [], []
        for item in items:
            start = time.perf_counter()
            results.append(function(item))
            seconds.append(time.perf_counter() - start)
        sweeps.append(seconds)
        return results

    return each


def makespan(seconds: list[float], workers: int) -> float:
    """Return the time of a list scheduler for independent tasks."""
    free = [0.0] * workers
    heapify(free)
    for own in seconds:
        heapreplace(free, free[0] + own)
    return max(free)


def show(name: str, sweeps: list[list[float]], workers: list[int]) -> None:
    """Print the number of tasks and, for every number of workers, those that are busy."""
    work, tasks = sum(map(sum, sweeps)), [len(one) for one in sweeps]
    print(f"{name}: {sum(tasks)} tasks in {len(sweeps)} calls ({tasks[0]} in the first), {work:.2f} s")
    for number in workers:
        whole = sum(makespan(one, number) for one in sweeps)
        print(f"    {number:3} workers: {work / whole:5.1f} busy, {whole:.2f} s")


def print_product_tasks() -> None:
    parser = base.command_parser(__doc__)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 8, 16, 24, 64])
    parser.add_argument("--size", type=int, default=64)
    given = parser.parse_args()
    union = union_of_ten(given.size)
    for noise in ("gaussian", "laplace"):
        together: list[list[float]] = []
        for name, search in (("OPT⊗", optimise_product), ("OPT+", optimise_union)):
            sweeps: list[list[float]] = []
            with one_thread():
                search(union, noise, timed(sweeps))
            together += sweeps
            show(f"{name} {noise}", sweeps, given.workers)
        show(f"both, as hdmm searches, {noise}", together, given.workers)


SCALE = Fraction(1, 20_000)


def open_draw_stream(number: int) -> KeyedStream:
    return open_stream(seeded_secret(0), "selection", {"draw": number})


def draw_plainly(scores: list[int], out: set[int], words: KeyedStream) -> int:
    """Draw once with a pass over all remaining candidates."""
    left = [place for place in range(len(scores)) if place not in out]
    most = max(scores[place] for place in left)
    gaps = np.array([most - scores[place] for place in left], dtype=np.float64)
    edges = np.cumsum(np.exp(-gaps * float(SCALE)))
    uniform = int(words.words(1)[0]) / 2**64
    return left[min(int(np.searchsorted(edges, uniform * edges[-1])), len(left) - 1)]


def time_call(act: Callable[[], object]) -> float:
    start = perf_counter()
    act()
    return perf_counter() - start


def draw_from_urn(urn: Urn, draws: int) -> list[int]:
    chosen = list[int]()
    for number in range(draws):
        chosen.append(urn.draw(open_draw_stream(number)))
        urn.take(chosen[-1:])
    return chosen


def print_draws(candidates: int, draws: int) -> None:
    scores = np.random.default_rng(0).integers(-(10**5), 10**5, candidates).tolist()
    urns: list[Urn] = []
    begun = time_call(lambda: urns.append(Urn(scores, SCALE)) or urns[0].draw(open_draw_stream(-1)))
    of_tree = time_call(lambda: draw_from_urn(urns[0], draws)) / draws
    few = max(3, 10**5 // candidates)
    of_loop = time_call(lambda: [draw_plainly(scores, {0, 1}, open_draw_stream(number)) for number in range(few)]) / few
    print(f"{candidates:>10,} candidates: begun {begun:6.3f} s, a draw {of_tree * 1e6:7.0f} µs, plainly "
          f"{of_loop * 1e6:10.0f} µs ({of_loop / of_tree:,.0f} times)")  # fmt: skip


def print_round(candidates: int) -> None:
    """Print the time of a default round of aim-grem: a ninth of all pairs of the attributes, with scores and labels."""
    names = [f"x{number}" for number in range(math.isqrt(2 * candidates) + 1)]
    pairs, groups = tuple(combinations(names, 2)), dict.fromkeys(names, every_cell(4))
    selection = AimSelection(1, pairs, dict.fromkeys(pairs, 1), groups, -(-len(pairs) // 9), Fraction(1, 10**6),
                      Fraction(1, 10**5), 0.375, 1)  # fmt: skip
    scores, rng = Scores(), np.random.default_rng(0)
    scores.learn(Distances(dict(zip(pairs, rng.integers(0, 10**8, len(pairs)).tolist(), strict=True))))
    own = seeded_secret(0)
    took = time_call(
        lambda: select_candidates(
            selection, scores.of(selection), 1, lambda label: open_stream(own, "selection", label)
        )
    )
    print(f"{len(pairs):>10,} pairs: a round of {selection.count:,} choices {took:.2f} s")


def print_wide(codes: int) -> None:
    rng = np.random.default_rng(0)
    noisy = NoisyCounts(rng.poisson(rng.gamma(0.3, 30, codes)) + rng.normal(0, 5, codes), 25.0)
    counts: list[np.ndarray] = []
    fitted = time_call(lambda: counts.append(non_negative_counts(noisy, 9.0 * codes)))
    print(f"{codes:>10,} codes: 1-way fit {fitted:.2f} s, groups {time_call(lambda: by_mass(counts[0], 300.0)):.2f} s")


def print_selection() -> None:
    parser = base.command_parser(__doc__)
    parser.add_argument("--candidates", type=int, nargs="+", default=[1000, 20_000, 100_000, 1_000_000])
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--codes", type=int, default=10**6)
    args = parser.parse_args()
    for candidates in args.candidates:
        print_draws(candidates, min(args.draws, candidates))
        print_round(candidates)
    print_wide(args.codes)


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


def print_query_candidates() -> None:
    parser = base.command_parser(__doc__)
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


LARGEST = {
    "[8]^3 3-way prefix": make_workload((8,) * 3, ("prefix", 3)),
    "[8]^3 1- to 3-way prefix": make_workload((8,) * 3, ("prefix", 1), ("prefix", 2), ("prefix", 3)),
    "[10]^4 2-way range": make_workload((10,) * 4, ("range", 2)),
    "[20]^20 2-way prefix": make_workload((20,) * 20, ("prefix", 2)),
    "[10]^10 1-way prefix, 2-way affine": make_workload((10,) * 10, ("prefix", 1), ("affine", 2)),
}


def print_largest_errors() -> None:
    parser = base.command_parser(__doc__)
    parser.add_argument("--save", action="store_true")
    given, figures = parser.parse_args(), dict[str, float]()
    os.environ["DPSCALE_STORE"] = "off"
    for name, workload in LARGEST.items():
        for mechanism in ("weighted-residuals", "query-smasher"):
            usual, start = dp.plan(workload, mechanism), time.process_time()
            least = dp.plan(workload, mechanism, objective="max")
            seconds = time.process_time() - start
            before, after = (largest_variance(made) for made in (usual, least))
            print(f"{name}, {mechanism}: largest variance {before:.4f}, with max {after:.4f}, RMSE {usual.rmse():.4f} "
                  f"and {least.rmse():.4f}; {least.notes[0]}; {seconds:.1f} CPU-s", flush=True)  # fmt: skip
            figures |= {f"{name}, {mechanism}, sum": before, f"{name}, {mechanism}, max": after}
    if given.save:
        base.save("largest_errors", figures)


def largest_variance(plan: dp.Plan) -> float:
    sets = [(part, names) for part in plan.workload.parts for names in part.sets]
    return max(float(plan.accuracy.part_variances(part, names).max()) for part, names in sets)


CENSUS = {"sex": 2, "hispanic": 2, "race": 64, "relation": 17, "age": 115}


def draw_census_products(number: int, seed: int = 0) -> Workload:
    """Return products on the shape of the census file SF1.

    Each has a random group of races and of relations, 1 to 23 random ranges of age, and each of the other attributes or
    its total.
    """
    rng, workload, ages = np.random.default_rng(seed), Workload(Domain(CENSUS)), np.arange(CENSUS["age"])
    for _ in range(number):
        queries: dict[str, Any] = {name: "identity" for name in ("sex", "hispanic") if rng.random() < 0.5}
        for name in ("race", "relation"):
            group = rng.random((1, CENSUS[name])) < 0.5
            group[0, rng.integers(CENSUS[name])] = True
            queries[name] = group.astype(float)
        first, last = np.sort(rng.integers(0, len(ages), (2, rng.integers(1, 24), 1)), axis=0)
        workload.add_product(queries | {"age": ((ages >= first) & (ages <= last)).astype(float)})
    return workload


def print_census_products() -> None:
    parser = base.command_parser(__doc__)
    parser.add_argument("--products", type=int, default=300)
    parser.add_argument("--mechanisms", nargs="*", default=["weighted-residuals", "hdmm"])
    parser.add_argument("--save", action="store_true")
    given, figures = parser.parse_args(), dict[str, float]()
    os.environ["DPSCALE_STORE"] = "off"
    with one_thread():
        symmetric = np.random.default_rng(0).normal(size=(1000, 1000))
        symmetric += symmetric.T
        unit = min(cpu_seconds(lambda: np.linalg.eigh(symmetric)) for _ in range(3))
    print(f"eigenvectors of a symmetric matrix of 1,000 x 1,000: {unit:.3f} CPU-s")
    for mechanism in given.mechanisms:
        workload, start = draw_census_products(given.products), time.process_time()
        plan = dp.plan(workload, mechanism)
        seconds = time.process_time() - start
        print(f"{given.products} products by {mechanism}: {seconds:.1f} CPU-s ({seconds / unit:.0f} times), RMSE "
              f"{plan.rmse():.8g}, bound {plan.bound:.8g}, over all mechanisms {plan.floor:.8g}")  # fmt: skip
        figures |= {f"{mechanism}, seconds": seconds, f"{mechanism}, times eigh": seconds / unit,
                    f"{mechanism}, RMSE": plan.rmse()}  # fmt: skip
    if given.save:
        base.save("census_products", figures)


DENSE_ROWS = {  # at most 2,600 joint cells: also solved by dense matrices and planned by query-smasher
    "prefix and range [50]^2": ((50, 50), ("prefix", 2), ("range", 2)),
    "affine [50]^2": ((50, 50), ("affine", 2)),
    "abs [50]^2": ((50, 50), ("abs", 2)),
    "prefix and range [13]^3": ((13,) * 3, ("prefix", 3), ("range", 3)),
}
JOINT_ROWS = {
    "prefix and range [320]^2": ((320, 320), ("prefix", 2), ("range", 2)),
    "prefix and range [47]^3": ((47,) * 3, ("prefix", 3), ("range", 3)),
    "prefix and range [18]^4": ((18,) * 4, ("prefix", 4), ("range", 4)),
    "prefix and range [1000]^2": ((1000, 1000), ("prefix", 2), ("range", 2)),
    "affine [100]^2": ((100, 100), ("affine", 2)),
    "affine [320]^2": ((320, 320), ("affine", 2)),
    "abs [320]^2": ((320, 320), ("abs", 2)),
    "affine [500]^2": ((500, 500), ("affine", 2)),
}


def print_weighted_fourier() -> None:
    base.command_parser(__doc__).parse_args()
    os.environ["DPSCALE_STORE"] = "off"
    heads = ("joint cells", "CPU-s", "predicted", "RMSE", "over bound", "over dense", "over optimum", "dense CPU-s")
    print(f"{'weighted-fourier':<26} " + " ".join(f"{head:>12}" for head in heads))
    with one_thread():
        for name, (sizes, *parts) in (DENSE_ROWS | JOINT_ROWS).items():
            workload = make_workload(sizes, *parts)
            made, seconds = plan_with_errors(workload, "weighted-fourier")
            told = weighted_fourier.MECHANISM.seconds(PlanningProblem(workload), None)
            row = [f"{math.prod(sizes):12,}", f"{seconds:12.2f}", f"{told:12.2f}", f"{made.rmse():12.5g}"]
            row.append(f"{math.sqrt(made.error / made.bound):12.5f}")

            if name in DENSE_ROWS:
                start = time.process_time()
                dense, taken = dense_rmse(workload), time.process_time() - start
                ratios = (made.rmse() / dense, made.rmse() / dp.plan(workload, "query-smasher").rmse())
                row += [*(f"{ratio:12.7f}" for ratio in ratios), f"{taken:12.2f}"]
            print(f"{name:<26} " + " ".join(row), flush=True)

        workload = make_workload((200, 150), ("affine", 2), ("prefix", 1))
        whole, seconds = plan_with_errors(workload, "weighted-fourier")
        some, taken = plan_with_errors(workload, "query-smasher", fourier=[["x0", "x1"]])
        print("affine and 1-way prefix of 200 x 150, RMSE with residuals in the Fourier basis:")
        print(
            f"    all {whole.rmse():.5g} ({seconds:.1f} CPU-s), both attributes {some.rmse():.5g} ({taken:.1f} CPU-s)"
        )


def dense_rmse(workload: Workload) -> float:
    """Return the RMSE of circulant strategies that are solved by dense matrices of the cells of every residual."""
    optima = ((sub.scale, weighted_fourier.solve_circulant(None, sub.rows() / math.sqrt(sub.scale), sub.sizes).primal)
              for sub in decompose(workload) if sub.attributes)  # fmt: skip
    total = sum(sub.scale for sub in decompose(workload) if not sub.attributes)
    roots = math.sqrt(total) + math.fsum(math.sqrt(scale * primal) for scale, primal in optima)
    return roots / math.sqrt(workload.query_count)


def plan_with_errors(workload: Workload, mechanism: str, **options: Any) -> tuple[dp.Plan, float]:
    """Return a plan and the CPU seconds that it takes, with the sum of the variances of all queries as a check."""
    start = time.process_time()
    made = dp.plan(workload, mechanism, **options)
    if not math.isclose(made.accuracy.total_error(workload), made.error, rel_tol=1e-6):
        raise SystemExit("the variances of the queries do not add up to the error of the plan")
    return made, time.process_time() - start


def cpu_seconds(act: Callable[[], object]) -> float:
    start = time.process_time()
    act()
    return time.process_time() - start


COMMANDS = {
    "small_domains": print_small_domains,
    "product_tasks": print_product_tasks,
    "selection": print_selection,
    "query_candidates": print_query_candidates,
    "census_products": print_census_products,
    "weighted_fourier": print_weighted_fourier,
    "largest_errors": print_largest_errors,
}

if __name__ == "__main__":
    base.run_command(COMMANDS, __doc__)
