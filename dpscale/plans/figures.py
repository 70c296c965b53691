"""Numbers for readers."""

from __future__ import annotations

import math


def figure(value: float | None) -> str:
    """Four significant digits, thousands apart; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "—"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:,.4g}"
