"""Rounding of the figures in the documentation, and Markdown tables of figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence


def significant(value: float, digits: int) -> str:
    """Return a number with significant digits and trailing zeros, never an exponent; with thousands separators."""
    if value == 1:
        return "1"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, places):,.{max(places, 0)}f}"


def ratio(value: float) -> str:
    """Return a ratio with two digits, or three from a hundred on."""
    return significant(value, 3 if value >= 100 else 2)


def fine(value: float) -> str:
    """Return three decimals, or three digits from five on."""
    return f"{value:.3f}" if value < 5 else significant(value, 3)


def percent(value: float) -> str:
    return f"{100 * value:.0f} %"


def table(head: Sequence[str], *rows: Sequence[str]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("|" + "".join(f" {cell} |" if cell else " |" for cell in line) for line in lines)


def times(found: Mapping[str, float], key: str) -> str:
    """Return a figure of a run as a ratio of times, or with three decimals; blank if the run lacks it."""
    if key not in found:
        return ""
    return ratio(found[key]) if ", time" in key else fine(found[key])
