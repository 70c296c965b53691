"""Blocks about plans: their errors beside bounds and other mechanisms, and files of SQL."""

from __future__ import annotations

import math
from typing import Any

from base import ratio, significant, table, times

Figures = dict[str, Any]


def query_smasher(found: Figures) -> str:
    rows = {
        "[40]⁴⁰, 1-way range + 2-way affine + 3-way prefix: 632 million queries, 10,701 subworkloads": "mixed 40 40",
        "[40]¹⁰, the same families": "mixed 40 10",
        "[30]⁴⁰, the same families": "mixed 30 40",
        "[40]⁴⁰, 1-way + 2-way prefix": "cube 40 40 prefix",
        "[40]⁴⁰, 1-way prefix + 2-way affine": "cube 40 40 affine",
        "Adult, hybrid, up to 3-way": "hybrid Adult 0",
    }
    head = (
        "`benchmarks/query_smasher.py`: QuerySmasher's paper (128-core server) over dpscale",
        "planning time: `query-smasher`", "`weighted-residuals`", "RMSE: `query-smasher`", "`weighted-residuals`",
    )  # fmt: skip
    columns = [f"{what}, {name}" for what in ("time", "RMSE") for name in SPLITS]
    shown = ([label, *(times(found, f"{key}, {column}") for column in columns)] for label, key in rows.items())
    return f"{table(head, *shown)}\n\n{overall(found)}"


SPLITS = ("query-smasher", "weighted-residuals")


def overall(found: Figures) -> str:
    """Return the summary of all rows."""
    under = "at or under its error to the printed digits" if not found["rows above the paper"] else (
        f"{found['rows above the paper']} of them above its error"
    )  # fmt: skip
    above = found["rows above query-smasher"]
    late = found["rows left out"]
    return (
        f"{found['rows']} rows of that paper's tables: `query-smasher` at a certified gap below {gap(found)}, "
        f"`weighted-residuals` below {gap(found, ', weighted-residuals')} of its own form, {under}. "
        f"`weighted-residuals` is up to {100 * (1 - found['least of query-smasher']):.1f} % below `query-smasher`"
        f" and above it {f'on {above}' if above else 'nowhere'}; it plans in more than five times its time on "
        f"{found['rows beyond five times']}, at most {ratio(found['largest planning time'])} times, "
        f"with at most {significant(found['peak GiB'], 2)} GiB."
        + (f" ({late} further rows: not planned, or not within the limit.)" if late else "")
    )


def gap(found: Figures, which: str = "") -> str:
    """Return the gap rounded up to one digit: 4·10⁻⁷ for 3.2e-07."""
    value = found[f"largest gap{which}"]
    exponent = math.floor(math.log10(value))
    digit = math.ceil(round(value / 10**exponent, 6))
    return f"{digit}·10⁻{str(-exponent).translate(str.maketrans('0123456789', '⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def hdmm(found: Figures) -> str:
    rows = {
        "Adult, 0- to 3-way marginals": "Adult W1",
        "Adult, 2-way, prefix on five attributes": "Adult W2",
        "Loans, marginals of at most 5,000 cells": "Loans W1",
        "the same sets, prefix on four attributes": "Loans W2",
        "CPS, all marginals": "CPS W1",
        "CPS, all sets of three, prefixes on two attributes": "CPS W2",
        "Census, 4,151 queries of ten tables of SF1": "SF1 W1",
        "the same for each of 51 states too (SF1+)": "SF1+ W1",
    }
    head = (
        "`benchmarks/hdmm.py`: expected RMSE, HDMM's paper over dpscale",
        "Gaussian, ε = 1, δ = 10⁻⁶: `hdmm`", "`query-smasher`", "`weighted-residuals`",
        "Laplace, ε = 1: `hdmm`", "`query-smasher`", "`weighted-residuals`",
    )  # fmt: skip
    columns = [f"{noise}, {name}" for noise in ("gaussian", "laplace") for name in ("hdmm", *SPLITS)]
    shown = ([label, *(times(found, f"{key}, {column}") for column in columns)] for label, key in rows.items())
    blank = "" if all(f"{key}, {column}" in found for key in rows.values() for column in columns) else (
        "\n\n(Empty: the search did not end within the time limit of the run.)"
    )  # fmt: skip
    return table(head, *shown) + blank


def wide(found: Figures) -> str:
    sizes = (512, 1024, 2048, 10_000, 100_000, 1_000_000)
    head = ("`benchmarks/plan_errors.py wide`: `weighted-residuals` on one attribute: CPU seconds to plan, gap of "
            "squared error",
            *(f"{size:,} cells" for size in sizes))  # fmt: skip

    def cell(name: str, size: int) -> str:
        if f"{name} {size}, gap" not in found:
            return ""
        gap = found[f"{name} {size}, gap"]
        shown = "below 10⁻⁶" if gap < 1e-6 else f"{100 * gap:.{1 if gap > 1e-3 else 3}f} %"
        return f"{found[f'{name} {size}, seconds']:.2f} s, {shown}"

    names = {"hdmm prefix": "prefix, `hdmm`"} | {f"{one} pairs": f"{one}, pairs with 8 cells too" for one in PAIRED}
    lines = [
        [names.get(one, one), *(cell(one, size) for size in sizes)]
        for one in ("marginal", "prefix", "hdmm prefix", "range", "circular", *(f"{one} pairs" for one in PAIRED))
    ]
    above = [f"{size:,} cells {found[f'prefix {size}, rmse']:.2f} ({100 * found[f'prefix {size}, over all']:.2f} %)"
             for size in sizes]  # fmt: skip
    text = "Prefix queries, RMSE (squared error above the bound over all matrix mechanisms)"
    return f"{table(head, *lines)}\n\n{text}: {'; '.join(above)}."


PAIRED = ("prefix", "range", "circular")


def census_products(found: Figures) -> str:
    head = ("`benchmarks/planning.py census_products`: 300 products on the shape of the census file SF1", "CPU seconds",
            "times `eigh` of 1,000 × 1,000", "RMSE")  # fmt: skip
    names = dict.fromkeys(key.split(", ")[0] for key in found)
    rows = ([f"`{name}`", f"{found[f'{name}, seconds']:.1f}", f"{found[f'{name}, times eigh']:.0f}",
             f"{found[f'{name}, RMSE']:.4g}"] for name in names)  # fmt: skip
    return table(head, *rows)


def largest_errors(found: Figures) -> str:
    head = ("`benchmarks/planning.py largest_errors`: largest variance of a query at privacy cost 1",
            'objective = "sum"', '"max"', "ratio")  # fmt: skip
    names = dict.fromkeys(key.rpartition(", ")[0] for key in found)
    rows = ([name, *(f"{found[f'{name}, {kind}']:.4g}" for kind in ("sum", "max")),
             f"{found[f'{name}, max'] / found[f'{name}, sum']:.3f}"] for name in names)  # fmt: skip
    return table(head, *rows)


def pure_budgets(found: Figures) -> str:
    head = ("`benchmarks/plan_errors.py pure_budgets`: RMSE at ε = 1, δ = 0", "default", "`hdmm`", "`auto`",
            "`identity`", "default over the best of the others", "CPU seconds")  # fmt: skip
    named = [key.removesuffix(", ratio") for key in found if key.endswith(", ratio")]
    columns = ("default", "hdmm", "auto", "identity", "ratio")
    shown = ([key, *(f"{found[f'{key}, {column}']:.3f}" for column in columns), f"{found[f'{key}, seconds']:.1f}"]
             for key in named)  # fmt: skip
    drawn = (f"{found['drawn, workloads']:.0f} drawn workloads: the default over the best of the other mechanisms is "
             f"{found['drawn, least ratio']:.3f} to {found['drawn, largest ratio']:.3f}, in the geometric mean "
             f"{found['drawn, mean ratio']:.3f}, and at most 0.97 for {found['drawn, at least 3 % below']:.0f}; "
             f"planning takes {found['drawn, seconds']:.1f} CPU seconds in the mean.")  # fmt: skip
    wide_head = ("One wide attribute, RMSE at ε = 1, δ = 0", "default", "best hierarchy (HB)", "OPT0, printed",
                 "default over HB", "over OPT0", "CPU seconds",
                 "OPT0, searched (CPU seconds)", "default over it")  # fmt: skip
    axes = [key.removesuffix(", hierarchy") for key in found if key.endswith(", hierarchy")]
    return f"{table(head, *shown)}\n\n{drawn}\n\n{table(wide_head, *(_wide_axis(found, key) for key in axes))}"


def _wide_axis(found: Figures, key: str) -> list[str]:
    default, tree, opt0 = (found.get(f"{key}, {name}") for name in ("default", "hierarchy", "OPT0"))
    peer, ratio = ("", "") if opt0 is None else (f"{opt0:.2f}", f"{default / opt0:.3f}")
    best = found.get(f"{key}, OPT0 searched")
    searched = () if best is None else (f"{best:.2f} ({found[f'{key}, OPT0 seconds']:.0f})", f"{default / best:.3f}")
    return [key.removeprefix("wide, "), f"{default:.2f}", f"{tree:.2f}", peer, f"{default / tree:.3f}", ratio,
            f"{found[f'{key}, seconds']:.1f}", *(searched or ("", ""))]  # fmt: skip


def joint_plans(found: Figures) -> str:
    head = ("`benchmarks/plan_errors.py joint_plans`: root mean square error of `weighted-residuals`",
            "above the plan's bound for all mechanisms", "above a bound by another solver",
            "CPU s of planning")  # fmt: skip
    names = [key.removesuffix(", seconds") for key in found if key.endswith(", seconds")]
    rows = [[name, _above(found[f"{name}, above"]), _above(found.get(f"{name}, checked")),
             f"{found[f'{name}, seconds']:.1f}"] for name in names]  # fmt: skip
    rows.append(["40 random workloads on 12 to 500 cells, the largest", _above(found["random, above"]),
                 _above(found["random, checked"]), ""])  # fmt: skip
    return table(head, *rows)


def conditions(found: Figures) -> str:
    """Return a table of the errors of few counts under conditions."""
    head = ("`benchmarks/plan_errors.py conditions`: 40 workloads of 1 to 20 counts under conditions", "value")
    return table(
        head,
        ["error above the plan's bound for all mechanisms, at most", _above(found["above"])],
        ["error above a bound by another solver, at most", _above(found["checked"])],
        ["error of residuals measured apart (`query-smasher`) over it, median", f"{found['median apart']:.2f}"],
        ["the largest", f"{found['largest apart']:.2f}"],
        ["CPU seconds of planning, all together", f"{found['seconds']:.1f}"],
    )


def _above(ratio: float | None) -> str:
    """Return a ratio as the percentage above 1; blank if it was not computed."""
    return "" if ratio is None else f"{100 * (ratio - 1):.2f} %"


def sql(found: Figures) -> str:
    """Return a table of the errors of files of SELECT statements."""
    head = ["`benchmarks/sql.py statements`: error of one plan over that of statements planned one by one",
            "statements", "equal parts of the budget", "best parts", "certified above the optimum",
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


BLOCKS = (query_smasher, hdmm, wide, joint_plans, conditions, pure_budgets, census_products, largest_errors, sql)
