"""Blocks of docs/benchmarks.md about the accuracy of plans."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import nan
from typing import Any

from base import fine, percent, ratio, significant, table, times
from printed import (
    EIGEN_EXAMPLE_4,
    EIGEN_FIGURE_3,
    EIGEN_FIGURE_4,
    EIGEN_FIGURE_5,
    EIGEN_OVER_BOUND,
    EIGEN_TABLE_2,
    HDMM_3,
    HDMM_FIGURE_2,
)

Figures = dict[str, Any]


def joint_plans(found: Figures) -> str:
    head = ("`benchmarks/joint_plans.py`: root mean square error of `weighted-residuals`",
            "above the plan's bound for all mechanisms", "above a bound by another solver",
            "CPU s of planning")  # fmt: skip
    names = [key.removesuffix(", seconds") for key in found if key.endswith(", seconds")]
    rows = [[name, _above(found[f"{name}, above"]), _above(found.get(f"{name}, checked")),
             f"{found[f'{name}, seconds']:.1f}"] for name in names]  # fmt: skip
    rows.append(["40 random workloads on 12 to 500 cells, the largest", _above(found["random, above"]),
                 _above(found["random, checked"]), ""])  # fmt: skip
    return table(head, *rows)


def _above(ratio: float | None) -> str:
    """Return a ratio as the percentage above 1; blank if it was not computed."""
    return "" if ratio is None else f"{100 * (ratio - 1):.2f} %"


EPSILONS = ("0.1", "1", "10")


def leave_out(found: Figures) -> str:
    head = ("`benchmarks/adaptive.py --leave-out`: error of `aim-grem` over that of commit 111f38d, ± standard error",
            *(f"ε = {epsilon}" for epsilon in EPSILONS))  # fmt: skip
    names = [key.removesuffix(", ε = 1, standard error") for key in found if key.endswith(", ε = 1, standard error")]
    rows = [[name, *(f"{found[f'{name}, ε = {e}']:.3f} ± {found[f'{name}, ε = {e}, standard error']:.3f}"
                     for e in EPSILONS)] for name in names]  # fmt: skip
    mean = ["geometric mean", *(f"{found[f'mean, ε = {e}']:.3f}" for e in EPSILONS)]
    worse = ["tables above 1.05 beyond two standard errors", *(f"{found[f'worse, ε = {e}']:.0f}" for e in EPSILONS)]
    largest = ["largest of all tables", *(f"{found[f'largest, ε = {e}']:.3f}" for e in EPSILONS)]
    return table(head, *rows, mean, largest, worse)


def pair_ideas(found: Figures) -> str:
    head = ("`benchmarks/pair_ideas.py`: mean error over that without the idea, six tables",
            *(f"ε = {epsilon}" for epsilon in EPSILONS))  # fmt: skip
    kinds = {"components": "leading components of measured pairs", "signs": "random projections",
             "halves": "two groups of each attribute", "groups": "all unmeasured pairs, at low precision"}  # fmt: skip
    rows = []
    for kind, label in kinds.items():
        rows.append([label, *(f"{found[f'{kind}, ε = {e}']:.3f}" for e in EPSILONS)])
        rows.append([f"{label}: exact and without cost", *(f"{found[f'{kind}, free, ε = {e}']:.3f}" for e in EPSILONS)])
    share = f"(Measured for {100 * found['share']:.0f} % of the budget after the rounds.)"
    return f"{table(head, *rows)}\n\n{share}"


def multiple_tables(found: Figures) -> str:
    what = "coverage (width over error; error over that of one table)"
    head = (f"`benchmarks/multiple_tables.py`: 95 % intervals of logistic coefficients, {what}",
            *(f"ε = {epsilon}" for epsilon in EPSILONS))  # fmt: skip
    kinds = {"single": "one table, ordinary standard errors", "replicas": "rows of simulated releases",
             "multiple": "rows of perturbed estimates, combining rule"}  # fmt: skip
    names = dict.fromkeys(key.split(", ")[0] for key in found)
    rows = [[f"{name}: {label}", *(f"{found[f'{name}, {e}, {kind}, coverage']:.2f} "
                                   f"({found[f'{name}, {e}, {kind}, width']:.2f}; "
                                   f"{found[f'{name}, {e}, {kind}, error']:.2f})" for e in EPSILONS)]
            for name in names for kind, label in kinds.items()]  # fmt: skip
    return table(head, *rows)


def audits(found: Figures) -> str:
    names = [key.removesuffix(", bound") for key in found if key.endswith(", bound")]
    head = ("`benchmarks/audits.py`: attacks on `aim-grem`, lower bounds at a confidence of 95 % (99.9 % if planted)",
            "bound", "claim", "bound over claim", "check")  # fmt: skip
    rows = [[name, f"{found[f'{name}, bound']:.3f}", f"{found[f'{name}, claim']:.3f}",
             f"{found[f'{name}, bound'] / found[f'{name}, claim']:.3f}", found[f"{name}, result"]]
            for name in names]  # fmt: skip
    return table(head, *rows)


INTERVAL_CLASSES = (
    "cells from 1 %",
    "cells below 1 %",
    "cumulative from 1 %",
    "cumulative below 1 %",
    "sums",
    "differences",
)


def intervals(found: Figures) -> str:
    """Return tables by kind of query and ε, and by table, and the CPU time of whole jobs."""
    head = ("`benchmarks/intervals.py --leave-out`: least, median and most of the tables (tables within the limits)",
            "ε", "coverage", "ratio", "joint", "width")  # fmt: skip
    by_kind = []
    for degree in (1, 2, 3):
        for kind in INTERVAL_CLASSES:
            for epsilon in EPSILONS:
                group = f"{degree}-way {kind}, {epsilon}"
                if f"{group}, cases" in found:
                    shares = [percent_by_end(found, group, name) for name in ("coverage", "joint")]
                    ratios = [plain(found, group, name) for name in ("ratio", "width")]
                    by_kind.append([f"{degree}-way {kind}", epsilon, shares[0], ratios[0], shares[1], ratios[1]])
    names = [key.rsplit(", ", 1)[0] for key in found if key.endswith(", cases") and "-way" not in key]
    by_table = [[name, percent_by_end(found, name, "coverage"), plain(found, name, "ratio")] for name in names]
    times = "; ".join(f"ε = {epsilon}: {found[f'{epsilon}, none']:.2f} s without errors, "
                      f"{found[f'{epsilon}, simulated']:.2f} s with" for epsilon in EPSILONS)  # fmt: skip
    whole = ("the same by table: all kinds of queries and ε", "coverage", "ratio")
    return f"{table(head, *by_kind)}\n\n{table(whole, *by_table)}\n\nCPU time of `dpscale run` on Adult: {times}."


def conclusions(found: Figures) -> str:
    """Return a table of the coverage of intervals, and of the size and power of tests."""
    names = dict.fromkeys(key.rsplit(", ", 2)[0] for key in found)
    intervals_of = [name for name in names if f"{name}, {EPSILONS[0]}, finite" in found]
    what = "coverage of 95 % intervals, mean of the tables (least; told over true width; share with two ends)"
    head = [f"`benchmarks/conclusions.py`: {what}", *(f"ε = {epsilon}" for epsilon in EPSILONS)]
    rows = [[name, *(f"{found[f'{name}, {e}, mean']:.3f} ({found[f'{name}, {e}, least']:.2f}; "
                     f"{found[f'{name}, {e}, width']:.2f}; {found[f'{name}, {e}, finite']:.2f})" for e in EPSILONS)]
            for name in intervals_of]  # fmt: skip
    tests = ["rejections at 5 % of 2,000 records, mean of the tables (least, most)", *head[1:]]
    tested = [[name, *(f"{found[f'{name}, {e}, mean']:.3f} ({found[f'{name}, {e}, least']:.2f}, "
                       f"{found[f'{name}, {e}, most']:.2f})" for e in EPSILONS)]
              for name in names if name not in intervals_of]  # fmt: skip
    return f"{table(head, *rows)}\n\n{table(tests, *tested)}"


def sql(found: Figures) -> str:
    """Return a table of the errors of files of SELECT statements."""
    head = ["`benchmarks/sql.py`: error of one plan over that of statements planned one by one", "statements",
            "equal parts of the budget", "best parts", "certified above the optimum",
            "a session over equal parts", "charged of the cost alone"]  # fmt: skip
    files = [key.removesuffix(" equal") for key in found if key.endswith(" equal")]
    rows = [
        [name, f"{found[f'{name} statements']:.0f}", f"{found[f'{name} equal']:.2f}",
         f"{found[f'{name} best split']:.2f}", f"{100 * (found[f'{name} gap'] - 1):.3f} %",
         f"{found[f'{name} session']:.2f}", f"{100 * found[f'{name} charged']:.0f} %"] for name in files
    ]  # fmt: skip
    peers = [[key.removeprefix("opendp "), f"{value:.2f}"] for key, value in found.items() if key.startswith("opendp ")]
    peer = ["counts of the mixed file by OpenDP's front end for polars, over the error of the plan", "ratio"]
    return f"{table(head, *rows)}\n\n{table(peer, *peers)}"


def databases(found: Figures) -> str:
    """Return a table of the times of counts from databases over those from Parquet."""
    head = [f"`benchmarks/databases.py`: wall time over that of Parquet, {found['rows']:,.0f} rows of 7 columns",
            "7 sets of 1 column", "21 of 2", "35 of 3"]  # fmt: skip
    names = dict.fromkeys(key.split()[0] for key in found if key.endswith((" rows", " groups")))
    ways = {"rows": "rows are read", "groups": "the database counts"}
    rows = [[f"{name}: {words}", *(f"{found[f'{name} {degree} {way}']:.1f}" for degree in (1, 2, 3))]
            for name in names for way, words in ways.items()]  # fmt: skip
    return table(head, *rows)


NOISE, POPULATION = "noise", "noise, sampling of the records"
ADAPTIVE = "noise, shrinkage, selection (approximate)"
COVERED = (  # statistic, what its interval covers, and the figures or the benchmark of its coverage
    ("cells, cumulative and other linear queries, total, area: least squares", NOISE, "difference of counts"),
    (
        "the same from an adaptive job: 1-way cells of at least 1 % of the records",
        ADAPTIVE,
        "1-way cells from 1 %",
    ),
    ("2-way cells of at least 1 %", ADAPTIVE, "2-way cells from 1 %"),
    ("3-way cells of at least 1 %", ADAPTIVE, "3-way cells from 1 %"),
    ("3-way cells below 1 %", ADAPTIVE, "3-way cells below 1 %"),
    (
        "2-way cumulative queries of at least 1 %",
        ADAPTIVE,
        "2-way cumulative from 1 %",
    ),
    ("differences of the cells of two groups", ADAPTIVE, "2-way differences"),
    ("all rows of a table, `joint=True`", "noise; of an adaptive job as above", "`benchmarks/intervals.py`"),
    ("quantile", "noise; a fitted tail in the last bin", "`benchmarks/quantiles.py`"),
    ("mean and sum of an attribute", "noise, any position in the bins", "difference of means, large groups"),
    ("sum, ratio of numbers", "noise; of clipped values", "`benchmarks/number_sums.py`"),
    ("mean of a number", "noise; the clipped part if the range was searched", "`benchmarks/number_sums.py`"),
    ("std", "noise, to first order; of clipped values", "`benchmarks/number_sums.py`"),
    ("units", "noise", "`benchmarks/units.py`"),
    ("share, crosstab with `normalize`", NOISE, "difference of shares, large groups"),
    ("difference of counts or sums", NOISE, "difference of counts"),
    ("difference of means", "noise, any position in the bins, the clipped part", "difference of means, large groups"),
    ("difference of shares", NOISE, "difference of shares, large groups"),
    ("the same, a group below 1 % of the records", NOISE, "difference of shares, small groups"),
    ("relative risk", NOISE, "relative risk, large groups"),
    ("odds ratio", NOISE, "odds ratio, large groups"),
    ("trend of counts", "noise that periods share", "trend of counts"),
    ("trend of shares", "noise that periods share", "trend of shares"),
    ("difference of means, `population=True`", POPULATION, "difference of means, large groups, population"),
    ("share and difference of shares, `population=True`", POPULATION, "difference of shares, large groups, population"),
    ("relative risk, `population=True`", POPULATION, "relative risk, large groups, population"),
    ("odds ratio, `population=True`", POPULATION, "odds ratio, large groups, population"),
)


def statistics_table(compared: Figures, adaptive_intervals: Figures) -> str:
    """Return what the interval of each statistic covers, and its measured coverage."""

    def measured(name: str, epsilon: str) -> str:
        if f"{name}, {epsilon}, mean" in compared:
            return f"{100 * compared[f'{name}, {epsilon}, mean']:.1f} %"
        if f"{name}, {epsilon}, coverage, median" in adaptive_intervals:
            return f"{adaptive_intervals[f'{name}, {epsilon}, coverage, median'] * 100:.1f} %"
        return name

    head = ("statistic", "the interval covers", *(f"coverage at ε = {epsilon}" for epsilon in EPSILONS))
    return table(head, *([what, covers, *(measured(source, e) for e in EPSILONS)] for what, covers, source in COVERED))


def percent_by_end(found: Figures, group: str, name: str) -> str:
    ends = ", ".join(f"{100 * found[f'{group}, {name}, {end}']:.2f}" for end in ("least", "median", "most"))
    return f"{ends} % ({within(found, group, name)})"


def plain(found: Figures, group: str, name: str) -> str:
    ends = ", ".join(f"{found[f'{group}, {name}, {end}']:.2f}" for end in ("least", "median", "most"))
    return f"{ends} ({within(found, group, name)})"


def within(found: Figures, group: str, name: str) -> str:
    return f"{found[f'{group}, {name}, within']:.0f} of {found[f'{group}, cases']:.0f}"


def relational(found: Figures) -> str:
    """Return the errors of sampled links; of the published mechanism on MovieLens only."""
    names = {"100K": "MovieLens 100K", "1M": "MovieLens 1M, a tenth", "order": "Berka, orders of accounts",
             "order, add/remove": "neighbours differ in an account", "trans": "Berka, transactions of accounts",
             "trans, add/remove": "neighbours differ in an account"}  # fmt: skip
    what = "mean total variation of 3-way cross marginals of sampled links, δ = 10⁻⁵, 10 seeds (largest of one)"
    head = [f"`benchmarks/relational.py`: {what}", *(f"ε = {e}" for e in LINK_EPSILONS), "random links", "seconds"]
    lines = []
    for name, label in names.items():
        for kind in ("ours", "published"):
            if f"{name}, {kind}, seconds" in found:
                lines.append(
                    _links(found, f"{name}, {kind}", f"{label}, {LINKED_KINDS[kind]}", found[f"{name}, random"])
                )
    return f"{table(head, *lines)}\n\n{_beyond(found)}"


def relational_rounds(found: Figures) -> str:
    """Return the errors of the published loop by its number of rounds, and the noise of what it measures."""
    numbers = ("1", "2", "5", "10", "15", "25")
    labels = {"100K": "MovieLens 100K", "1M": "MovieLens 1M, a tenth"}
    cases = [key.split(", ")[:2] for key in found if key.endswith(", chosen")]
    errors, noises = [], []
    for name, epsilon in cases:
        key, label = f"{name}, {epsilon}", f"{labels[name]}, ε = {epsilon}"
        chosen = f"{found[f'{key}, chosen']:.0f}"
        own = [f"{found[f'{key}, error, {number}']:.4f}" for number in numbers]
        errors.append([label, *own, f"T = {chosen}: {found.get(f'{key}, error, {chosen}', nan):.4f}",
                       f"{found[f'{key}, random, 1']:.4f}"])  # fmt: skip
        noises.append([label, *(f"{found[f'{key}, noise, {number}']:.2f} ({found[f'{key}, departed, {number}']:.3f})"
                                for number in numbers)])  # fmt: skip
    columns = [f"T = {number}" for number in numbers]
    head = ["`benchmarks/relational.py --rounds 1`: mean total variation of the published loop's estimates", *columns,
            "chosen", "random links"]  # fmt: skip
    second = ["the noise of a selected marginal, as total variation (the departure of random links there)", *columns]
    return f"{table(head, *errors)}\n\n{table(second, *noises)}"


def linked_chains(found: Figures) -> str:
    """Return the errors of two links in a chain, with and without them in the division of the budget."""
    kinds = {"ours": "divided by errors of links and chains", "links": "divided by errors of links alone",
             "random": "tables apart, random links"}  # fmt: skip
    links = ("rentals", "payments", "customers to payments")
    columns = [f"{link}, ε = {epsilon}" for epsilon in ("1", "4") for link in links]
    head = ["`benchmarks/linked_tables.py --chains`: mean total variation, generated rentals, 4 seeds", *columns]
    return table(head, *([label, *(f"{found[f'{link}, {kind}, {epsilon}']:.4f}" for epsilon in ("1", "4")
                                   for link in links)] for kind, label in kinds.items()))  # fmt: skip


def _beyond(found: Figures) -> str:
    """Return the errors of siblings, chains and whole databases."""
    rows = [
        ("pairs of siblings, Berka's orders, not measured", "siblings, without"),
        ("the same, measured", "siblings, with"),
        ("3-way cross marginals of those links, siblings not measured", "siblings, without, cross"),
        ("the same, measured", "siblings, with, cross"),
        ("user × director over synthetic films", "chain, without"),
        ("the same, with the degree of a film as an attribute (`counts`)", "chain, with"),
        ("Berka's accounts and orders, both synthetic", "whole, order, ours"),
        ("the same tables with random links", "whole, order, apart"),
        ("MovieLens 100K, both tables synthetic", "whole, 100K, ours"),
        ("the same tables with random links", "whole, 100K, apart"),
    ]
    head = ["`benchmarks/relational.py --more 3`: mean total variation, 3 seeds", *(f"ε = {e}" for e in MORE_EPSILONS)]
    return table(head, *([label, *(f"{found[f'{key}, {e}']:.4f}" for e in MORE_EPSILONS)] for label, key in rows))


LINKED_KINDS = {"ours": "dpscale", "published": "published mechanism"}
MORE_EPSILONS = ("1", "2", "4")


LINK_EPSILONS = ("0.25", "0.5", "1", "2", "4")


def _links(found: Figures, key: str, label: str, random: float) -> list[str]:
    cells = [f"{found[f'{key}, {e}']:.4f}" for e in LINK_EPSILONS]
    largest = [found.get(f"{key}, {e}, largest") for e in LINK_EPSILONS]
    cells = [cell if most is None else f"{cell} ({most:.4f})" for cell, most in zip(cells, largest, strict=True)]
    return [label, *cells, f"{random:.4f}", significant(found[f"{key}, seconds"], 2)]


def ends(found: Figures, key: str, times: bool = False) -> str:
    """Return the least and the largest ratio of the printed figure to ours, and the number of rows."""
    if f"{key}, least" not in found:
        return ""
    show = ratio if times else fine
    least, most = (show(found[f"{key}, {end}"]) for end in ("least", "most"))
    return f"{least} to {most} ({found[f'{key}, rows']:.0f})"


def ranges(found: Figures, head: str, columns: Sequence[str], names: Sequence[str], times: bool = False) -> str:
    """Return a table of `ends` by mechanism and table of the paper."""
    lines = ([name, *(ends(found, f"{column}, {name}", times) for column in columns)] for name in names)
    return table([head, *columns], *lines)


def hdmm_paper(found: Figures) -> str:
    names = ("Identity", "H2", "Wavelet", "HB", "GreedyH", "OPT0", "Workload", "DataCube", "OPT⊗", "OPT+", "OPT_M",
             "HDMM", "SVDB")  # fmt: skip
    head = "`benchmarks/papers.py hdmm`: the paper's error over ours, least to most (rows)"
    errors = ranges(found, head, [f"table {number}" for number in range(4, 8)], names)
    totals = table(
        ["table 3: total squared error", *HDMM_3],
        ["dpscale", *(f"{found[f'table 3, {name}']:,.0f}" for name in HDMM_3)],
        ["paper", *(f"{paper:,}" for paper in HDMM_3.values())],
    )
    searches = sorted({key.split(", ")[1] for key in found if key.startswith("figure 3, ")})
    ways, part = ("OPT⊗", "OPT+", "OPT_M"), "figure 3 (c)"
    sizes = {key.split(", ")[1]: None for key in found if key.startswith(part)}
    built = table(
        ["figure 3 (c): seconds of the reconstruction of all sets of three", *ways],
        *([size, *(seconds(found[f"{part}, {size}, {name}"]) if f"{part}, {size}, {name}" in found else "refused"
                   for name in ways)] for size in sizes),
    )  # fmt: skip
    times = table(
        ["figure 3: seconds of a search, Gaussian noise", *ways],
        *([label, *(seconds(found[f"figure 3, {label}, {name}"]) for name in ways)] for label in searches),
    )
    speed = " and ".join(f"{significant(found[f'figure 2, {noise}'], 2)} s under {noise.capitalize()} noise (paper: "
                         f"under {most:g})" for noise, most in HDMM_FIGURE_2.items())  # fmt: skip
    return (
        f"{errors}\n\n{totals}\n\n{times}\n\n{built}\n\nFigure 2, all ranges of 1,024 cells: {speed}. LRM and COA: "
        "the paper's figures are printed next to ours; tables 4 and 5 up to 1,024 cells, range and prefix up to 4,096. "
        "HDMM is the best search; ours has "
        "OPT_M with a strategy per attribute too. The predicates of SF1 are not those of the paper, which lists none."
    )


def seconds(value: float) -> str:
    return f"{value:.3f}"


def query_smasher_paper(found: Figures) -> str:
    names = ("residual-planner-plus", "weighted-fourier", "hdmm", "query-smasher", "weighted-residuals")
    head = "`benchmarks/papers.py query-smasher`: the paper's error over ours, least to most (rows)"
    errors = ranges(found, head, [f"table {number}" for number in (2, 3, 4, 5, 8)], names)
    times = ranges(found, "the paper's time (128-core server) over ours", ["table 6", "table 7"], names[3:], True)
    start = "table 4, prefix base, "
    known = {key.removeprefix(start): value for key, value in found.items() if key.startswith(start)}
    based = ", ".join(f"{value:.3f} ({family.replace(' ', ', ')} cells)" for family, value in known.items())
    return (
        f"{errors}\n\n(`weighted-residuals` is compared with the paper's own method. `residual-planner-plus` has "
        "the best named base of each attribute. The paper's RP+ has one base for all families: with the optimal base "
        f"of prefix queries for all of them, the printed errors are {based} times ours.)\n\n{times}"
    )


def eigen_design(found: Figures) -> str:
    example = table(
        ["`benchmarks/papers.py eigen-design`: example 4, RMSE", *EIGEN_EXAMPLE_4],
        ["dpscale", *(f"{found[f'example 4, {name}']:.2f}" for name in EIGEN_EXAMPLE_4)],
        ["paper", *(f"{paper:.2f}" for paper in EIGEN_EXAMPLE_4.values())],
    )
    return "\n\n".join((example, _figure_3(found), _table_2(found), _figures_4_and_5(found)))


def _figure_3(found: Figures) -> str:
    lines = []
    for kind in ("range", "marginals"):
        for error, key in (("workload error", f"figure 3, {kind}"), ("relative error", f"relative, {kind}")):
            low, high = EIGEN_FIGURE_3[f"{kind}, {error}"]
            over = f"{key}, bound"
            most = f"{found[over]:.3f} ({EIGEN_OVER_BOUND if kind == 'range' else 1})" if over in found else ""
            ours = f"{found[f'{key}, least']:.2f} to {found[f'{key}, most']:.2f}"
            lines.append([f"{kind}, {error}", f"{ours} ({low} to {high})", most])
    head = ["figure 3, 2,048 cells, relative error on Adult: ours (paper)", "best competitor over Eigen-Design",
            "most over the bound"]  # fmt: skip
    return table(head, *lines)


def _table_2(found: Figures) -> str:
    lines = []
    for label, ((best, worst, floor), (low, high)) in EIGEN_TABLE_2.items():
        pairs = {"best": best, "worst": worst, "bound": floor, "relative, best": low, "relative, worst": high}
        lines.append([label, *(f"{found[f'{label}, {key}']:.2f} ({paper:.2f})" for key, paper in pairs.items())])
    head = ["table 2, over Eigen-Design: ours (paper)", "best competitor", "worst", "bound", "best, relative error",
            "worst"]  # fmt: skip
    orders = ", ".join(f"{found[f'1D CDF, {order}, best']:.2f} and {found[f'1D CDF, {order}, worst']:.2f} for {order}"
                       for order in ("descending counts", "ascending counts", "equal counts"))  # fmt: skip
    return table(head, *lines) + (
        "\n\nThe smallest sums, those of the first cells, decide the relative error of cumulative queries (1D CDF), "
        f"and so does the order of the counts: best and worst competitor have {orders}. The paper's census extract, "
        "which is not public, has the sign of these."
    )


def _figures_4_and_5(found: Figures) -> str:
    reduced = table(
        ["figure 4, 8,192 cells, over the bound: ours (paper)", "full", "groups of 16", "6 % principal",
         "competitors"],
        *([kind, f"{found[f'figure 4, {kind}, full']:.3f}",
           *(f"{found[f'figure 4, {kind}, {name}']:.3f} ({paper:.2f})" for name, paper in
             zip(("groups of 16", "6 % principal"), EIGEN_FIGURE_4[kind], strict=True)),
           ", ".join(f"{name} {found[f'figure 4, {kind}, {name}']:.3f}" for name in names)]
          for kind, names in (("range", ("wavelet", "hierarchical")), ("marginals", ("Fourier", "DataCube")))),
    )  # fmt: skip
    lines, names = [], ("wavelet", "Walsh-Hadamard", "discrete Fourier")
    for kind in ("range", "range, permuted", "marginals", "marginals, permuted"):
        paper = EIGEN_FIGURE_5.get(kind)
        printed = "" if paper is None else f" ({'above ' if 'permuted' in kind else ''}{paper:g})"
        values = [f"{found[f'figure 5, {kind}, {name}']:.3f}" for name in names]
        lines.append([kind, *(value + printed for value in values[:2]), values[2]])
    head = ["figure 5, design queries over eigen-queries: ours (paper)", *names]
    return f"{reduced}\n\n{table(head, *lines)}"


DATA = {"100K": "MovieLens 100K", "persons": "generated persons and parents"}
PAPER_EPSILONS = ("1", "2", "4")


def relational_paper(found: Figures) -> str:
    lines = []
    for name, label in DATA.items():
        for mechanism in ("AIM", "MST"):
            key = f"figure 3, {name}, {mechanism}"
            for kind, own in (("dpscale", "ours"), ("published", "published")):
                errors = [f"{found[f'{key}, {own}, {epsilon}']:.4f}" for epsilon in PAPER_EPSILONS]
                lines.append([f"{label}, tables by {mechanism}, {kind}", *errors, f"{found[f'{key}, random']:.4f}"])
    error = "mean total variation of 3-way cross marginals, tables at ε = 1"
    sweep = (f"ε_rel = {epsilon}" for epsilon in PAPER_EPSILONS)
    head = [f"`benchmarks/papers.py relational`, figure 3: {error}", *sweep, "random links"]
    sweeps = []
    for number in range(4, 8):
        start = f"figure {number}, "
        own = {key.removeprefix(start): value for key, value in found.items() if key.startswith(start)}
        values = ", ".join(f"{name} {value:.4f}" for name, value in own.items() if name not in ("ours", "random"))
        sweeps.append([f"figure {number}", values, f"{own['ours']:.4f}", f"{own['random']:.4f}"])
    sweep = ["MovieLens 100K, tables by AIM, ε_rel = 2", "published", "dpscale", "random links"]
    return f"{table(head, *lines)}\n\n{table(sweep, *sweeps)}"


AHEAD = {"cells": "marginals", "cumulative": "prefixes and ranges"}


def adaptive(found: Figures) -> str:
    rows = {
        "`aim-grem`": "ours",
        "product of 1-ways with the whole budget": "product of 1-ways",
        "`residual-planner` with `maxent`": "ResidualPlanner, maxent",
        "AIM+GReM as published": "AIM+GReM as published",
        "`residual-planner`": "ResidualPlanner",
    }
    columns = ("adult, 0.1", "adult, 1", "adult, 10", "acs, 1", "salary, 1", "titanic, 1")
    head = (
        "`benchmarks/adaptive.py`: all 3-way marginals, mean L1 error / N, δ = 10⁻⁹, 3 seeds",
        "Adult, ε = 0.1", "ε = 1", "ε = 10", "ACS, ε = 1", "salary, ε = 1", "titanic, ε = 1",
    )  # fmt: skip
    shown = ([label, *(times(found, f"{key}, {column}") for column in columns)] for label, key in rows.items())
    elsewhere = "(Published for Adult: AIM with Private-PGM 0.345 in 133 s at ε = 0.1 and 0.166 in 349 s at ε = 1.)"
    return f"{table(head, *shown)}\n\n{elsewhere}\n\n{every_table(found)}"


def every_table(found: Figures) -> str:
    """Return the errors of `aim-grem` and of the product of 1-ways on all tables, with the seconds of a run."""
    epsilons = ("0.1", "1", "10")
    head = ("the same, on every table", *(f"`aim-grem`, ε = {e}" for e in epsilons),
            *(f"product, ε = {e}" for e in epsilons), *(f"seconds, ε = {e}" for e in epsilons))  # fmt: skip
    names = dict.fromkeys(key.split(", ")[1] for key in found if key.startswith("ours, ") and "seconds" not in key)
    lines = ([name, *(times(found, f"{kind}, {name}, {e}") for kind in ("ours", "product of 1-ways", "ours, seconds")
                      for e in epsilons)] for name in names)  # fmt: skip
    return table(head, *lines)


def rows(found: Figures) -> str:
    columns = [("adult", "0.1"), ("adult", "1"), ("adult", "10"), ("acs", "1"), ("salary", "1"), ("titanic", "1")]
    head = (
        "`benchmarks/rows.py`: all 3-way marginals, mean L1 error / N, δ = 10⁻⁹, 3 seeds",
        "Adult, ε = 0.1",
        "ε = 1",
        "ε = 10",
        "ACS, ε = 1",
        "salary, ε = 1",
        "titanic, ε = 1",
    )
    labels = {
        "synthetic rows, as many as records": "rows",
        "the same, not polished": "unpolished",
        "as many records drawn from the estimate of each set by itself": "floor",
        "the estimates from which they are sampled": "estimates",
    }
    lines = [[label, *(fine(found[f"{t}, {e}, {key}"]) for t, e in columns)] for label, key in labels.items()]
    note = (
        f"\n\n(Adult, ε = 1: {found['seconds']:.1f} CPU seconds after the release, "
        f"{found['unpolished seconds']:.1f} not polished. "
        "Published: AIM by Private-PGM 0.179 in 349 s, "
        "dpsynth's SWIFT 0.180 in 302 s, MST 0.226 in 41 s.)"
    )
    ratios = ", ".join(
        f"{found[f'mean ratio, {e}']:.3f} ({found[f'largest ratio, {e}']:.3f})" for e in ("0.1", "1", "10")
    )
    note += f"\n\n(Rows over estimates at ε = 0.1, 1, 10, mean (largest) of all tables: {ratios}.)"
    return table(head, *lines) + note


LAW_CASES = ("parity of 3", "parity of 4", "parity of 5", "sums modulo 4", "two laws", "beside pairs and triples")


def laws(found: Figures) -> str:
    """Return the strength of laws in estimates and rows, and the scores of forests."""
    mechanisms = ("weighted-residuals", "aim-grem", "aim-pgm")
    head = (
        "`benchmarks/laws.py`: 20,000 records, ε = 1, δ = 10⁻⁹, 2 seeds: least strength in estimates and rows; "
        "accuracy of a forest on rows",
        *(f"`{name}`" for name in mechanisms),
        "a forest on the records",
    )
    lines = []
    for case in LAW_CASES:
        keys = [f"{case}, {name}, epsilon 1" for name in mechanisms]
        shown = [", ".join(f"{found[f'{key}: {what}']:.3f}" for what in ("estimates", "rows", "forest on rows"))
                 for key in keys]  # fmt: skip
        lines.append([case, *shown, f"{found[f'{keys[0]}: forest on records']:.3f}"])
    outside = "parity of 4, outside the targets"
    kept, least = 100 * found[f"{outside}: kept"], found[f"{outside}: rows"]
    return table(head, *lines) + (
        "\n\n(A parity of 4 of 11 attributes at ε = 4, with all 3-way marginals as targets and `degree` 4: `aim-grem` "
        f"finds it in {kept:.0f} % of 10 seeds; least strength in rows {least:.3f}.)"
    )


def graphical(found: Figures) -> str:
    head = (
        "`benchmarks/graphical.py`: Adult, ε = 1, as above; the same measurements for `mbi`",
        "estimates", "rows, sampler", "rows, junction tree", "rows by `mbi`", "seconds", "`mbi`'s fit alone",
    )  # fmt: skip
    shown = []
    for name in ("aim-grem", "aim-pgm", "mst"):
        own = {
            key: found.get(f"{name}, {key}") for key in ("estimates", "rows, sampler", "rows, ancestral", "rows, mbi")
        }
        peer = found.get(f"{name}, mbi, fit, s")
        took = [significant(found[f"{name}, seconds"], 2), "" if peer is None else significant(peer, 2)]
        shown.append([f"`{name}`", *("" if value is None else fine(value) for value in own.values()), *took])
    alone = ["independent attributes", "", fine(found["aim-grem, rows, independent"]), "", "", "", ""]
    again = significant(found["mst, mbi, fit again, s"], 2)
    note = f"(`mbi`'s fit compiles its own code; the same tree of `mst` fitted again takes it {again} s.)"
    return f"{table(head, *shown, alone)}\n\n{note}"


GREM_TABLES = {"adult": "Adult", "acs": "ACS", "loans": "Loans"}
GREM_MECHANISMS = ("residual-planner", "aim-grem, published", "aim-grem, default", "mst", "aim-pgm, published",
                   "aim-pgm, default")  # fmt: skip
GREM_METRICS = {"L1": "mean L1 error / N", "L2": "mean L2 error / N", "max L1": "largest L1 error / N",
                "seconds": "CPU seconds of the run and all answers"}  # fmt: skip
GREM_PAPER = {"adult": "8.10, 16.6, 150", "acs": "312, 608, 14,095", "loans": "37.9, 489, 3,507"}
GREM_PAPER_ERRORS = {"adult": 10.166 / 9.532, "acs": 0.060 / 0.053, "loans": 641.795 / 622.507}


def aim_grem(found: Figures) -> str:
    """Return the tables of the AIM+GReM paper: updates and allocation, errors by mechanism, the loop, transforms."""
    kinds = ("lazy, CRP", "touched, CRP", "lazy, IID", "touched, IID", "full, IID")
    head = (
        "`benchmarks/aim_grem.py`: a fixed sequence of all 3-way marginals, ε = 1, CPU seconds", *kinds,
        "paper: lazy CRP, lazy IID, full IID", "L1 error / N, CRP", "IID", "IID over CRP", "paper",
    )  # fmt: skip
    lines = []
    for name, label in GREM_TABLES.items():
        crp, iid = (found[f"table 2, {name}, error, {kind}"] for kind in ("CRP", "IID"))
        times = (significant(found[f"table 2, {name}, {kind}"], 3) for kind in kinds)
        lines.append(
            [label, *times, GREM_PAPER[name], fine(crp), fine(iid), fine(iid / crp), fine(GREM_PAPER_ERRORS[name])]
        )
    metrics = (_by_mechanism(found, metric, what) for metric, what in GREM_METRICS.items())
    return "\n\n".join(
        [table(head, *lines), _reconstructions(found), *metrics, _shapes(found), _models(found), _grem_notes(found)]
    )


def _reconstructions(found: Figures) -> str:
    """Return the reconstructions of a round in the fixed sequence, by kind of update."""
    kinds = [f"{kind}, {short}" for short in ("CRP", "IID") for kind in ("lazy", "touched", "full")]
    head = (
        "`benchmarks/aim_grem.py`: the same sequence, reconstructions of a residual in a marginal, per round",
        *kinds,
    )
    return table(head, *([label, *(significant(found[f"table 2, {name}, {kind}, Recon"], 3) for kind in kinds)]
                         for name, label in GREM_TABLES.items()))  # fmt: skip


def _shapes(found: Figures) -> str:
    """Return errors and seconds on tables with the paper's numbers of attributes."""
    keys = [key.removesuffix(", L1") for key in found if key.startswith("shape ") and key.endswith(", L1")]
    shapes = dict.fromkeys(key.split(", ")[0].removeprefix("shape ") for key in keys)
    names = dict.fromkeys(key.split(", ", 1)[1] for key in keys)
    head = ("`benchmarks/aim_grem.py --only shapes`: L1 error / N, ε = 1, CPU seconds",
            *(f"{count} attributes" for count in shapes))  # fmt: skip
    return table(head, *([f"`{name}`", *(_error_in_seconds(found, f"shape {count}, {name}") for count in shapes)]
                         for name in names))  # fmt: skip


def _error_in_seconds(found: Figures, key: str) -> str:
    return f"{fine(found[f'{key}, L1'])} in {significant(found[f'{key}, seconds'], 3)} s"


def _models(found: Figures) -> str:
    """Return the cells of published AIM+PGM, with the time at which those were stopped that did not end."""
    keys = [key.removesuffix(", seeds") for key in found if key.startswith("models, ") and key.endswith(", seeds")]
    head = ("`benchmarks/papers.py aim-grem --nightly`: AIM+PGM as published, L1 error / N, CPU seconds (seeds)",
            "ε = 0.1", "1", "10")  # fmt: skip

    def cell(key: str) -> str:
        own = _error_in_seconds(found, key) if f"{key}, L1" in found else "none"
        late = f", stopped after {found[f'{key}, stopped']:.0f} s" if found[f"{key}, stopped"] else ""
        return f"{own} ({found[f'{key}, seeds']:.0f}){late}"

    tables = dict.fromkeys(key.split(", ")[1] for key in keys)
    return table(head, *([GREM_TABLES[name], *(cell(f"models, {name}, {epsilon}") for epsilon in ("0.1", "1", "10"))]
                         for name in tables))  # fmt: skip


def _by_mechanism(found: Figures, metric: str, what: str) -> str:
    """Return one metric of every mechanism by table and ε; blank if it was not run."""
    columns = [(name, epsilon) for name in GREM_TABLES for epsilon in ("0.1", "1", "10")]
    head = (f"`benchmarks/aim_grem.py`: all 3-way marginals, δ = 10⁻⁹, {what}",
            *(f"{GREM_TABLES[name]}, ε = {epsilon}" for name, epsilon in columns))  # fmt: skip
    lines = []
    for mechanism in GREM_MECHANISMS:
        values = [found.get(f"{name}, {epsilon}, {mechanism}, {metric}") for name, epsilon in columns]
        lines.append([f"`{mechanism}`", *("" if value is None else significant(value, 3) for value in values)])
    return table(head, *lines)


def _grem_notes(found: Figures) -> str:
    """Return the comparison of the loops, of the transforms and of the sizes of the model."""
    loops = "; ".join(
        f"{key.removeprefix('loop, ').removesuffix(', touched')} {significant(value, 3)} s against "
        f"{significant(found[key.replace('touched', 'lazy')], 3)} s"
        for key, value in found.items()
        if key.startswith("loop, ") and key.endswith(", touched")
    )
    recons = "; ".join(
        f"{key.removeprefix('loop, ').removesuffix(', touched, Recon')} {significant(value, 3)} against "
        f"{significant(found[key.replace('touched', 'lazy')], 3)}"
        for key, value in found.items()
        if key.startswith("loop, ") and key.endswith(", touched, Recon")
    )
    refits = "; ".join(
        f"{name} {found[f'default, {name}, residuals averaged']:.1f} residuals averaged, "
        f"{found[f'default, {name}, tables fitted']:.1f} tables of {found[f'default, {name}, candidates']:.0f} "
        f"candidates fitted again, in {found[f'default, {name}, rounds']:.0f} rounds"
        for name in GREM_TABLES
    )
    speedups = ", ".join(
        f"{name} {significant(found[f'{name}, {setting}'], 3)} ({setting})"
        for setting in ("fixed size", "fixed degree")
        for name in ("Decomp", "Recon")
    )
    sizes = "; ".join(
        f"{size} MB {fine(found[f'sizes, {size} MB, L1'])} in {significant(found[f'sizes, {size} MB, seconds'], 3)} s"
        for size in (10, 50)
    )
    return (
        f"(Selection loop of `published = true`, ε = 1, touched against lazy updates, same selections: {loops}. "
        f"Reconstructions of a residual in a marginal, per round, touched against lazy: {recons}. "
        f"Default `aim-grem`, per round: {refits}. "
        f"Mean speedup of in-axis over dense Kronecker transforms: {speedups}; the paper: Decomp 3.14 and 3.75. "
        f"Published `aim-pgm` on Adult at ε = 1 by the size of the model, 1 MB in the tables: {sizes}. "
        "Two seeds, `aim-pgm` one; ACS is NIST's excerpt of 24 attributes, Loans is generated from the schema of 12; "
        "the paper's tables have 15, 66 and 43 attributes and are not published.)"
    )


def usefulness(found: Figures) -> str:
    """Return the scores on Adult of models trained on rows and on records, and of models that separate the two."""
    labels = {
        "predicting income: trained on rows, tested on records excluded from the job": "trained on rows",
        "the same, trained on the records of the job": "trained on records",
        "separating rows from excluded records (0.5: indistinguishable)": "propensity, kept out",
        "separating rows from the records of the job": "propensity, the job's",
    }
    what = "gradient boosting on Adult, area under the curve, δ = 10⁻⁹, 3 seeds"
    head = (f"`benchmarks/row_quality.py usefulness`: {what}", "ε = 0.1", "ε = 1", "ε = 10")
    lines = ([label, *(fine(found[f"{e}, {key}"]) for e in ("0.1", "1", "10"))] for label, key in labels.items())
    return table(head, *lines)


def declared_parents(found: Figures) -> str:
    """Return the errors with and without a declared hierarchy of regions and towns."""
    orders = {"in order": "listed region by region", "in any order": "in any order"}
    what = "60 towns in 8 regions and five attributes, 3-way marginals, mean L1 error / N"
    head = (f"`benchmarks/row_quality.py declared_parents`: {what}",
            "ε = 0.1", "ε = 1", "ε = 10")  # fmt: skip
    lines = []
    for kind, order in orders.items():
        own = [[found[f"{kind}, {epsilon}, {what}"] for epsilon in ("0.1", "1", "10")]
               for what in ("declared", "not", "wrong")]  # fmt: skip
        lines += [[f"towns {order}, hierarchy declared", *(f"{one:.3f}" for one in own[0])],
                  ["not declared", *(f"{one:.3f}" for one in own[1])],
                  ["not declared: records in a wrong region", *(f"{100 * one:.1f} %" for one in own[2])]]  # fmt: skip
    return table(head, *lines)


def targets(found: Figures) -> str:
    """Return the scores of models that are trained on rows with and without a target, and the gain of a target."""
    head = ("`benchmarks/row_quality.py targets`: area under the curve of gradient boosting, 4,000 records, δ = 10⁻⁹, "
            "20 seeds", "trained on rows", "on rows with a target", "gain", "on the records")  # fmt: skip
    rows = []
    for case in dict.fromkeys(name.rpartition(", ")[0] for name in found):
        plain, aimed, gain, error, records = (found[f"{case}, {what}"] for what in (
            "rows", "rows with a target", "gain", "error of the gain", "records"))  # fmt: skip
        rows.append([case.replace(", 0.1", ", ε = 0.1"), f"{plain:.2f}", f"{aimed:.2f}", f"{gain:.2f} ± {error:.2f}",
                     f"{records:.2f}"])  # fmt: skip
    return f"{table(head, *rows)}\n\n(± is the standard error of the mean of 20 differences.)"


def row_classes(found: Figures) -> str:
    """Return the errors of rows by number of attributes, over the least of estimates and rows of pairs."""
    parts = [name.split(", ") for name in found]
    epsilons, orders = (list(dict.fromkeys(part[at] for part in parts)) for at in (2, 3))
    head = ("`benchmarks/row_quality.py classes`: error of rows over the least of estimates and rows of pairs, of sets "
            f"of {', '.join(order[0] for order in orders)} attributes, all 3-way marginals, δ = 10⁻⁹",
            *(f"ε = {epsilon}" for epsilon in epsilons))  # fmt: skip
    cases = dict.fromkeys(f"{name}, {mechanism}" for name, mechanism, *_ in parts)
    rows = [[case, *(", ".join(f"{found[f'{case}, {epsilon}, {order}']:.2f}" for order in orders)
             for epsilon in epsilons)] for case in cases]  # fmt: skip
    above = sum(ratio > 1.05 for ratio in found.values()) / len(found)
    return f"{table(head, *rows)}\n\n(Above 1.05 are {100 * above:.0f} % of the {len(found)} cells.)"


def rules(found: Figures) -> str:
    """Return the share of rows that break a rule, and the error of counts, with and without rules."""
    what = "20,000 stays, `discharge >= admission` and `part <= whole`, rows of all 2-way marginals"
    head = (f"`benchmarks/row_quality.py rules`: {what}", "ε = 0.1", "ε = 1", "ε = 10")
    lines = []
    for mechanism in dict.fromkeys(key.split(", ")[0] for key in found):
        own = [[found[f"{mechanism}, {epsilon}, {figure}"] for epsilon in ("0.1", "1", "10")]
               for figure in ("free", "broken", "ratio")]  # fmt: skip
        lines += [[f"`{mechanism}`: rows that break a rule without rules", *(f"{100 * one:.1f} %" for one in own[0])],
                  ["with rules", *(f"{100 * one:.1f} %" for one in own[1])],
                  ["error of 1- and 2-way counts, with over without", *(f"{one:.3f}" for one in own[2])]]  # fmt: skip
    return table(head, *lines)


def ahead(found: Figures) -> str:
    """Return the advantage of the adaptive mechanism by the relative error of the plan."""
    edges = list(dict.fromkeys(key.split(", ")[0].split()[1] for key in found))
    names = [f"{low} to {high}" for low, high in pairwise(edges)] + [f"above {edges[-1]}"]
    what = "error of the plan relative to the mean count of a query with records spread evenly"
    head = (f"`benchmarks/ahead.py`: {what}", *names)
    return table(head, *(line for kind, label in AHEAD.items() for line in _kind_lines(found, edges, kind, label)))


def _kind_lines(found: Figures, edges: list[str], kind: str, label: str) -> list[list[str]]:
    def format_values(name: str, form: str, scale: int = 1) -> list[str]:
        values = [found.get(f"{kind} {low}, {name}") for low in edges]
        return ["" if value is None else format(scale * value, form) for value in values]

    return [[f"{label}: cases (families, degrees, tables, ε)", *format_values("cases", ".0f")],
            ["error of `weighted-residuals` over that of `aim-grem`, geometric mean", *format_values("ratio", ".2f")],
            ["cases in which `aim-grem` is more accurate, %", *format_values("ahead", ".0f", 100)]]  # fmt: skip


OURS, ROWS = "dpscale aim-grem", "dpscale aim-grem, rows"
LABELS = {
    OURS: "`aim-grem`", ROWS: "`aim-grem`, rows", "mbi AIM": "`mbi`: AIM", "mbi MST": "MST",
    "mbi mixture": "mixture of products", "dpsynth SWIFT": "`dpsynth`: SWIFT", "dpmm AIM": "`dpmm`: AIM",
    "dpmm MST": "MST", "dpmm PrivBayes": "PrivBayes",
}  # fmt: skip


def rivals(found: Figures) -> str:
    """Return the table of all cells, the limits, and where a rival is ahead."""
    cells = list(dict.fromkeys(key.removeprefix(f"{OURS}, ") for key in found
                               if key.startswith(f"{OURS}, ") and not key.startswith(ROWS)
                               and not key.endswith((", seconds", ", seeds"))))  # fmt: skip
    names = [name for name in LABELS if any(key.startswith(f"{name}, ") for key in found)]
    head = ("`benchmarks/adaptive.py --rivals`: mean L1 error / N (seeds), CPU seconds", "ε",
            *(LABELS[name] for name in names))  # fmt: skip
    lines = [[*cell.split(", "), *(outcome(found, f"{name}, {cell}") for name in names)] for cell in cells]
    return f"{table(head, *lines)}\n\n{limits(found)} {rivals_ahead(found, cells, names)}"


def outcome(found: Figures, key: str) -> str:
    """Return error and seconds of a cell, or how its runs ended."""
    value = found.get(key, "")
    if isinstance(value, str):
        return value
    return f"{fine(value)} ({found[f'{key}, seeds']:g}), {significant(found[f'{key}, seconds'], 2)} s"


def limits(found: Figures) -> str:
    """Return the sentences about the limits and the outcomes that occur in the table."""
    return (f"Each run is limited to {found['seconds of a run']:g} CPU seconds and {found['GiB of a run']:g} GiB. "
            f"A run that takes more than {found['seconds of a repeated run']:g} s is not repeated; all runs took "
            f"{found['CPU minutes']:.0f} CPU minutes. "
            "SWIFT has 2,500 steps instead of 10,000; step size and candidates of the mixture were chosen on nursery "
            "at ε = 1 with the first seed; other options are defaults or those of the papers. Other programs shared "
            "the cores. "
            + outcomes(found)).strip()  # fmt: skip


def outcomes(found: Figures) -> str:
    """Return the sentences about the ends of runs that occur in a table."""
    notes = {
        "not run": '"Not run": over a limit at a smaller ε.',
        "not reached": '"Not reached": the whole run was stopped before.',
        "failed": '"Failed": the package raised an error.',
    }
    return " ".join(note for word, note in notes.items() if word in found.values())


def rivals_ahead(found: Figures, cells: list[str], names: list[str]) -> str:
    """Return the sentence that says where a rival has a smaller error than the estimates of `aim-grem`."""
    others = [name for name in names if name not in (OURS, ROWS)]
    done, better, least = 0, [], []
    for cell in cells:
        errors = {name: found[f"{name}, {cell}"] for name in others
                  if not isinstance(found.get(f"{name}, {cell}", ""), str)}  # fmt: skip
        if not errors:
            continue
        done += 1
        best, ours = min(errors, key=lambda name: errors[name]), found[f"{OURS}, {cell}"]
        least.append(errors[best] / ours)
        if errors[best] < ours:
            where, epsilon = cell.split(", ")
            better.append(f"{where} at ε = {epsilon} (`{best.split()[0]}` {best.split()[1]}: {errors[best] / ours:.2f} "
                          f"times the error)")  # fmt: skip
    if not done:
        return "No run of a rival ended within the limits."
    start = (f"The best rival has {min(least):.2f} to {max(least):.2f} times the error of the estimates of `aim-grem` "
             f"in the {done} of {len(cells)} cells in which a rival ends within the limits; ")  # fmt: skip
    if not better:
        return f"{start}a rival is ahead in none."
    return f"{start}a rival is ahead in {len(better)}: {'; '.join(better)}."


ROW_LABELS = {
    "records drawn again": "records drawn again, not private", "records columns alone": "columns alone, not private",
    "dpscale weighted-residuals": "`weighted-residuals`", "dpscale aim-grem": "`aim-grem`",
    "dpscale aim-pgm": "`aim-pgm`", "mbi AIM": "`mbi`: AIM", "mbi MST": "`mbi`: MST",
    "mbi mixture": "`mbi`: mixture of products", "dpsynth SWIFT": "`dpsynth`: SWIFT", "dpmm AIM": "`dpmm`: AIM",
    "dpmm MST": "`dpmm`: MST", "dpmm PrivBayes": "`dpmm`: PrivBayes", "margnet MargNet": "MargNet",
}  # fmt: skip
LEARNERS = ("logistic regression", "tree", "forest", "boosting")


def row_rivals(found: Figures) -> str:
    """Return the measures of the rows of every package, the limits, and the packages that were not run."""
    head = ("`benchmarks/adaptive.py --rivals --rows`: rows of", "table", "ε", "distance, 1-way", "2-way", "3-way",
            f"balanced accuracy: {' / '.join(LEARNERS)}", "propensity", "membership",
            "CPU seconds (seeds)")  # fmt: skip
    runs = [key for key in found if key.count(", ") == 2 and key.rsplit(", ", 2)[0] in ROW_LABELS]
    cells = sorted(
        dict.fromkeys(tuple(key.split(", ")[1:]) for key in runs), key=lambda cell: (cell[0], float(cell[1]))
    )
    lines = [row_measures(found, name, cell) for cell in cells for name in ROW_LABELS
             if f"{name}, {', '.join(cell)}" in found]  # fmt: skip
    missing = "; ".join(f"{key.removesuffix(', not run')}: {value}" for key, value in found.items()
                        if key.endswith(", not run"))  # fmt: skip
    limit = (f"Each run is limited to {found['seconds of a run']:g} CPU seconds and {found['GiB of a run']:g} GiB; one "
             f"of more than {found['seconds of a repeated run']:g} s is not repeated; all took "
             f"{found['CPU minutes']:.0f} CPU minutes. A fifth of each table is held out. Propensity and membership "
             "are AUC, at best 0.5; copies of records are below it in the former. Other programs shared the cores. "
             f"{outcomes(found)}").strip()  # fmt: skip
    return f"{table(head, *lines)}\n\n{limit} Packages left out: {missing}."


def row_measures(found: Figures, name: str, cell: tuple[str, ...]) -> list[str]:
    """Return a line of the table of rows: all measures, or how the runs ended."""
    key = f"{name}, {', '.join(cell)}"
    start = [ROW_LABELS[name], *cell]
    if isinstance(found[key], str):
        return [*start, found[key], *[""] * 6]
    distances = [found[key], *(found[f"{key}, {degree}-way"] for degree in (2, 3))]
    scores = " / ".join(f"{found[f'{key}, {learner}']:.2f}" for learner in LEARNERS)
    return [*start, *(f"{value:.3f}" for value in distances), scores, f"{found[f'{key}, propensity']:.2f}",
            f"{found[f'{key}, membership']:.2f}",
            f"{found[f'{key}, seconds']:.1f} ({found[f'{key}, seeds']:g})"]  # fmt: skip


def wide_rivals(found: Figures) -> str:
    """Return the mechanisms that ended on generated tables of many attributes."""
    head = ("`benchmarks/wide_runs.py wide_rivals`: 66 attributes, mean L1 error / N (seeds), CPU seconds",
            "table", "ε", "result")  # fmt: skip
    cells = [key.removesuffix(", seconds") for key in found if key.endswith(", seconds")]
    lines = [[LABELS[(own := cell.rsplit(", ", 2))[0]], *own[1:], outcome(found, cell)] for cell in cells]
    limits = f"{found['seconds of a run']:g} CPU seconds and {found['GiB of a run']:g} GiB"
    repeated = f"{found['seconds of a repeated run']:g} CPU seconds"
    limit = (f"Each run is limited to {limits}; those of up to {repeated} are repeated. All took "
             f"{found['CPU minutes']:.1f} CPU minutes.")  # fmt: skip
    return f"{table(head, *lines)}\n\n{limit}"


def main_job(found: Figures) -> str:
    rows = {
        "`numpy.bincount` in a loop, counts in memory": "bincount",
        "dpscale, from plan to measurements on disk": "plan to measurements",
        "`numpy.bincount`, with its counts written as Parquet": "bincount written",
        "dpscale, whole job: every cell with its error as Parquet, and a report": "whole job",
        "`dask.dataframe` groupby-count, counts in memory": "dask groupby",
    }
    head = ("`benchmarks/main_job.py`: Adult, all 364 3-way marginals (20 million cells)", "ratio")
    return table(head, *([label, significant(found[key], 3)] for label, key in rows.items()))


def counting(found: Figures) -> str:
    own = (
        f"dpscale ({significant(found['ns'], 2)} ns a row, marginal and core; "
        f"one increment in memory takes {significant(found['increment ns'], 2)})"
    )
    what = (
        "10 million rows × 20 attributes of mixed sizes, all 1,140 3-way marginals, dpscale from Parquet "
        "(the others count a part of the rows or sets, scaled)"
    )
    head = (f"`benchmarks/counting.py`: {what}", "ratio")
    others = {
        "a loop of three lines compiled by Numba, in memory": "loop",
        "`numpy.bincount` in chunks of rows, in memory": "chunks",
        "`numpy.bincount`, in memory": "bincount",
        "DuckDB, a query for each set": "duckdb",
        "DuckDB, grouping sets": "grouping_sets",
        "pyarrow `group_by`": "pyarrow",
        "Polars": "polars",
        "`dask.dataframe`": "dask_groupby",
    }
    return table(head, [own, "1"], *([label, ratio(found[key])] for label, key in others.items()))


STAYS = {
    "llvmlite": "numba's compiler",
    "pyarrow": "reads and writes Parquet, CSV, Arrow and JSON; hashes, joins and sorts columns",
    "scipy": "transforms, sparse and symmetric solvers, quantiles",
    "numpy": "all counts and values",
    "pandas": "tables of the Python interface; imported by the first call that returns one",
    "numba": "loops over records, cells and random words",
    "dask": "schedulers of threads and processes",
    "cryptography": "keyed streams of noise (AES), sealed scratch files, signatures",
    "distributed": "clusters; without it, tasks on one machine only",
    "pydantic_core": "checks of job and domain files",
}


def install(found: Figures) -> str:
    labels = dict.fromkeys(key.split(",")[0] for key in found if key.endswith("distributions"))
    columns = ("distributions", "MB of download", "MB on disk")
    head = ("`benchmarks/install.py`: `pip install .` and its extras, on Linux", *columns)
    names = {one: "no extra" if one == "alone" else f"`{one}`" for one in labels}
    rows = [[name, *(f"{found[f'{one}, {key}']:.0f}" for key in columns)] for one, name in names.items()]
    sizes = {name: found[f"MB of {name}"] for name in STAYS}
    large = [[f"`{name}`", f"{size:.0f}", STAYS[name]] for name, size in sorted(sizes.items(), key=lambda one: -one[1])]
    return f"{table(head, *rows)}\n\n{table(('largest distributions', 'MB on disk', 'use'), *large)}"


def noise(found: Figures) -> str:
    rows = {
        "dpscale, σ = 2³⁰ (the usual case: a fine lattice)": significant(found["sigma 2^30"], 2),
        "dpscale, σ = 100": significant(found["sigma 100"], 2),
        "numpy's float normal (not exact)": significant(found["numpy"], 2),
        "OpenDP's discrete Gaussian, on a vector": significant(found["opendp"], 1),
    }
    return table(
        ("`benchmarks/noise.py`: exact discrete Gaussian noise, samples per second and core", "ratio"), *rows.items()
    )


def scaling(found: Figures) -> str:
    rows = {
        "work in registers, plain processes: the limit of the machine": "registers",
        "counting by plain processes, without merging the sums": "counting, bare",
        "counting": "counting",
        "planning": "planning",
        f"measuring 10,700 sets ({percent(found['measuring, driver'])} of it on the driver)": "measuring",
        f"an adaptive measure stage of {found['rounds, seconds']:.0f} s ({percent(found['rounds, driver'])} of it on "
        "the driver)": "rounds",
    }
    head = (
        "`benchmarks/scaling.py`: a Dask cluster of 1 and of 2 worker processes on two cores",
        "seconds on 1 / (2 × seconds on 2)",
    )
    shown = table(head, *([label, f"{found[key]:.2f}"] for label, key in rows.items()))
    lost = found["death, counting seconds again"]
    ended = (
        "no finished task of a counting pass"
        if lost < 0.05
        else f"{lost:.1f} s of the finished tasks of a counting pass"
    )
    error = found["model's error"]
    side = "low" if error < 0 else "high"
    return f"""{shown}

In the same run the scheduler's overhead was {significant(1e3 * found["overhead, seconds a task"], 2)} ms a task, \
{100 * found["overhead, share"]:.1f} % of measuring 10,700 sets; after the death of one of two workers,
{found["death, map seconds again"]:.1f} s of a map's calls and {ended} ran again. \
A list scheduler with the times of one worker predicts
the time of two workers {percent(abs(error))} too {side}; for the same sets on a table a thousand \
times as long (10⁹ rows) it predicts {found["simulated, 2"]:.1f} times the speed \
on 2 workers, {found["simulated, 10"]:.0f}
on 10, {found["simulated, 100"]:.0f} on 100 and {found["simulated, 1000"]:.0f} on 1,000, \
limited by the driver's share and the scheduler."""


def shares(found: Figures) -> str:
    what = {
        "wide": "300 attributes of four values, all pairs",
        "triples": "20 attributes of mixed sizes, 3-way",
        "adaptive": "`aim-grem`, 20 attributes, 3-way",
        "before, adaptive": "the same with the package of commit 2741c547",
        "adaptive66": "`aim-grem`, 66 attributes, 2-way",
    }
    heads = ("s on one worker, as measured", "of them driver", "on two: measured", "predicted",
             *(f"{rows} rows: {n} workers" for rows in ("10⁸", "10⁹", "10¹⁰") for n in ("100", "1,000")))  # fmt: skip
    lines = []
    for name, label in what.items():
        measured = [significant(found[f"{name}, {one}"], 2) for one in ("seconds", "driver", "on 2", "predicted on 2")]
        predicted = [f"{significant(found[f'{name}, {rows}, {n}, seconds'], 2)} s, "
                     f"{significant(found[f'{name}, {rows}, {n}, times'], 2)} ×"
                     for rows in ("1e+08", "1e+09", "1e+10") for n in ("100", "1000")]  # fmt: skip
        lines.append([label, *measured, *predicted])
    body = table(
        ("`benchmarks/shares.py`: whole jobs, from plan to report, and the model's prediction", *heads), *lines
    )
    return f"""{body}

× is the speed-up over one worker. The model uses the engine's graphs, call by call, with the calls of a round in \
sequence. Of the {significant(found["task, ms"], 2)} ms of an empty task,
{significant(found["scheduler, ms"], 2)} are CPU time of the scheduler, which handles tasks in sequence; the slowest \
of 64 equal tasks took {ratio(found["slowest"])} of their mean.
The two measured workers share two cores with driver and scheduler."""


def many_rows(found: Figures) -> str:
    return f"""\
`benchmarks/large_tables.py many_rows`: {found["rows"]:,.0f} synthetic rows of {found["attributes"]:.0f} attributes \
on a cluster of two workers in {found["seconds"]:.0f} s: \
{significant(1e6 * found["CPU seconds"] / found["rows"], 2)} CPU µs a row,
{found["files"]:,.0f} files of {found["GiB"]:.1f} GiB in all; peak {found["worker, GiB"]:.2f} GiB a worker, \
{found["driver, GiB"]:.2f} GiB the driver."""


def units(found: Figures) -> str:
    lines = []
    for kind, label in (("int", "integer ids"), ("text", "text ids")):
        for memory in ("4GiB", "256MiB"):
            own = {
                name: found[f"{kind}, {memory}, {name}"] for name in ("ns a row", "2-way ratio", "3-way ratio", "GiB")
            }
            lines.append([f"{label}, `memory = \"{memory}\"`", f"{own['ns a row']:.0f}", ratio(own["2-way ratio"]),
                          ratio(own["3-way ratio"]), f"{own['GiB']:.2f} GiB"])  # fmt: skip
    title = f"`benchmarks/units.py`: {found['rows']:,.0f} rows, at most three rows of a person"
    return table((title, "CPU ns a row to bound them", "CPU of counting all pairs with the bound, of that without",
                  "of counting all triples", "peak memory"), *lines)  # fmt: skip


def cluster_cost(found: Figures) -> str:
    what = {
        "threads": "threads, files",
        "cluster": "cluster of two workers, files",
        "data in S3": "threads, data in S3",
        "run directory in S3": "threads, run directory in S3",
    }
    lines = []
    for name, label in what.items():
        cells = [label]
        for start, kind in (("", "CPU"), ("before, ", "CPU"), ("", "wall"), ("before, ", "wall")):
            seconds = found[f"{start}{name}, {kind}"]
            cells += [f"{seconds:.0f} s, {ratio(seconds / found[f'{start}threads, {kind}'])} ×"]
        lines.append(cells)
    title = (
        f"`benchmarks/cluster_cost.py`: all pairs of 300 attributes, {found['rows']:,.0f} rows; × threads with files"
    )
    return table((title, "CPU", "CPU at commit 2741c547", "wall", "wall at commit 2741c547"), *lines)


def large_job(found: Figures) -> str:
    return f"""\
`benchmarks/large_job.py`: the [40]⁴⁰ job above on a million rows with `memory = "{found["memory"]}"` plans in \
{found["plan, seconds"]:.0f} s with {found["plan, GiB"]:.2f} GiB, counts and
measures all 10,701 residuals in {found["measure, seconds"]:.0f} s with {found["measure, GiB"]:.2f} GiB at its peak, \
and then answers a random query over three attributes in about
{found["answer, ms"]:.0f} ms."""


def many_sets(found: Figures) -> str:
    return f"""\
`benchmarks/large_tables.py many_sets`: all pairs of {found["attributes"]:,.0f} attributes of four values, \
{found["rows"]:,.0f} rows, two cores: planned in {found["plan, s"]:.0f} s, counted and
measured in {found["measure, s"]:.0f} s, answered in {found["reconstruct, s"]:.0f} s, \
reported in {found["report, s"]:.0f} s: {found["seconds"]:.0f} s in all with {found["peak, GiB"]:.1f} GiB at the peak. \
{found["files"]:.0f} files of
{found["MB"]:.0f} MB remain, including a report of {found["report, MB"]:.2f} MB; `Release.open` takes \
{found["open, s"]:.2f} s, one marginal {found["marginal, ms"]:.1f} ms."""


def cluster_kills(found: Figures) -> str:
    caused = {name.removeprefix("faults, "): count for name, count in found.items() if name.startswith("faults, ")}
    head = (f"`benchmarks/cluster_kills.py`: {sum(caused.values()):.0f} faults of processes of "
            f"{found['runs']:.0f} runs with a real noise key", "number")  # fmt: skip
    kinds = {
        "kill scheduler": "kills (SIGKILL) of the scheduler",
        "kill worker": "kills of a worker",
        "kill client": "kills of the client",
        "suspend scheduler": "suspensions (SIGSTOP, up to 15 s) of the scheduler",
        "suspend worker": "suspensions of a worker",
        "suspend client": "suspensions of the client, or of the driver on the cluster",
        "retire worker": "retired workers",
        "shrink worker": "workers of 300 MB in place of others",
        "older version": "workers that state an older version",
        "cancel": "cancelled drivers",
    }
    rows = {label: f"faults, {kind}" for kind, label in kinds.items()} | {
        "of all faults, before the first stage": "faults in stage start",
        "of all faults, in the stage that plans": "faults in stage plan",
        "of all faults, in the stage that draws noise": "faults in stage measure",
        "of all faults, in the stage that writes answers": "faults in stage reconstruct",
        "of all faults, in the stage that writes the report": "faults in stage report",
        "runs with a fixed plan": "runs, fixed plan",
        "runs with `aim-grem`": "runs, aim-grem",
        "of all runs, with the driver on the cluster (`submit`)": "submitted",
        "repetitions of the command": "resumptions",
        "refusals (exit code 2) of a small or older worker": "refusals",
        "files of values and decisions that were observed": "files",
        "comparisons of the visible files with the ledger": "audits",
        "of these, while another process locked the ledger": "locked ledgers",
        "seconds": "seconds",
        "CPU seconds": "CPU seconds",
        "violations of: one charge, one draw, same answers, nothing left, no task on an older version": "violations",
    }
    return table(head, *([label, f"{found.get(key, 0):,.0f}"] for label, key in rows.items()))


def growth(found: Figures) -> str:
    what = {
        "rows": "rows: a whole job, all pairs of 10 attributes",
        "duckdb": "the same pairs counted by DuckDB",
        "polars": "by Polars",
        "attributes": "attributes of four values: planning all pairs",
        "cells": "cells of one attribute: planning a 1-way prefix",
        "sets": "attributes of ten cells: planning 1-way range + 2-way affine + 3-way prefix",
        "files": "files of 10 rows: counting all pairs of 10 attributes",
    }
    units = {"attributes": "set", "cells": "cell", "sets": "set", "files": "file"} | dict.fromkeys(
        ("rows", "duckdb", "polars"), "row"
    )
    lines = []
    for kind, label in what.items():
        sizes = sorted(int(key.split(",")[0].split()[1]) for key in found if key.startswith(f"{kind} "))
        cells = [f"{size:,}: {significant(found[f'{kind} {size}, CPU seconds'], 2)} s,"
                f" {found[f'{kind} {size}, GiB']:.2f} GiB" for size in dict.fromkeys(sizes)]  # fmt: skip
        marginal = f"{significant(1e9 * found[f'{kind}, marginal'], 2)} ns per {units[kind]}"
        lines.append([label, *cells, marginal, f"{found[f'{kind}, exponent']:.2f}"])
    head = ("`benchmarks/growth.py`: CPU time and peak memory", "small", "middle", "large",
            "marginal cost of the last step", "its exponent")  # fmt: skip
    return table(head, *lines)


READERS = ("dpscale", "pyarrow, encoded", "pyarrow", "polars", "duckdb")

READ = (
    "numbers, snappy",
    "numbers, zstd",
    "texts, snappy",
    "texts, zstd",
    "numbers, 5 % nulls",
    "small numbers, snappy",
)


def reading(found: Figures) -> str:
    heads = ("dpscale: cells", "pyarrow, then encoded", "pyarrow: values", "Polars: values", "DuckDB: sums")
    what = "Parquet by dictionaries, 20 columns, one core, from the files: ns a row"
    lines = [[kind, *(significant(found[f"{kind}, {one}"], 3) for one in READERS)] for kind in READ]
    small = ["a file of 300 rows, ms", *(f"{found[f'small files, {one}']:.2f}" for one in READERS)]
    shown = table((f"`benchmarks/reading.py`: {what}", *heads), *lines, small)

    peers = (
        "pyarrow's data set",
        "the same files without folders",
        "pyarrow's values",
        "without the path of small groups",
    )
    ratios = table(
        ("CPU time over that of", *peers),
        *([label, *(ratio(found[key]) if (key := f"{label}, over {peer}") in found else "" for peer in peers)]
          for label in dict.fromkeys(key.split(", over ")[0] for key in found if ", over " in key)),
    )  # fmt: skip
    return f"{shown}\n\n{ratios}"


def profiles(found: Figures) -> str:
    lines = []
    for name in dict.fromkeys(key.split(": ")[0] for key in found if ": " in key):
        parts = {key.split(": ")[1]: share for key, share in found.items() if key.startswith(f"{name}: ")}
        lines.append([name, ", ".join(f"{part} {100 * share:.1f} %" for part, share in parts.items())])
    shown = table(("`benchmarks/profiles.py`: CPU time by part, under a profiler", "largest parts"), *lines)

    shares = ("libraries", "dpscale", "rest")
    names = [key.removesuffix(", rest") for key in found if key.endswith(", rest")]
    short = table(("time of short processes", "imports of libraries", "imports of modules of dpscale", "rest"),
                  *([name, *(percent(found[f"{name}, {share}"]) for share in shares)] for name in names))  # fmt: skip
    return f"""{shown}

{short}

A synthetic row of Adult takes {found["rows, µs"]:.1f} CPU µs, {found["rows, loops µs"]:.1f} of them in compiled loops
(limit of the rest: {found["rows, limit"]:g})."""


def wide_adaptive(found: Figures) -> str:
    stages = ("plan", "measure", "reconstruct", "report")
    title = (f"`benchmarks/wide_runs.py wide_adaptive`: `aim-grem`, all pairs of {found['attributes']:.0f} "
             f"attributes, {found['rows']:,.0f} rows")  # fmt: skip
    names = {"before": "commit 2741c547", "now": f"now (limit {found['limit']:g} CPU s)"}
    rows = [[label, *(f"{found[f'{name}, {what}']:.0f}" for what in ("CPU", *stages))] for name, label in names.items()]
    shown = table((title, "CPU s", *(f"s of {stage}" for stage in stages)), *rows)
    wanted, ratio = found["limit"] / found["stated"], found["now, CPU"] / found["before, CPU"]
    return f"""{shown}

The machine of the limit took {found["stated"]:.0f} CPU s for the earlier commit: the limit is a ratio of {wanted:.2f}.
Here the ratio is {ratio:.2f}."""


def commands(found: Figures) -> str:
    rows = []
    for name in (key.removesuffix(", now") for key in found if key.endswith(", now")):
        before, now, limit = (found.get(f"{name}, {kind}") for kind in ("before", "now", "limit"))
        rows.append([name, "" if before is None else f"{before:.2f}", f"{now:.2f}",
                     ratio(now / found[f"{name}, imports"]), "" if limit is None else f"{limit:g}"])  # fmt: skip
    unit = min(value for key, value in found.items() if key.endswith(", imports"))
    head = ("`benchmarks/commands.py`: CPU seconds of whole processes, without stored plans", "before", "now",
            f"times imports of NumPy, pyarrow, Dask and pydantic ({unit:.2f} s at least)", "limit")  # fmt: skip
    return table(head, *rows)


def regression(found: Figures) -> str:
    """Return coverage and width of the intervals of regressions, by table, family and ε."""
    title = f"`benchmarks/regression.py`: {found['releases']} releases each, delta 1e-9"
    head = (title, "ε", "told", "coverage of told", "width over that of true moments",
            "narrower than half the public range: told", "width over peer")  # fmt: skip

    def cell(group: str, name: str, form: str) -> str:
        return format(found[f"{group}, {name}"], form) if f"{group}, {name}" in found else ""

    rows = []
    for group in [key.removesuffix(", told") for key in found if key.endswith(", told")]:
        due = f"{found[f'{group}, due']:.0f} of {found[f'{group}, coefficients']:.0f}"
        share = cell(group, "due told", ".0%")
        name, _, epsilon = group.rpartition(", ")
        rows.append([name, epsilon, cell(group, "told", ".0%"), cell(group, "coverage", ".1%"),
                     cell(group, "width", ".2f"), f"{due}: {share}" if share else due,
                     cell(group, "peer", ".2f")])  # fmt: skip
    lines = list(dict.fromkeys(key.rpartition(", ")[0] for key in found if key.startswith("opendp ")))
    if not lines:
        return table(head, *rows)
    epsilons = list(dict.fromkeys(key.rpartition(", ")[2] for key in found if key.startswith("opendp ")))
    peer = ("slope of a line: OpenDP's private Theil-Sen regression over the standard deviation of the release",
            *(f"ε = {epsilon}" for epsilon in epsilons))  # fmt: skip
    peers = [[line.removeprefix("opendp "), *(f"{found[f'{line}, {epsilon}']:.1f}" for epsilon in epsilons)]
             for line in lines]  # fmt: skip
    return f"{table(head, *rows)}\n\n{table(peer, *peers)}"
