"""HDMM's Tables 3 to 7 with its competitors and Figures 2 and 3: ours and (in brackets) the paper's figures.

Table 3: total squared error of strategies of sensitivity 1 under Laplace noise, without the factor 2/ε². Tables 4 to 7:
RMSE at ε = 1, under Laplace noise or analytic Gaussian noise at δ = 1e-6. `-`: the paper or dpscale has no figure.
`HDMM` is the best search; ours has OPT_M with a strategy per attribute too.

    python benchmarks/papers.py hdmm [--quick] [--save]
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial, reduce

import numpy as np
from hdmm import NOISE, UNIT, explicit_gram, make_workload, methods
from printed import (
    HDMM_1D_GAUSSIAN,
    HDMM_1D_LAPLACE,
    HDMM_3,
    HDMM_4,
    HDMM_5,
    HDMM_6,
    HDMM_7,
    HDMM_FIGURE_2,
    HDMM_SIZES,
    HDMM_UNION,
)

from dpscale import Domain, Workload
from dpscale.optimize.baselines import data_cube, greedy_h, hb, hierarchical, identity, wavelet
from dpscale.optimize.implicit_workload import Implicit, implicit
from dpscale.optimize.lower_bounds import svd_bound, svd_of_gram
from dpscale.optimize.marginal_algebra import residual_traces
from dpscale.optimize.opt_explicit import descend, error_of, optimise_explicit, starting_points
from dpscale.optimize.opt_kronecker import optimise_product, optimise_union
from dpscale.optimize.opt_marginals import marginal_error, optimise_marginals

MOST, QUICK_MOST = 1024, 64
SEVERAL_STARTS = 256  # larger Laplace searches have one start
GAP = 1e-6
QUICK_ROWS = (("CPS", 1),)
Figures = dict[str, float]


def cell(ours: float | None, paper: float | None) -> str:
    texts = ["-" if value is None else f"{value:,.2f}" for value in (ours, paper)]
    return f"{texts[0]} ({texts[1]})"


def ends_of(what: str, ratios: Mapping[str, list[float]]) -> Figures:
    """Print and return the least and the largest ratio of the paper's error to ours, by mechanism."""
    for name, own in ratios.items():
        print(f"  {name}: the paper has {min(own):.3f} to {max(own):.3f} times our error on {len(own)} rows")
    return {f"{what}, {name}, {end}": value for name, own in ratios.items()
            for end, value in (("least", min(own)), ("most", max(own)), ("rows", float(len(own))))}  # fmt: skip


def print_rows(what: str, columns: tuple[str, ...], rows: Mapping[str, tuple[tuple, Callable[[], dict]]]) -> Figures:
    """Print rows of printed figures and of ours, which a function computes by column."""
    ratios: dict[str, list[float]] = {}
    print(f"  {'':<16}" + "".join(f"{name:>34}" for name in columns))
    for label, (printed, compute) in rows.items():
        ours = compute()
        cells = [cell(ours.get(name), paper) for name, paper in zip(columns, printed, strict=True)]
        print(f"  {label:<16}" + "".join(f"{text:>34}" for text in cells), flush=True)
        for name, paper in zip(columns, printed, strict=True):
            if paper is not None and ours.get(name):
                ratios.setdefault(name, []).append(paper / ours[name])
    return ends_of(what, ratios)


def print_table_3(quick: bool) -> Figures:
    """Print the strategies for all 2-way marginals on (2, 5, 50, 100), and their total squared errors."""
    workload = Workload(Domain({"2": 2, "5": 5, "50": 50, "100": 100})).add("marginal", degree=2)
    union = implicit(workload)
    equal = np.zeros((2,) * 4)
    for names in workload.parts[0].sets:
        equal[tuple(int(name in names) for name in workload.domain.names)] = 1 / 36
    one, several = optimise_product(union, "laplace"), optimise_union(
        union, "laplace", groups=[(product,) for product in union.products]
    )  # fmt: skip
    best = optimise_marginals(union, "laplace")
    errors = {"workload": marginal_error(residual_traces(union), equal, union.sizes),
              "identity": traces(union), "OPT⊗": one.error, "OPT+": several.error, "OPT_M": best.error}  # fmt: skip
    for name, error in errors.items():
        print(f"  {name:<10} ours {error:>10,.0f}, paper {HDMM_3[name]:>10,}")
    print("  OPT⊗ strategy: " + ", ".join(
        f"{name}: {len(matrix)} × {matrix.shape[1]}, {matrix[0].max():.2f} on a cell" for name, matrix in
        zip(one.names, one.factors, strict=True)))  # fmt: skip
    print("  OPT+ strategy: " + ", ".join(f"{share:.2f} {' × '.join(group.names)}" for group, share in
                                          zip(several.groups, several.shares, strict=True)))  # fmt: skip
    print(
        "  OPT_M strategy: " + ", ".join(f"{weight:.2f} {' × '.join(names)}" for names, weight in best.weights.items())
    )
    return {f"table 3, {name}": error for name, error in errors.items()}


def explicit_errors(kind: str, size: int, noise: str) -> dict[str, float]:
    """Return the RMSE of the strategies on one attribute."""
    gram, count = explicit_gram(kind, size)
    starts = 1 if size > SEVERAL_STARTS else None
    strategies = {"Identity": identity(size), "H2": hierarchical(size), "Wavelet": wavelet(size), "HB": hb(size),
                  "GreedyH": greedy_h(gram, noise)}  # fmt: skip
    found = {name: error_of(gram, matrix, noise) for name, matrix in strategies.items()}
    found |= {"OPT0": optimise_explicit(gram, noise, tolerance=GAP, starts=starts).error, "SVDB": svd_of_gram(gram)}
    return {name: UNIT[noise] * math.sqrt(error / count) for name, error in found.items()}


def print_explicit(number: int, quick: bool) -> Figures:
    printed, columns = (HDMM_4, HDMM_1D_LAPLACE) if number == 4 else (HDMM_5, HDMM_1D_GAUSSIAN)
    most = QUICK_MOST if quick else MOST
    rows = {
        f"{kind} {size}": (figures, partial(explicit_errors, kind, size, NOISE[number]))
        for kind, each in printed.items()
        for size, figures in zip(HDMM_SIZES, each, strict=True)
        if size <= most
    }
    return print_rows(f"table {number}", columns, rows)


def traces(union: Implicit) -> float:
    """Return the error of measuring every cell: Σ w Π tr(G)."""
    return sum(one.weight * math.prod(float(np.trace(axis.gram)) for axis in one.axes) for one in union.products)


def counts_of_queries(union: Implicit) -> float:
    """Return the largest number of queries that count a cell: the L1 and the squared L2 sensitivity of the workload.

    Attributes on which all products have the same diagonal everywhere need no cells.
    """
    diagonals = [[axis.gram.diagonal() for axis in one.axes] for one in union.products]
    varying = [i for i in range(len(union.sizes)) if any(np.ptp(one[i]) > 0 for one in diagonals)]
    if math.prod(union.sizes[i] for i in varying) > 10**7:  # prefixes: the first cell is in most queries of all
        return float(sum(w.weight * math.prod(own.max() for own in one)
                         for w, one in zip(union.products, diagonals, strict=True)))  # fmt: skip
    total = np.zeros(1)
    for product, one in zip(union.products, diagonals, strict=True):
        constant = math.prod(one[i][0] for i in range(len(union.sizes)) if i not in varying)
        total = total + product.weight * constant * reduce(np.multiply.outer, [one[i] for i in varying], np.ones(()))
    return float(total.max())


def union_errors(schema: str, which: int, noise: str) -> dict[str, float]:
    """Return the RMSE of the methods on a workload of Tables 6 and 7."""
    workload = make_workload(schema, which)
    union = implicit(workload)
    found = {name: run() for name, run in methods(union, noise)}  # type: ignore[arg-type]
    found["HDMM"] = min(found.values())
    found["Identity"], most = traces(union), counts_of_queries(union)
    found["Workload"] = workload.query_count * (most**2 if noise == "laplace" else most)
    if which == 1 and schema in ("CPS", "Adult", "Loans"):
        weights = np.zeros((2,) * len(union.sizes))
        for names, weight in data_cube(union, noise).items():  # type: ignore[arg-type]
            weights[tuple(int(name in names) for name in union.names)] = weight**2
        found["DataCube"] = marginal_error(residual_traces(union), weights, union.sizes)
    bound = svd_bound(union)
    if bound.exact:
        found["SVDB"] = bound.value
    return {name: UNIT[noise] * math.sqrt(error / workload.query_count) for name, error in found.items()}


def print_union(number: int, quick: bool) -> Figures:
    rows = {
        f"{schema} W{which}": (figures, partial(union_errors, schema, which, NOISE[number]))
        for (schema, which), figures in (HDMM_6 if number == 6 else HDMM_7).items()
        if not quick or (schema, which) in QUICK_ROWS
    }
    return print_rows(f"table {number}", HDMM_UNION, rows)


def print_figure_2(quick: bool) -> Figures:
    """Print seconds of OPT0 on all ranges: 100 iterations (Laplace noise), or a gap of 1e-6 (Gaussian noise)."""
    found = {}
    for size in (64, 256) if quick else (64, 256, 1024, 2048):
        gram, _ = explicit_gram("range", size)
        start = starting_points(size, max(1, size // 16), 1, 0, None)[0]
        runs = {"laplace": lambda gram=gram, start=start: descend(gram, start, 100),
                "gaussian": lambda gram=gram: optimise_explicit(gram, "gaussian", tolerance=GAP)}  # fmt: skip
        texts = []
        for noise, run in runs.items():
            began = time.perf_counter()
            run()
            seconds = time.perf_counter() - began
            paper = f" (paper: under {HDMM_FIGURE_2[noise]:g})" if size == 1024 else ""
            texts.append(f"{noise} {seconds:.2f} s{paper}")
            if size == 1024:
                found[f"figure 2, {noise}"] = seconds
        print(f"  {size:>5} cells: {', '.join(texts)}", flush=True)
    return found


def union_of_ranges(sizes: tuple[int, ...]) -> Implicit:
    """Return a union of ten products of all ranges, each over three random attributes."""
    rng, names = np.random.default_rng(0), [f"x{i}" for i in range(len(sizes))]
    sets = {tuple(sorted(rng.permutation(len(sizes))[:3])) for _ in range(100)}
    chosen = [tuple(names[i] for i in one) for one in sorted(sets)[:10]]
    return implicit(Workload(Domain(dict(zip(names, sizes, strict=True)))).add("range", attributes=chosen))


def print_figure_3(quick: bool) -> Figures:
    """Print seconds of the searches under Gaussian noise by size and by number of attributes."""
    found = {}
    shapes = [(c,) * 5 for c in ((2, 8) if quick else (2, 8, 32, 128, 512))]
    shapes += [(10,) * d for d in ((3, 8) if quick else (3, 5, 10, 15))]
    print("  (a) and (b); (c) not reproduced: a release reconstructs marginals, never the vector of all cells")
    for sizes in shapes:
        union = union_of_ranges(sizes)
        searches = {"OPT⊗": lambda union=union: optimise_product(union, "gaussian"),
                    "OPT+": lambda union=union: optimise_union(union, "gaussian"),
                    "OPT_M": lambda union=union: optimise_marginals(union, "gaussian")}  # fmt: skip
        label, texts = f"{sizes[0]}^{len(sizes)}", []
        for name, run in searches.items():
            start = time.perf_counter()
            run()
            seconds = time.perf_counter() - start
            texts.append(f"{name} {seconds:.2f} s")
            if sizes in (shapes[len(shapes) // 2], shapes[-1]):
                found[f"figure 3, {label}, {name}"] = seconds
        print(f"  {label:<8} {', '.join(texts)}", flush=True)
    return found


ITEMS: dict[str, Callable[[bool], Figures]] = {
    "table 3": print_table_3,
    "table 4": partial(print_explicit, 4),
    "table 5": partial(print_explicit, 5),
    "table 6": partial(print_union, 6),
    "table 7": partial(print_union, 7),
    "figure 2": print_figure_2,
    "figure 3": print_figure_3,
}


def print_item(what: str, quick: bool) -> Figures:
    """Print a table or figure and return its figures."""
    return ITEMS[what](quick)
