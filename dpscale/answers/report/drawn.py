"""Tables as a page draws them, and strategies as pictures: plain HTML and SVG that follow the page's colours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpscale.base.arrays import Floats

SIDE = 220  # of a strategy's picture, in pixels


def single(names: Sequence[str], labels: Sequence[Sequence[str]], values: Floats, half: Floats) -> dict[str, Any]:
    """What the page needs of a one-way table: ends of intervals (None: not told), a line and a band for many cells."""
    told = bool(np.isfinite(half).all())
    low, high = (values - half, values + half) if told else (values, values)
    most = max(float(high.max()), 1e-9)
    places = np.arange(len(values)) + 0.5
    there, back = _points(places, high, most), _points(places[::-1], low[::-1], most)
    return {
        "names": names, "labels": labels, "counts": values.tolist(), "ends": high.tolist() if most > 1e-9 else [],
        "low": low.tolist() if told else [None] * len(values), "high": high.tolist() if told else [None] * len(values),
        "line": _points(places, values, most), "band": f"{there} {back}",
    }  # fmt: skip


def pair(names: Sequence[str], labels: Sequence[Sequence[str]], values: Floats) -> dict[str, Any]:
    """What the page needs of a two-way table."""
    return {"names": names, "labels": labels, "counts": values.tolist(), "most": max(float(values.max()), 1e-9)}


def _points(places: Any, values: Floats, most: float) -> str:
    heights = 100 - 98 * np.clip(values / most, 0, 1)
    return " ".join(f"{x:g},{y:.2f}" for x, y in zip(places, heights, strict=True))


def strategy_picture(matrix: Floats) -> str:
    """A matrix as squares: blue what is added, red what is taken away, the stronger the larger."""
    rows, cells = matrix.shape
    strength = np.abs(matrix) / max(float(np.abs(matrix).max()), 1e-300)
    squares = [
        f'<rect x="{j}" y="{i}" width="1" height="1" fill="var(--c{int(matrix[i, j] < 0)})" '
        f'fill-opacity="{strength[i, j]:.2f}"/>'
        for i, j in zip(*np.nonzero(strength > 0.01), strict=True)
    ]
    return (f'<svg role="img" aria-label="strategy of {rows} rows and {cells} cells" viewBox="0 0 {cells} {rows}" '
            f'width="{SIDE}" height="{min(SIDE, max(SIDE * rows // cells, 24))}" preserveAspectRatio="none" '
            f'shape-rendering="crispEdges"><rect width="{cells}" height="{rows}" fill="var(--panel)"/>'
            f'{"".join(squares)}</svg>')  # fmt: skip
