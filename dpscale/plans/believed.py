"""What is believed of candidates, as it is sent to where it is held against exact counts: released values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpscale.base.names import AttributeSet

Array = NDArray[np.float64]
SCALE = 256  # distances are whole numbers of 1/SCALE


@dataclass(frozen=True)
class Tables:
    """Estimates over groups that are at hand."""

    tables: Mapping[AttributeSet, Array]

    def marginal(self, names: AttributeSet) -> Array:
        return self.tables[names]
