"""The compiled loop over rows: joint codes of an attribute set, and one increment a row.

Rows are taken in blocks that stay in the first cache: the joint codes of a block are built column by column (which the
compiler vectorises), then counted.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

BLOCK = 4096


@njit(cache=True, nogil=True)
def count_codes(
    codes: NDArray[np.unsignedinteger],
    columns: NDArray[np.int64],
    strides: NDArray[np.int64],
    starts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    counts: NDArray[np.int64],
) -> None:
    """Add the rows of `codes` (attributes × rows) to `counts`.

    Set s uses columns[starts[s]:starts[s+1]] with these strides, and the counters from offsets[s] on.
    """
    joint = np.empty(BLOCK, dtype=np.int64)
    for first in range(0, codes.shape[1], BLOCK):
        rows = min(BLOCK, codes.shape[1] - first)
        for s in range(len(offsets)):
            for r in range(rows):
                joint[r] = offsets[s]
            for k in range(starts[s], starts[s + 1]):
                column, stride = columns[k], strides[k]
                for r in range(rows):
                    joint[r] += np.int64(codes[column, first + r]) * stride
            for r in range(rows):
                counts[joint[r]] += 1
