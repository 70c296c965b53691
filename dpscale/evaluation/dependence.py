"""How strongly two attributes depend on each other, in the data and in the rows.

Cramér's V with W. Bergsma's correction ("A bias-correction for Cramér's V and Tschuprow's T", J. Korean Stat. Soc. 42,
2013): tables of many cells and few rows have a large V by chance alone, and rows may be more or fewer than the data.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, nan, sqrt
from typing import Any

import numpy as np

from dpscale.base.arrays import Integers
from dpscale.base.names import AttributeSet

Pair = tuple[AttributeSet, float, float]
WORST = 10


def cramers_v(counts: Integers) -> float:
    """Of counts, (n_a, n_b): 0 without dependence, 1 where one follows from the other; nan without records."""
    table = counts[counts.sum(1) > 0][:, counts.sum(0) > 0].astype(np.float64)
    (rows, columns), total = table.shape, table.sum()
    if min(rows, columns) < 2:
        return 0.0 if total else nan
    expected = np.outer(table.sum(1), table.sum(0)) / total
    squared = float(((table - expected) ** 2 / expected).sum() / total)
    squared = max(squared - (rows - 1) * (columns - 1) / (total - 1), 0.0)
    least = min(size - (size - 1) ** 2 / (total - 1) for size in (rows, columns)) - 1
    return min(sqrt(squared / least), 1.0) if least > 0 else nan


def of_pairs(found: Sequence[Pair]) -> dict[str, Any]:
    """Names, and V in the data and in the rows, of all pairs that have both: summed up, the worst of them named."""
    pairs = sorted((pair for pair in found if all(map(isfinite, pair[1:]))), key=lambda pair: -abs(pair[1] - pair[2]))
    both = np.array([pair[1:] for pair in pairs]).reshape(-1, 2)
    gaps = np.abs(both[:, 0] - both[:, 1])
    return {
        "measure": "Cramér's V, bias corrected",
        "pairs": len(pairs),
        "mean_difference": float(gaps.mean()) if pairs else nan,
        "max_difference": float(gaps.max()) if pairs else nan,
        "worst": [{"attributes": list(names), "data": data, "rows": rows} for names, data, rows in pairs[:WORST]],
        "data": both[:, 0].tolist(),
        "rows": both[:, 1].tolist(),
    }
