"""HDMM's Tables 4 to 7: expected RMSE and time of the strategy search, compared with the paper.

Tables 4 and 6: Laplace noise at ε = 1 (variance 2/ε²). Tables 5 and 7: analytic Gaussian noise at ε = 1, δ = 1e-6.
The paper's column is OPT0 for Tables 4 and 5, HDMM (the best of its methods) for 6 and 7. Strategies of Tables 4 and 5
are real-valued: before rounding to a lattice, which changes the sixth digit. Tables 6 and 7 have the errors of plans,
of HDMM, query-smasher and weighted-residuals; "above" marks those of weighted-residuals with a larger RMSE than HDMM.

    python benchmarks/hdmm.py [--tables 4 5 6 7] [--most CELLS] [--save]     (--most 4096: all sizes of Tables 4 and 5)
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial, reduce
from itertools import combinations, pairwise

import base
import numpy as np
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

from dpscale import Domain, PlanError, Workload, plan
from dpscale.base.numerics import one_thread
from dpscale.optimize.baselines import (
    data_cube,
    greedy_h,
    hb,
    hb_branching,
    hierarchical,
    identity,
    layered_tree,
    layered_wavelet,
    wavelet,
)
from dpscale.optimize.implicit_workload import Implicit, implicit
from dpscale.optimize.long_axis import chain_of_family
from dpscale.optimize.lower_bounds import svd_bound, svd_of_gram
from dpscale.optimize.opt_explicit import descend, error_of, optimise_explicit, starting_points
from dpscale.optimize.opt_kronecker import optimise_product, optimise_union
from dpscale.optimize.opt_marginals import marginal_error, optimise_marginals, residual_traces
from dpscale.reconstruction.base import PlanEvidence
from dpscale.workload import FAMILIES

SIZES = (64, 256, 1024, 4096)
OPT0 = {
    4: {"range": (5.55, 8.07, 11.08, 14.38), "prefix": (5.32, 7.35, 9.58, 12.20), "width 32": (5.88, 6.34, 6.41, 6.46),
        "permuted": (5.55, 8.06, 11.08, 14.37)},
    5: {"range": (9.73, 12.26, 14.85, 17.46), "prefix": (8.87, 10.66, 12.49, 14.32),
        "width 32": (8.74, 9.93, 10.08, 10.11), "permuted": (9.73, 12.26, 14.85, 17.45)},
}  # fmt: skip
SCHEMAS = {
    "CPS": (2, (50, 100, 7, 4, 2)),
    "Adult": (5, (100, 100, 100, 99, 85, 42, 16, 15, 9, 7, 6, 5, 2, 2)),
    "Loans": (4, (101, 101, 101, 101, 3, 8, 36, 6, 51, 4, 5, 15)),
}
HDMM = {
    6: {("SF1", 1): 7.30, ("SF1+", 1): 10.23,
        ("CPS", 1): 4.84, ("CPS", 2): 40.59, ("Adult", 1): 225.35, ("Adult", 2): 484.07, ("Loans", 1): 100.92,
        ("Loans", 2): 288.29},
    7: {("SF1", 1): 9.80, ("SF1+", 1): 10.90,
        ("CPS", 1): 7.85, ("CPS", 2): 29.48, ("Adult", 1): 46.44, ("Adult", 2): 126.17, ("Loans", 1): 34.91,
        ("Loans", 2): 99.72},
}  # fmt: skip
STATES = {"SF1": 0, "SF1+": 51}  # census tables, for a number of states
NOISE = {4: "laplace", 5: "gaussian", 6: "laplace", 7: "gaussian"}
UNIT = {"laplace": math.sqrt(2), "gaussian": 4.224679}  # noise at sensitivity 1
GAP, GAP_OF_LARGE = 1e-6, 1e-4  # of OPT0 under Gaussian noise
WIDTH = 32
RESIDUALS = ("query-smasher", "weighted-residuals")
NOTICED = 1e-6  # relatively: of an RMSE that is above another


def explicit_gram(kind: str, size: int) -> tuple[np.ndarray, int]:
    """Return the Gram matrix and the number of queries of a workload on one attribute."""
    if kind == "width 32":
        queries = np.array(
            [(np.arange(size) >= low) & (np.arange(size) < low + WIDTH) for low in range(size - WIDTH + 1)]
        )
        return queries.T.astype(float) @ queries, len(queries)
    gram = FAMILIES["range" if kind == "permuted" else kind].gram(size)
    if kind == "permuted":
        order = np.random.default_rng(0).permutation(size)
        gram = gram[np.ix_(order, order)]
    return gram, FAMILIES["range" if kind == "permuted" else kind].count(size)


def make_workload(schema: str, which: int) -> Workload:
    """Return a workload of Tables 6 and 7: W1 marginals; W2 the same or fewer sets, prefix on numeric attributes.

    The census tables have the 4,151 queries of the published tables; the paper does not list its own.
    """
    if schema in STATES:
        return census_workload(STATES[schema])
    numeric, sizes = SCHEMAS[schema]
    domain = Domain({f"x{i}": size for i, size in enumerate(sizes)})
    names, first = domain.names, domain.names[:numeric]
    degrees = {"CPS": range(6), "Adult": range(4) if which == 1 else (2,), "Loans": range(13)}[schema]
    sets = [names for degree in degrees for names in combinations(domain.names, degree)]
    if schema == "Loans":
        sets = [one for one in sets if domain.cells(one) <= 5000]
    if schema == "CPS" and which == 2:
        sets = [(*first, *rest) for degree in range(4) for rest in combinations(names[numeric:], degree)]
    if which == 1:
        return Workload(domain).add("marginal", attributes=sets)
    return Workload(domain).add("hybrid", attributes=sets, numeric=first)


WAYS = {"OPT⊗": "product", "OPT+": "union", "OPT_M": "marginals"}


def plan_errors(workload: Workload, noise: str) -> dict[str, float]:
    """Return the RMSE of the plan of each search of HDMM; a search that no plan can use is left out.

    `marginals` is the better of cells and a strategy for each attribute. The error is that of the plan's estimates.
    """
    unit, found = UNIT[noise] if noise == "gaussian" else 1.0, {}
    for name, way in WAYS.items():
        with suppress(PlanError):
            found[name] = unit * plan(workload, "hdmm", noise=noise, way=way).rmse()
    return found


def print_row(table: int, row: str, queries: int, ours: float, paper: float, seconds: float, rest: str) -> None:
    print(f"{table:5} {row:<26} {queries:>10,} {ours:9.4f} {paper:9.2f} {ours / paper:7.4f} {seconds:8.2f}  {rest}",
          flush=True)  # fmt: skip


def explicit_rows(table: int, most: int) -> None:
    noise = NOISE[table]
    for kind, papers in OPT0[table].items():
        for size, paper in zip(SIZES, papers, strict=True):
            if size > most:
                continue
            gram, count = explicit_gram(kind, size)
            start = time.perf_counter()
            found = optimise_explicit(gram, noise, tolerance=GAP if size <= 1024 else GAP_OF_LARGE)
            seconds = time.perf_counter() - start
            rest = (
                f"gap {found.error / found.bound - 1:.0e}" if noise == "gaussian" else f"{found.ratio:.3f} × SVD bound"
            )
            print_row(
                table, f"{kind} {size}", count, UNIT[noise] * math.sqrt(found.error / count), paper, seconds, rest
            )


def best_of_hdmm(workload: Workload, noise: str) -> tuple[float, str]:
    """Return the smallest RMSE of the plans of HDMM, and a summary of all of them."""
    found = plan_errors(workload, noise)
    best = min(found, key=lambda name: found[name])
    bound = svd_bound(implicit(workload))
    least = f"SVDB {UNIT[noise] * math.sqrt(bound.value / workload.query_count):.3f}" if bound.exact else ""
    return found[best], f"{best}: {', '.join(f'{name} {value:.3f}' for name, value in found.items())} {least}"


def plan_residuals(workload: Workload, noise: str, mechanism: str) -> tuple[float, str]:
    """Return the RMSE of a whole plan and its bounds. Under Laplace noise the plan's error contains the 2 of 2/ε²."""
    unit = UNIT[noise] if noise == "gaussian" else 1.0
    made = plan(workload, mechanism, noise=noise)
    floor = f"{made.rmse() / made.bound_all:.4f} × least of all mechanisms, " if made.bound_all else ""
    return unit * made.rmse(), f"{floor}gap {made.optimality_gap:.0e}"


def implicit_rows(table: int, without_hdmm: bool) -> dict[str, float]:
    """Print the rows and return the paper's RMSE over ours, by row, noise and mechanism."""
    noise, figures = NOISE[table], {}
    for (schema, which), paper in HDMM[table].items():
        workload, row, hdmm = make_workload(schema, which), f"{schema} W{which}", math.inf
        ways: dict[str, Callable[[], tuple[float, str]]] = {
            "hdmm": partial(best_of_hdmm, workload, noise),
            **{name: partial(plan_residuals, workload, noise, name) for name in RESIDUALS},
        }
        for name, way in list(ways.items())[without_hdmm:]:
            start = time.perf_counter()
            ours, rest = way()
            seconds, hdmm = time.perf_counter() - start, ours if name == "hdmm" else hdmm
            mark = f"{ours / hdmm:.4f} × hdmm{' above' if ours > hdmm * (1 + NOTICED) else ''}, " * (hdmm < math.inf)
            label, rest = f"{row} {name}", rest if name == "hdmm" else mark + rest
            print_row(table, label, workload.query_count, ours, paper, seconds, rest)
            figures[f"{row}, {noise}, {name}"] = paper / ours
    return figures


def main() -> None:
    parser = base.command_parser(__doc__)
    parser.add_argument("--tables", type=int, nargs="*", default=[4, 5, 6, 7])
    parser.add_argument("--most", type=int, default=1024, help="largest size in Tables 4 and 5")
    parser.add_argument("--save", action="store_true", help="keep the figures of Tables 6 and 7 in results/")
    parser.add_argument("--without-hdmm", action="store_true", help="leave its figures in results/ as they are")
    given = parser.parse_args()
    os.environ["DPSCALE_STORE"] = "off"  # nothing solved before
    print(f"table {'row':<26} {'queries':>10} {'ours':>9} {'paper':>9} {'ratio':>7} {'seconds':>8}")
    figures: dict[str, float] = {}
    with one_thread():
        for table in given.tables:
            if table in OPT0:
                explicit_rows(table, given.most)
            else:
                figures |= implicit_rows(table, given.without_hdmm)
    if given.save:
        base.save("hdmm", (base.load("hdmm") if given.without_hdmm else {}) | figures)


MOST, QUICK_MOST = 1024, 64
WIDE_KINDS, WIDE_SIZES = ("range", "prefix"), (4096, 8192)
SEVERAL_STARTS = 256  # larger Laplace searches have one start
PAPER_GAP = 1e-6
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
    found |= {
        "OPT0": optimise_explicit(gram, noise, tolerance=PAPER_GAP, starts=starts).error,
        "SVDB": svd_of_gram(gram),
    }
    return {name: UNIT[noise] * math.sqrt(error / count) for name, error in found.items()}


def wide_errors(kind: str, size: int, noise: str) -> dict[str, float]:
    """Return the RMSE of strategies of range or prefix queries on many cells, without matrices of cells × cells.

    OPT0 is that of the plan of `hdmm` under Laplace noise, and the certified optimum under Gaussian noise.
    """
    family, workload = FAMILIES[kind], Workload(Domain({"x": size})).add(kind, degree=1)
    trees = {"H2": layered_tree(size), "HB": layered_tree(size, hb_branching(size), root=False)}
    found = {name: tree.trace(family) * tree.squared_sensitivity(noise) for name, tree in trees.items()}
    found |= {"Identity": family.trace(size), "SVDB": family.whole_trace(size) ** 2 / size}
    if noise == "laplace":
        found["OPT0"] = plan(workload, "hdmm", noise=noise).error / 2
    else:
        tree = layered_wavelet(size)
        found["Wavelet"] = tree.trace(family) * tree.squared_sensitivity(noise)
        found["OPT0"] = chain_of_family(family, size).optimum(GAP_OF_LARGE).primal
    return {name: UNIT[noise] * math.sqrt(error / family.count(size)) for name, error in found.items()}


def print_explicit(number: int, quick: bool) -> Figures:
    printed, columns = (HDMM_4, HDMM_1D_LAPLACE) if number == 4 else (HDMM_5, HDMM_1D_GAUSSIAN)
    most = QUICK_MOST if quick else MOST
    wide = {
        f"{kind} {size}": (
            printed[kind][-1] if size == HDMM_SIZES[-1] else (None,) * len(columns),
            partial(wide_errors, kind, size, NOISE[number]),
        )
        for kind in WIDE_KINDS
        for size in WIDE_SIZES[: 1 if quick else None]
    }
    rows = {
        f"{kind} {size}": (figures, partial(explicit_errors, kind, size, NOISE[number]))
        for kind, each in printed.items()
        for size, figures in zip(HDMM_SIZES, each, strict=True)
        if size <= most
    }
    return print_rows(f"table {number}", columns, rows | wide)


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
    planned = plan_errors(workload, noise)
    planned["HDMM"] = min(planned.values())
    found, most = {"Identity": traces(union)}, counts_of_queries(union)
    found["Workload"] = workload.query_count * (most**2 if noise == "laplace" else most)
    if which == 1 and schema in ("CPS", "Adult", "Loans"):
        weights = np.zeros((2,) * len(union.sizes))
        for names, weight in data_cube(union, noise).items():  # type: ignore[arg-type]
            weights[tuple(int(name in names) for name in union.names)] = weight**2
        found["DataCube"] = marginal_error(residual_traces(union), weights, union.sizes)
    bound = svd_bound(union)
    if bound.exact:
        found["SVDB"] = bound.value
    bounds = {name: UNIT[noise] * math.sqrt(error / workload.query_count) for name, error in found.items()}
    return planned | bounds


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
                "gaussian": lambda gram=gram: optimise_explicit(gram, "gaussian", tolerance=PAPER_GAP)}  # fmt: skip
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


def union_of_ranges(sizes: tuple[int, ...]) -> Workload:
    """Return a union of ten products of all ranges, each over three random attributes."""
    rng, names = np.random.default_rng(0), [f"x{i}" for i in range(len(sizes))]
    sets = {tuple(sorted(rng.permutation(len(sizes))[:3])) for _ in range(100)}
    chosen = [tuple(names[i] for i in one) for one in sorted(sets)[:10]]
    return Workload(Domain(dict(zip(names, sizes, strict=True)))).add("range", attributes=chosen)


RECONSTRUCTED = (2, 4, 8, 16, 32)  # cells of each of the five attributes


def print_reconstructions(quick: bool) -> Figures:
    """Print the seconds of RECONSTRUCT by strategy and size: the marginals of all sets of the workload.

    The paper estimates the vector of all cells; a release estimates the sets of its workload.
    """
    found = {}
    for size in RECONSTRUCTED[: 3 if quick else None]:
        union, texts = union_of_ranges((size,) * 5), []
        for name, way in WAYS.items():
            try:
                made = plan(union, "hdmm", way=way)
            except PlanError as error:
                texts.append(f"{name} refused: {error.value}")
                continue
            generator = np.random.default_rng(0)
            values = [generator.normal(size=block.rows) for block in made.blocks]
            start = time.perf_counter()
            estimates = PlanEvidence(made, [1.0] * len(values), values.__getitem__).least_squares()
            cells = sum(estimates.marginal(names).size for names in union.sets)
            found[f"figure 3 (c), {size}^5, {name}"] = time.perf_counter() - start
            texts.append(f"{name} {found[f'figure 3 (c), {size}^5, {name}']:.3f} s")
        print(f"  (c) {size}^5, {size**5:,} cells, {cells:,} in the sets: {', '.join(texts)}", flush=True)
    return found


def print_figure_3(quick: bool) -> Figures:
    """Print seconds of the searches under Gaussian noise by size and by number of attributes, and of RECONSTRUCT."""
    found = print_reconstructions(quick)
    shapes = [(c,) * 5 for c in ((2, 8) if quick else (2, 8, 32, 128, 512))]
    shapes += [(10,) * d for d in ((3, 8) if quick else (3, 5, 10, 15))]
    print("  (a) and (b)")
    for sizes in shapes:
        union = implicit(union_of_ranges(sizes))
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


# Ten tabulations of persons in the Summary File 1 of 2010: P1, P3, P4, P5, P8 to P12 with P12A to P12I, and PCT12 with
# PCT12A to PCT12O. Cell r of `race` is the combination of races whose bits are set in r; 0 is no race.
RACES, AGES = 64, 115
GROUPS = (0, 5, 10, 15, 18, 20, 21, 22, 25, 30, 35, 40, 45, 50, 55, 60, 62, 65, 67, 70, 75, 80, 85, AGES)
SINGLE = (*range(101), 105, 110, AGES)
HISPANIC, OTHERS = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])


def census_domain(states: int = 0) -> Domain:
    """Return the domain of `data/schemas/sf1.toml`, with an attribute for the states if there are any."""
    state = {"state": states} if states else {}
    return Domain(state | {"hispanic": 2, "sex": 2, "race": RACES, "relationship": 17, "age": AGES})


def census_workload(states: int = 0) -> Workload:
    """Return the 4,151 queries of ten tables of SF1; with `states` also every query for each state (SF1+).

    The paper does not list its predicates; these are those of the published tables.
    """
    workload = Workload(census_domain(states))
    for queries in _tables():
        workload.add_product(queries or {"sex": "total"})
        if states:
            workload.add_product(queries | {"state": "identity"})
    return workload


def _tables() -> Iterator[dict[str, np.ndarray]]:
    number = np.array([bin(cell).count("1") for cell in range(RACES)])
    cells, every = np.eye(RACES), np.ones((1, RACES))
    alone = np.vstack([cells[[1 << bit for bit in range(6)]], number >= 2])
    by_number = np.array([number == 1, number >= 2, *(number == own for own in range(2, 7))], float)
    detailed = np.vstack([every, by_number, cells[1:]])
    adult = {"age": np.array([np.arange(AGES) >= 18], float)}
    yield from ({}, {"race": np.vstack([every, alone])}, {"hispanic": np.array([[1, 1], [1, 0], [0, 1.0]])})
    yield from ({}, {"hispanic": np.eye(2), "race": np.vstack([every, alone])})
    for universe in ({}, adult):
        yield from (universe | {"race": detailed}, universe, universe | {"hispanic": HISPANIC})
        yield universe | {"hispanic": OTHERS, "race": detailed}
    for ages, white in ((GROUPS, cells[[1]]), (SINGLE, alone)):
        intervals = [(np.arange(AGES) >= low) & (np.arange(AGES) < high) for low, high in pairwise(ages)]
        by_sex = {"sex": np.eye(2), "age": np.vstack([np.ones((1, AGES)), *intervals])}
        for universe in ({}, {"race": alone}, {"hispanic": HISPANIC}, {"hispanic": OTHERS, "race": white}):
            yield universe
            yield universe | by_sex


if __name__ == "__main__":
    main()
