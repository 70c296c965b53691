"""Eigen-Design's section 5: errors over the lower bound and over competitors, on 2,048 cells and on real counts.

Workload error: root mean squared error with the paper's variance 2 ln(2/δ)/ε² at sensitivity 1, ε = 0.5, δ = 1e-4.
Relative error: mean over the queries of the expected |noise| over the true count, at least 1; `eigen` is then designed
for queries of length 1 (section 3.4). Factors of relative error do not depend on ε. Random ranges and marginals and
predicates are drawn here: 1,000 ranges (lengths, then positions), ten sets of attributes, 2,048 predicates of half the
cells.

    python benchmarks/papers.py eigen-design [--quick] [--save]
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial, reduce
from itertools import combinations, product

import numpy as np
import pandas as pd
from base import DATA
from printed import EIGEN_EXAMPLE_4, EIGEN_FIGURE_3, EIGEN_FIGURE_4, EIGEN_FIGURE_5, EIGEN_OVER_BOUND, EIGEN_TABLE_2
from scipy import linalg

from dpscale import Domain, Workload
from dpscale.mechanisms.eigen_design import eigen_design, eigen_queries, principal_weights, separated_weights, weigh
from dpscale.optimize.baselines import (
    data_cube,
    fourier,
    greedy_h,
    hb,
    hierarchical,
    identity,
    layered_tree,
    layered_wavelet,
    scaled,
    walsh,
    wavelet,
)
from dpscale.optimize.implicit_workload import implicit
from dpscale.optimize.lower_bounds import svd_of_gram
from dpscale.optimize.opt_explicit import inverse_gram
from dpscale.workload import FAMILIES

EPSILON, DELTA = 0.5, 1e-4
UNIT = math.sqrt(2 * math.log(2 / DELTA)) / EPSILON
GAP, GAP_OF_LARGE, LARGE = 1e-3, 1e-2, 1024
FLAT = 1e-9  # relative difference of columns that are equally long
RANGES, SETS = 1000, 10
DOMAINS = ((2048,), (64, 32), (16, 16, 8), (8, 8, 8, 4))
QUICK_DOMAINS = ((256,), (16, 16), (8, 8, 4), (4, 4, 4, 4))
ADULT, QUICK_ADULT = (8, 8, 16, 2), (4, 4, 8, 2)
Strategies = dict[str, np.ndarray]  # inverse Gram matrices at sensitivity 1, (n, n), by name


@dataclass(frozen=True)
class Queries:
    """Queries on all cells of a domain.

    Attributes
    ----------
    gram, unit_gram : ndarray, shape (n, n)
        WᵀW, and the same with every query of length 1.
    count : int
    variances : callable
        variances(M) returns the diagonal of W M Wᵀ.
    answers : callable
        answers(x) returns W x.
    """

    gram: np.ndarray
    unit_gram: np.ndarray
    count: int
    variances: Callable[[np.ndarray], np.ndarray]
    answers: Callable[[np.ndarray], np.ndarray]

    def permuted(self, order: np.ndarray) -> Queries:
        """Return the same queries on cells in another order."""
        back = np.argsort(order)
        swap = np.ix_(order, order)
        return Queries(self.gram[swap], self.unit_gram[swap], self.count,
                       lambda m: self.variances(m[np.ix_(back, back)]), lambda x: self.answers(x[back]))  # fmt: skip


def kron(matrices: Sequence[np.ndarray]) -> np.ndarray:
    return reduce(np.kron, matrices)


def one_way(family: str, size: int) -> Queries:
    """Return the queries of a family on one attribute."""
    own = FAMILIES[family]
    return Queries(own.gram(size), own.unit_gram(size), own.count(size), own.quadratic, lambda x: own.answers(x, 0))


def explicit(rows: np.ndarray) -> Queries:
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return Queries(rows.T @ rows, unit.T @ unit, len(rows), lambda m: ((rows @ m) * rows).sum(axis=1),
                   lambda x: rows @ x)  # fmt: skip


def products(family: str, sizes: Sequence[int], sets: Sequence[Sequence[int]]) -> Queries:
    """Return the products of a family over sets of attributes, summed over the other attributes."""
    if len(sizes) == 1:
        return one_way(family, sizes[0])
    own = FAMILIES[family]
    factors = [[own.answers(np.eye(n), 0) if i in one else np.ones((1, n)) for i, n in enumerate(sizes)]
               for one in sets]  # fmt: skip
    grams = [kron([w.T @ w for w in one]) for one in factors]
    units = [kron([(w.T / (w**2).sum(axis=1)) @ w for w in one]) for one in factors]
    return Queries(sum(grams), sum(units), sum(math.prod(len(w) for w in one) for one in factors),
                   lambda m: np.concatenate([kron_diagonal(one, m) for one in factors]),
                   lambda x: np.concatenate([apply_kron(one, x) for one in factors]))  # fmt: skip


def apply_kron(factors: Sequence[np.ndarray], x: np.ndarray) -> np.ndarray:
    values = x.reshape([w.shape[1] for w in factors])
    for axis, w in enumerate(factors):
        values = np.moveaxis(np.tensordot(w, values, (1, axis)), 0, axis)
    return values.ravel()


def kron_diagonal(factors: Sequence[np.ndarray], m: np.ndarray) -> np.ndarray:
    """Return the diagonal of W M Wᵀ for a Kronecker product W, one attribute after the other."""
    sizes, d = [w.shape[1] for w in factors], len(factors)
    values = m.reshape(sizes * 2).transpose([axis for i in range(d) for axis in (i, d + i)])
    values = values.reshape([n * n for n in sizes])
    for axis, w in enumerate(factors):
        pairs = (w[:, :, None] * w[:, None, :]).reshape(len(w), -1)
        values = np.moveaxis(np.tensordot(pairs, values, (1, axis)), 0, axis)
    return values.ravel()


def random_ranges(sizes: Sequence[int]) -> Queries:
    """Return ranges with a uniform length and then a uniform position on every axis."""
    rng, rows = np.random.default_rng(0), []
    for _ in range(RANGES):
        parts = []
        for size in sizes:
            length = rng.integers(1, size + 1)
            low = rng.integers(0, size - length + 1)
            parts.append((np.arange(size) >= low) & (np.arange(size) < low + length))
        rows.append(kron([part.astype(float) for part in parts]))
    return explicit(np.array(rows))


def random_sets(count: int) -> list[tuple[int, ...]]:
    every = [one for degree in range(1, count + 1) for one in combinations(range(count), degree)]
    chosen = np.random.default_rng(0).permutation(len(every))[:SETS]
    return [every[i] for i in sorted(chosen)]


def predicates(cells: int) -> Queries:
    return explicit(np.random.default_rng(0).integers(0, 2, (cells, cells)).astype(float))


def pairs(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    return list(combinations(range(len(sizes)), min(2, len(sizes))))


def design(gram: np.ndarray) -> np.ndarray:
    """Return the inverse Gram matrix of Eigen-Design's strategy, at sensitivity 1.

    Columns are completed unless the workload has a lower rank: the result is then that of program 1.
    """
    queries = eigen_queries(gram)
    costs = np.maximum(((queries @ gram) * queries).sum(axis=1), 0)
    weights = weigh(costs, queries**2, GAP if len(gram) <= LARGE else GAP_OF_LARGE).weights
    square = (queries.T * weights) @ queries
    most, short = square.diagonal().max(), np.ptp(square.diagonal())
    if len(queries) < len(gram) or short < 1e-9 * most:
        return most * (queries.T / weights) @ queries
    np.fill_diagonal(square, most)
    return most * linalg.inv(square)


@cache
def of_axis(make: Callable[[int], np.ndarray], size: int) -> np.ndarray:
    return inverse_gram(scaled(make(size), "gaussian"))


def of_products(make: Callable[[int], np.ndarray], sizes: Sequence[int]) -> np.ndarray:
    return kron([of_axis(make, size) for size in sizes])


def residual(sizes: Sequence[int], space: Sequence[int]) -> np.ndarray:
    """Return the projection on a residual space."""
    return kron([np.eye(n) - 1 / n if i in space else np.full((n, n), 1 / n) for i, n in enumerate(sizes)])


def of_fourier(sizes: Sequence[int], sets: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the Fourier strategy of marginals: the products that they need, with equal weights (Barak et al.)."""
    closed = closure(sets)
    total = np.zeros((math.prod(sizes),) * 2)
    for one in closed:
        total += residual(sizes, one)
    return total * total.diagonal().max()


def of_marginals(sizes: Sequence[int], weights: dict[tuple[int, ...], float]) -> np.ndarray:
    """Return the inverse Gram matrix of weighted marginals, residual space by residual space."""
    closed = closure(weights)
    found = np.zeros((math.prod(sizes),) * 2)
    for space in closed:
        level = sum(w**2 * math.prod(n for i, n in enumerate(sizes) if i not in one)
                    for one, w in weights.items() if set(space) <= set(one))  # fmt: skip
        found += (
            kron([np.eye(n) - 1 / n if i in space else np.full((n, n), 1 / n) for i, n in enumerate(sizes)]) / level
        )
    return found * sum(w**2 for w in weights.values())


def cube_weights(family: str, sizes: Sequence[int], sets: Sequence[Sequence[int]]) -> dict[tuple[int, ...], float]:
    """Return DataCube's weights of marginals for a family over sets of attributes."""
    names = [f"x{i}" for i in range(len(sizes))]
    workload = Workload(Domain(dict(zip(names, map(int, sizes), strict=True))))
    union = implicit(workload.add(family, attributes=[tuple(names[i] for i in one) for one in sets]))
    return {tuple(names.index(name) for name in one): w for one, w in data_cube(union, "gaussian").items()}


def of_cube(family: str, sizes: Sequence[int], sets: Sequence[Sequence[int]]) -> np.ndarray:
    return of_marginals(sizes, cube_weights(family, sizes, sets))


def range_strategies(sizes: Sequence[int]) -> Strategies:
    return {"wavelet": of_products(wavelet, sizes), "hierarchical": of_products(hierarchical, sizes)}


def more_strategies(sizes: Sequence[int], gram: np.ndarray) -> Strategies:
    """Return strategies that the paper does not compare."""
    found = {"identity": of_products(identity, sizes), "HB": of_products(hb, sizes)}
    return found | ({"GreedyH": inverse_gram(greedy_h(gram, "gaussian"))} if len(sizes) == 1 else {})


def marginal_strategies(family: str, sizes: Sequence[int], sets: Sequence[Sequence[int]]) -> Strategies:
    return {"Fourier": of_fourier(sizes, sets), "DataCube": of_cube(family, sizes, sets)}


def workload_error(queries: Queries, m: np.ndarray) -> float:
    return UNIT * math.sqrt(float((queries.gram * m).sum()) / queries.count)


def lower_bound(queries: Queries) -> float:
    return UNIT * math.sqrt(svd_of_gram(queries.gram) / queries.count)


def relative_error(queries: Queries, m: np.ndarray, cells: np.ndarray) -> float:
    noise = UNIT * np.sqrt(np.maximum(queries.variances(m), 0) * 2 / math.pi)
    return float((noise / np.maximum(queries.answers(cells), 1)).mean())


def adult_cells(sizes: Sequence[int] = ADULT) -> np.ndarray:
    """Return the counts of age, work, education and income of Adult's training records, as the paper's domain."""
    found = pd.read_csv(DATA / "adult/raw/adult.data", skipinitialspace=True)
    work = found.workclass.replace("Never-worked", "?")
    shares = np.linspace(0, 1, 9)[1:-1]
    codes = [np.digitize(found.age, np.quantile(found.age, shares)), pd.Categorical(work).codes,
             found["education-num"].to_numpy() - 1, pd.Categorical(found.classification).codes]  # fmt: skip
    coarse = [np.asarray(code) * size // whole for code, size, whole in zip(codes, sizes, ADULT, strict=True)]
    return np.histogramdd(np.stack(coarse, axis=1), [np.arange(size + 1) for size in sizes])[0].ravel()


def compare(
    label: str, queries: Queries, rivals: Strategies, more: Strategies, cells: np.ndarray | None = None
) -> tuple[float, float, float]:
    """Print errors and return the best and the worst competitor's factor, and the bound's."""
    if cells is None:
        own, errors = workload_error(queries, design(queries.gram)), {
            name: workload_error(queries, m) for name, m in (rivals | more).items()
        }  # fmt: skip
        bound = lower_bound(queries)
        floor = f"bound {bound:.2f} ({own / bound:.3f}), "
    else:
        own, errors = relative_error(queries, design(queries.unit_gram), cells), {
            name: relative_error(queries, m, cells) for name, m in (rivals | more).items()
        }  # fmt: skip
        bound, floor = math.nan, ""
    factors = {name: errors[name] / own for name in rivals}
    texts = ", ".join(f"{name} {error:.4g} ({error / own:.2f})" for name, error in errors.items())
    print(f"  {label:<44} eigen {own:.4g}, {floor}{texts}", flush=True)
    return min(factors.values()), max(factors.values()), own / bound


def print_example_4(quick: bool) -> dict[str, float]:
    rows = np.array([[1] * 8, [1] * 4 + [0] * 4, [0] * 4 + [1] * 4, [1, 1, 0, 0] * 2, [0, 0, 1, 1] * 2,
                     [0] * 6 + [1, 1], [1, 1] + [0] * 6, [1] * 4 + [-1] * 4], float)  # fmt: skip
    gram, unit = rows.T @ rows, math.sqrt(math.log2(2 / DELTA)) / EPSILON
    traces = {"workload": len(rows) * gram.diagonal().max(), "identity": np.trace(gram),
              "wavelet": (gram * of_products(wavelet, [8])).sum(), "eigen": eigen_design(gram).error,
              "bound": svd_of_gram(gram)}  # fmt: skip
    found = {f"example 4, {name}": unit * math.sqrt(float(trace)) for name, trace in traces.items()}
    for name, paper in EIGEN_EXAMPLE_4.items():
        print(f"  {name:<12} ours {found[f'example 4, {name}']:.2f}, paper {paper:.2f}")
    return found


def print_figure_3(quick: bool) -> dict[str, float]:
    """Print workload errors; the relative ones are those of "relative error on data"."""
    domains = QUICK_DOMAINS if quick else DOMAINS
    kinds: dict[str, list[tuple[float, float, float]]] = {"range": [], "marginals": []}
    for sizes in domains:
        text, strategies = " × ".join(map(str, sizes)), range_strategies(sizes)
        for kind, queries in (("all ranges", products("range", sizes, [tuple(range(len(sizes)))])),
                              ("random ranges", random_ranges(sizes))):  # fmt: skip
            more = more_strategies(sizes, queries.gram)
            kinds["range"].append(compare(f"{kind}, {text}", queries, strategies, more))
    binary = (2,) * round(math.log2(math.prod(domains[0])))
    for sizes in (*domains[2:], binary):
        text = " × ".join(map(str, sizes)) if len(sizes) < 5 else f"2^{len(sizes)}"
        for kind, sets in (("2-way marginals", pairs(sizes)), ("random marginals", random_sets(len(sizes)))):
            queries = products("marginal", sizes, sets)
            rivals = marginal_strategies("marginal", sizes, sets)
            kinds["marginals"].append(compare(f"{kind}, {text}", queries, rivals, {}))
    found = {}
    for kind, all_of in kinds.items():
        least, most, over = min(best for best, _, _ in all_of), max(best for best, _, _ in all_of), max(
            ratio for *_, ratio in all_of)  # fmt: skip
        low, high = EIGEN_FIGURE_3[f"{kind}, workload error"]
        print(f"  {kind}: the best competitor has {least:.2f} to {most:.2f} times the error (paper {low} to {high}), "
              f"at most {over:.3f} × bound (paper {EIGEN_OVER_BOUND if kind == 'range' else 1})")  # fmt: skip
        found |= {f"figure 3, {kind}, least": least, f"figure 3, {kind}, most": most, f"figure 3, {kind}, bound": over}
    return found


def print_relative(quick: bool) -> dict[str, float]:
    """Print relative errors on Adult: ranges and marginals (figure 3 (b) and (d))."""
    sizes, found = QUICK_ADULT if quick else ADULT, {}
    cells, whole = adult_cells(sizes), [tuple(range(len(sizes)))]
    text = " × ".join(map(str, sizes))
    kinds = {
        "range": [("all ranges", "range", whole), ("random ranges", "", [])],
        "marginals": [("2-way marginals", "marginal", pairs(sizes)),
                      ("random marginals", "marginal", random_sets(len(sizes)))],
    }  # fmt: skip
    for kind, workloads in kinds.items():
        factors = []
        for label, family, sets in workloads:
            queries = products(family, sizes, sets) if family else random_ranges(sizes)
            ranges = range_strategies(sizes)
            rivals = ranges if kind == "range" else marginal_strategies(family, sizes, sets)
            more = {"identity": of_products(identity, sizes)} if kind == "range" else {}
            factors.append(compare(f"{label}, Adult, {text}", queries, rivals, more, cells)[0])
        low, high = EIGEN_FIGURE_3[f"{kind}, relative error"]
        print(f"  {kind}: the best competitor has {min(factors):.2f} to {max(factors):.2f} times the relative error "
              f"(paper {low} to {high}, with other data too)")  # fmt: skip
        found |= {f"relative, {kind}, least": min(factors), f"relative, {kind}, most": max(factors)}
    return found


def print_table_2(quick: bool) -> dict[str, float]:
    """Print the alternative workloads, workload error and relative error on Adult's cells."""
    sizes = QUICK_ADULT if quick else ADULT
    cells, data, found = math.prod(sizes), adult_cells(sizes), {}
    flat, order = range_strategies([cells]), np.random.default_rng(0).permutation(cells)
    singles = [(i,) for i in range(len(sizes))]
    both = range_strategies(sizes)
    rows = {
        "1D range, permuted": (one_way("range", cells).permuted(order), flat),
        "1-way range marginals": (products("range", sizes, singles),
                                  both | marginal_strategies("range", sizes, singles)),
        "2-way range marginals": (products("range", sizes, pairs(sizes)),
                                  both | marginal_strategies("range", sizes, pairs(sizes))),
        "1D CDF": (one_way("prefix", cells), flat),
        "predicates": (predicates(cells), flat | {"Walsh-Hadamard": of_products(walsh, [cells])}),
    }  # fmt: skip
    for label, (queries, rivals) in rows.items():
        (best, worst, floor), (rel_best, rel_worst) = EIGEN_TABLE_2[label]
        own = compare(label, queries, rivals, {})
        relative = compare(f"{label}, relative", queries, rivals, {}, data)
        print(f"  {label}: best/worst competitor {own[0]:.2f}/{own[1]:.2f} (paper {best}/{worst}), bound "
              f"{1 / own[2]:.2f} ({floor}), relative "
              f"{relative[0]:.2f}/{relative[1]:.2f} ({rel_best}/{rel_worst})")  # fmt: skip
        found |= {f"{label}, best": own[0], f"{label}, worst": own[1], f"{label}, bound": 1 / own[2],
                  f"{label}, relative, best": relative[0], f"{label}, relative, worst": relative[1]}  # fmt: skip
    return found | print_orders(flat, data)


def print_orders(rivals: Strategies, data: np.ndarray) -> dict[str, float]:
    """Print relative errors of cumulative queries for other orders of the same counts.

    The smallest sums dominate the mean of the relative errors, so that the order of the counts decides which strategy
    is ahead.
    """
    found, queries = {}, one_way("prefix", len(data))
    orders = {"descending counts": np.sort(data)[::-1], "ascending counts": np.sort(data),
              "equal counts": np.full(len(data), data.mean())}  # fmt: skip
    for order, cells in orders.items():
        best, worst, _ = compare(f"1D CDF, relative, {order}", queries, rivals, {}, cells)
        found |= {f"1D CDF, {order}, best": best, f"1D CDF, {order}, worst": worst}
    return found


def range_eigenvectors(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues of the Gram matrix of all ranges, largest first, and its eigenvectors, which are sines."""
    numbers = np.arange(1, size + 1)
    angles = np.pi * numbers / (size + 1)
    queries = np.sin(np.outer(numbers, angles)) * math.sqrt(2 / (size + 1))
    return (size + 1) / (4 * np.sin(angles / 2) ** 2), queries


def marginal_eigenvectors(sizes: Sequence[int], sets: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues of marginals above 0, largest first, and eigenvectors; those of one value are random."""
    rng, by_value = np.random.default_rng(0), defaultdict(list)
    contrasts = [np.linalg.eigh(np.full((n, n), 1 / n))[1].T for n in sizes]  # the last row is constant
    for space in closure(sets):
        rows = kron([own[:-1] if i in space else own[-1:] for i, own in enumerate(contrasts)])
        by_value[marginal_eigenvalue(sizes, sets, space)].append(rows)
    values, queries = [], []
    for value in sorted(by_value, reverse=True):
        rows = np.concatenate(by_value[value])
        values.append(np.full(len(rows), value))
        queries.append(np.linalg.qr(rng.normal(size=(len(rows),) * 2))[0] @ rows)
    return np.concatenate(values), np.concatenate(queries)


def closure(sets: Iterable[Sequence[int]]) -> set[tuple[int, ...]]:
    """Return all subsets of sets: the residual spaces of their marginals."""
    return {tuple(sorted(part)) for one in sets for k in range(len(one) + 1) for part in combinations(one, k)}


def marginal_eigenvalue(sizes: Sequence[int], sets: Iterable[Sequence[int]], space: Sequence[int]) -> float:
    """Return the eigenvalue of the Gram matrix of marginals on a residual space."""
    return float(sum(math.prod(n for i, n in enumerate(sizes) if i not in one)
                     for one in sets if set(space) <= set(one)))  # fmt: skip


def eigen_weights(values: np.ndarray, squares: np.ndarray, gap: float) -> np.ndarray:
    return weigh(values, squares, gap).weights


def completed_error(values: np.ndarray, queries: np.ndarray, weights: np.ndarray) -> float:
    """Return tr(G M⁻¹) max M_jj with M = QᵀUQ + D of weighted eigenvectors and completed columns, G = QᵀΛQ.

    Parameters
    ----------
    values, weights : ndarray, shape (k,)
        The diagonals of Λ and of U.
    queries : ndarray, shape (k, n)
        Q, with orthonormal rows.
    """
    loads = weights @ queries**2
    most = float(loads.max())
    missing = most - loads
    if missing.max() <= FLAT * most:
        return most * float((values / weights).sum())
    if len(queries) == queries.shape[1]:
        return completed_sines_error(values, weights)

    # Woodbury: Q M⁻¹ Qᵀ = (U + (Q D⁻¹ Qᵀ)⁻¹)⁻¹
    spread = (queries / np.maximum(missing, FLAT * most)) @ queries.T
    inverse = linalg.inv(np.diag(weights) + linalg.inv(spread))
    return most * float((inverse.diagonal() * values).sum())


def completed_sines_error(values: np.ndarray, weights: np.ndarray) -> float:
    """Return `completed_error` of sines on an even number of cells, by vectors even and odd about the middle."""
    grams, squares = halves(values), halves(weights)
    diagonal = (squares[0].diagonal() + squares[1].diagonal()) / 2
    most, total = float(diagonal.max()), 0.0
    for gram, square in zip(grams, squares, strict=True):
        square[np.diag_indices(len(square))] += most - diagonal
        inverse, _ = linalg.lapack.dpotri(linalg.cholesky(square, lower=True), lower=True)
        total += 2 * float((gram * np.tril(inverse)).sum()) - float((gram.diagonal() * inverse.diagonal()).sum())
    return most * total


def halves(values: np.ndarray) -> list[np.ndarray]:
    """Return QᵀΛQ of sines, Λ with these values, on vectors of half the cells that are even or odd about the middle."""
    size = len(values)
    series, cells = np.fft.irfft(np.pad(values, 1), 2 * size + 2), np.arange(size // 2)
    near, far = np.subtract.outer(cells, cells), np.add.outer(cells, cells)
    square, across = series[np.abs(near)] - series[far + 2], series[size - 1 - far] - series[size + 1 + near]
    return [square + across, square - across]


def of_competitors(label: str, sizes: Sequence[int], values: np.ndarray) -> dict[str, float]:
    """Return the squared errors of the competitors of a workload of figure 4."""
    if label == "range":
        cells = math.prod(sizes)
        trees = {"wavelet": layered_wavelet(cells), "hierarchical": layered_tree(cells)}
        return {name: tree.trace(FAMILIES["range"]) * tree.squared_sensitivity("gaussian")
                for name, tree in trees.items()}  # fmt: skip
    sets = pairs(sizes)
    weights = cube_weights("marginal", sizes, sets)
    cube = 0.0
    for space in closure(sets):
        level = sum(w**2 * math.prod(n for i, n in enumerate(sizes) if i not in one)
                    for one, w in weights.items() if set(space) <= set(one))  # fmt: skip
        cube += math.prod(sizes[i] - 1 for i in space) * marginal_eigenvalue(sizes, sets, space) / level
    squares = sum(w**2 for w in weights.values())
    return {"Fourier": float(values.sum()) * len(values) / math.prod(sizes), "DataCube": cube * squares}


def print_figure_4(quick: bool) -> dict[str, float]:
    """Print the error of reduced designs and of competitors over the full design and the bound, and seconds."""
    sizes, found = (8, 8, 4) if quick else (32, 16, 16), {}
    cells = math.prod(sizes)
    gap = GAP if cells <= LARGE else GAP_OF_LARGE
    for label, (values, queries) in (("range", range_eigenvectors(cells)),
                                     ("marginals", marginal_eigenvectors(sizes, pairs(sizes)))):  # fmt: skip
        squares, bound, full = queries**2, float(np.sqrt(values).sum()) ** 2 / cells, 0.0
        designs: dict[str, Callable[[], np.ndarray]] = {"full": partial(eigen_weights, values, squares, gap)}
        for group in (4, 16, 64):
            designs[f"groups of {group}"] = partial(separated_weights, values, squares, group, gap)
        for part in (0.015, 0.06, 0.25):
            designs[f"{100 * part:g} % principal"] = partial(
                principal_weights, values, squares, max(1, round(part * len(values))), gap
            )
        for name, make in designs.items():
            start = time.perf_counter()
            weights = make()
            seconds, error = time.perf_counter() - start, completed_error(values, queries, weights)
            full = full or error
            over, over_bound = math.sqrt(error / full), math.sqrt(error / bound)
            paper = {"groups of 16": EIGEN_FIGURE_4[label][0], "6 % principal": EIGEN_FIGURE_4[label][1]}.get(name)
            print(f"  {label}, {name:<18} {over:.3f} × full, {over_bound:.3f} × bound, {seconds:.2f} s"
                  + (f" (paper {paper:.2f})" if paper else ""), flush=True)  # fmt: skip
            if paper or name == "full":
                found[f"figure 4, {label}, {name}"] = over_bound
        for name, error in of_competitors(label, sizes, values).items():
            found[f"figure 4, {label}, {name}"] = math.sqrt(error / bound)
            print(f"  {label}, {name:<18} {math.sqrt(error / full):.3f} × full, {math.sqrt(error / bound):.3f} × bound")
    return found


def print_figure_5(quick: bool) -> dict[str, float]:
    """Print the error with other design queries over that of eigen-queries.

    The paper's Fourier queries are those of Barak et al., the Walsh-Hadamard basis; "both" are they and the wavelet.
    """
    cells, sizes, found = (256, (8, 8, 4), {}) if quick else (1024, (16, 8, 8), {})
    order = np.random.default_rng(0).permutation(cells)
    workloads = {"range": (one_way("range", cells).gram, (cells,)),
                 "marginals": (products("marginal", sizes, pairs(sizes)).gram, sizes)}  # fmt: skip
    for (label, (gram, shape)), permuted in product(workloads.items(), (False, True)):
        name = label + ", permuted" * permuted
        own = gram[np.ix_(order, order)] if permuted else gram
        errors = {"eigen": (own * design(own)).sum()}
        for basis, make in (("wavelet", wavelet), ("discrete Fourier", fourier), ("Walsh-Hadamard", walsh)):
            errors[basis] = eigen_design(own, kron([make(n) for n in shape]), gap=GAP).error
        factors = {basis: math.sqrt(error / errors["eigen"]) for basis, error in errors.items()}
        paper = EIGEN_FIGURE_5.get(name)
        print(f"  {name:<20} " + ", ".join(f"{basis} {factor:.3f}" for basis, factor in factors.items())
              + (f" (paper: {'more than ' * permuted}{paper:g} for both)" if paper else ""), flush=True)  # fmt: skip
        found |= {f"figure 5, {name}, {basis}": factor for basis, factor in factors.items() if basis != "eigen"}
    return found


ITEMS = {
    "example 4": print_example_4,
    "figure 3": print_figure_3,
    "table 2": print_table_2,
    "figure 4": print_figure_4,
    "figure 5": print_figure_5,
    "relative error on data": print_relative,
}


def print_item(what: str, quick: bool) -> dict[str, float]:
    """Print a table or figure and return its figures."""
    return ITEMS[what](quick)
