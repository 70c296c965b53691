"""Numbers for readers."""

from __future__ import annotations

import math

RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
SMALLEST_PLAIN = 1e-4


def figure(value: float | None) -> str:
    """Four significant digits, thousands apart, tiny ones with a power of ten; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "—"
    if 0 < abs(value) < SMALLEST_PLAIN:
        return power(value)
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}"


def power(value: float) -> str:
    """As 8.77 × 10⁻⁶."""
    digits, exponent = f"{value:.2e}".split("e")
    digits = digits.rstrip("0").rstrip(".")
    raised = f"10{str(int(exponent)).translate(RAISED)}"
    return raised if digits == "1" else f"{digits} × {raised}"


def whole(value: float | None) -> str:
    """A count for a table: whole, thousands apart."""
    return "—" if value is None or not math.isfinite(value) else f"{round(value):,}".replace("-", "−")


def percent(value: float | None) -> str:
    """A share in words that a reader can use: 12 %, 0.4 %, below 0.01 %."""
    if value is None or not math.isfinite(value):
        return "—"
    if 0 < value < 1e-4:
        return "below 0.01 %"
    return f"{100 * value:.2g} %" if value < 0.995 else f"{100 * value:,.0f} %"
