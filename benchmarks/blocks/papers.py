"""Blocks about published papers and about linked tables."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import Any

from base import fine, ratio, significant, table
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
    head = ["`benchmarks/linked_tables.py links --chains`: mean total variation, generated rentals, 4 seeds", *columns]
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


BLOCKS = (relational, hdmm_paper, query_smasher_paper, eigen_design, relational_paper, linked_chains, relational_rounds)
