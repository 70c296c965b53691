"""What the neighbours of a cell expect of it: where codes lie in order, a table departs smoothly.

Of a noisy table y with references r and noise s, the window around a cell, itself left out, says that its counts are
R = Σ y / Σ r times what is expected, with a variance of k s² / (Σ r)² for k neighbours. A spread of 1 about R = 1 is
taken for granted, so the ratio is w R + (1 − w) with w = (Σ r)² / ((Σ r)² + k s²), and the reference that times r. The
cell's own noise is not in it. Whether that expects more of a table than r alone, its evidence says (`shrink`).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpscale.reconstruct.shrink import NoisyTable

Array = NDArray[np.float64]
REACHES = (1, 2)
LEAST_RATIO, LEAST = 0.02, 1e-9


def near(table: NoisyTable, reach: int) -> NoisyTable:
    """The table, of a pair, with what neighbours up to `reach` cells away, along both axes, expect of each cell."""
    around, expected = _around(table.values, reach), _around(table.reference, reach)
    known = expected**2
    weight = known / (known + _neighbours(table.values.shape, reach) * table.deviation**2 + LEAST)
    ratio = 1 + weight * (around / np.maximum(expected, LEAST) - 1)
    return replace(table, reference=table.reference * np.maximum(ratio, LEAST_RATIO))


def _around(values: Array, reach: int) -> Array:
    """The sum over the window of every cell, without the cell."""
    from dpscale.reconstruct import fitting_loops

    return np.asarray(fitting_loops.windows(np.ascontiguousarray(values), reach))


@lru_cache(maxsize=4096)
def _neighbours(shape: tuple[int, ...], reach: int) -> Array:
    """How many cells are in the window of every cell."""
    return _around(np.ones(shape), reach)
