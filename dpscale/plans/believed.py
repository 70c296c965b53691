"""What is believed of candidates, as it is sent to where it is held against exact counts: released values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpscale.base.arrays import Floats
from dpscale.base.names import AttributeSet

SCALE = 256  # distances are whole numbers of 1/SCALE


@dataclass(frozen=True)
class Tables:
    """Estimates over groups that are at hand."""

    tables: Mapping[AttributeSet, Floats]

    def marginal(self, names: AttributeSet) -> Floats:
        return self.tables[names]
