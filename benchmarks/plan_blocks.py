"""Blocks of docs/benchmarks.md about the accuracy of plans."""

from __future__ import annotations

from typing import Any

from rounding import table

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
