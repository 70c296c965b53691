"""Block of docs/benchmarks.md with the coverage of intervals of adaptive releases, from `intervals.py --leave-out`."""

from __future__ import annotations

from typing import Any

from rounding import table

Figures = dict[str, Any]
EPSILONS = ("0.1", "1", "10")
KINDS = ("cells", "cumulative", "sums")


def intervals(found: Figures) -> str:
    """Return tables by kind of query and ε, and by table, and the CPU time of whole jobs."""
    head = ("`benchmarks/intervals.py --leave-out`: least, median and most of the tables (tables within the limits)",
            "ε", "coverage", "ratio", "joint", "width")  # fmt: skip
    by_kind = []
    for degree in (1, 2, 3):
        for kind in KINDS:
            for epsilon in EPSILONS:
                group = f"{degree}-way {kind}, {epsilon}"
                if f"{group}, cases" in found:
                    shares = [percent(found, group, name) for name in ("coverage", "joint")]
                    ratios = [plain(found, group, name) for name in ("ratio", "width")]
                    by_kind.append([f"{degree}-way {kind}", epsilon, shares[0], ratios[0], shares[1], ratios[1]])
    names = [key.rsplit(", ", 1)[0] for key in found if key.endswith(", cases") and "-way" not in key]
    by_table = [[name, percent(found, name, "coverage"), plain(found, name, "ratio")] for name in names]
    times = "; ".join(f"ε = {epsilon}: {found[f'{epsilon}, none']:.2f} s without errors, "
                      f"{found[f'{epsilon}, simulated']:.2f} s with" for epsilon in EPSILONS)  # fmt: skip
    whole = ("the same by table: all kinds of queries and ε", "coverage", "ratio")
    return f"{table(head, *by_kind)}\n\n{table(whole, *by_table)}\n\nCPU time of `dpscale run` on Adult: {times}."


def percent(found: Figures, group: str, name: str) -> str:
    ends = ", ".join(f"{100 * found[f'{group}, {name}, {end}']:.2f}" for end in ("least", "median", "most"))
    return f"{ends} % ({within(found, group, name)})"


def plain(found: Figures, group: str, name: str) -> str:
    ends = ", ".join(f"{found[f'{group}, {name}, {end}']:.2f}" for end in ("least", "median", "most"))
    return f"{ends} ({within(found, group, name)})"


def within(found: Figures, group: str, name: str) -> str:
    return f"{found[f'{group}, {name}, within']:.0f} of {found[f'{group}, cases']:.0f}"
