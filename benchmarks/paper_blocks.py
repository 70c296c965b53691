"""Blocks of docs/benchmarks.md with the tables and figures of the papers, from the runs of `benchmarks/papers.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
from rounding import fine, ratio, significant, table

Figures = dict[str, Any]


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
    searches = sorted({key.split(", ")[1] for key in found if key.startswith("figure 3")})
    times = table(
        ["figure 3: seconds of a search, Gaussian noise", "OPT⊗", "OPT+", "OPT_M"],
        *(
            [label, *(seconds(found[f"figure 3, {label}, {name}"]) for name in ("OPT⊗", "OPT+", "OPT_M"))]
            for label in searches
        ),
    )
    speed = " and ".join(f"{significant(found[f'figure 2, {noise}'], 2)} s under {noise.capitalize()} noise (paper: "
                         f"under {most:g})" for noise, most in HDMM_FIGURE_2.items())  # fmt: skip
    return (
        f"{errors}\n\n{totals}\n\n{times}\n\nFigure 2, all ranges of 1,024 cells: {speed}. LRM and COA: the paper's "
        "figures are printed next to ours; tables 4 and 5 up to 1,024 cells. HDMM is the best search; ours has "
        "OPT_M with a strategy per attribute too. The predicates of SF1 are not those of the paper, which lists none."
    )


def seconds(value: float) -> str:
    return f"{value:.3f}"


def query_smasher_paper(found: Figures) -> str:
    names = ("residual-planner-plus", "weighted-fourier", "hdmm", "query-smasher", "weighted-residuals")
    head = "`benchmarks/papers.py query-smasher`: the paper's error over ours, least to most (rows)"
    errors = ranges(found, head, [f"table {number}" for number in (2, 3, 4, 5, 8)], names)
    times = ranges(found, "the paper's time (128-core server) over ours", ["table 6", "table 7"], names[3:], True)
    return (
        f"{errors}\n\n(`weighted-residuals` is compared with the paper's own method. `residual-planner-plus` has "
        f"the best named base of each attribute; the paper's RP+ solves for one.)\n\n{times}"
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
    return table(["table 2, over Eigen-Design: ours (paper)", "best competitor", "worst", "bound",
                  "best, relative error", "worst"], *lines)  # fmt: skip


def _figures_4_and_5(found: Figures) -> str:
    reduced = table(
        ["figure 4, 1,024 cells, over the bound: ours (paper)", "groups of 16", "6 % principal"],
        *([kind, *(f"{found[f'figure 4, {kind}, {name}']:.3f} ({paper:.2f})" for name, paper in
                   zip(("groups of 16", "6 % principal"), EIGEN_FIGURE_4[kind], strict=True))]
          for kind in ("range", "marginals")),
    )  # fmt: skip
    lines = []
    for kind in ("range", "range, permuted", "marginals", "marginals, permuted"):
        paper = EIGEN_FIGURE_5.get(kind)
        printed = "" if paper is None else f" ({'above ' if 'permuted' in kind else ''}{paper:g})"
        lines.append([kind, *(f"{found[f'figure 5, {kind}, {name}']:.3f}{printed}" for name in ("wavelet", "Fourier"))])
    head = ["figure 5, design queries over eigen-queries: ours (paper)", "wavelet", "Fourier"]
    return f"{reduced}\n\n{table(head, *lines)}"


DATA = {"100K": "MovieLens 100K", "persons": "generated persons and parents"}
EPSILONS = ("1", "2", "4")


def relational_paper(found: Figures) -> str:
    lines = []
    for name, label in DATA.items():
        for mechanism in ("AIM", "MST"):
            key = f"figure 3, {name}, {mechanism}"
            for kind, own in (("dpscale", "ours"), ("published", "published")):
                errors = [f"{found[f'{key}, {own}, {epsilon}']:.4f}" for epsilon in EPSILONS]
                lines.append([f"{label}, tables by {mechanism}, {kind}", *errors, f"{found[f'{key}, random']:.4f}"])
    error = "mean total variation of 3-way cross marginals, tables at ε = 1"
    head = [f"`benchmarks/papers.py relational`, figure 3: {error}", *(f"ε_rel = {epsilon}" for epsilon in EPSILONS),
            "random links"]  # fmt: skip
    sweeps = []
    for number in range(4, 8):
        start = f"figure {number}, "
        own = {key.removeprefix(start): value for key, value in found.items() if key.startswith(start)}
        values = ", ".join(f"{name} {value:.4f}" for name, value in own.items() if name not in ("ours", "random"))
        sweeps.append([f"figure {number}", values, f"{own['ours']:.4f}", f"{own['random']:.4f}"])
    sweep = ["MovieLens 100K, tables by AIM, ε_rel = 2", "published", "dpscale", "random links"]
    return f"{table(head, *lines)}\n\n{table(sweep, *sweeps)}"
