"""What the neighbours of a cell expect of it: where codes lie in order, a table departs smoothly.

Of a noisy table y with references r and noise s, the window around a cell, itself left out, says that its counts are
R = Σ y / Σ r times what is expected, with a variance of k s² / (Σ r)² for k neighbours. A spread of 1 about R = 1 is
taken for granted, so the ratio is w R + (1 − w) with w = (Σ r)² / ((Σ r)² + k s²), and the reference that times r. The
cell's own noise is not in it. Whether that expects more of a table than r alone, its evidence says (`shrink`).
"""

from __future__ import annotations

from dataclasses import replace

from dpscale.reconstruction.paired import Paired
from dpscale.reconstruction.shrink import NoisyTables

NEIGHBOUR_REACHES = (1, 2)


def near(paired: Paired, tables: NoisyTables, reach: int) -> NoisyTables:
    """The tables, of pairs, with what neighbours up to `reach` cells away, along both axes, expect of each cell."""
    from dpscale.reconstruction import pair_loops

    given = tables.values, tables.reference, tables.deviations
    return replace(tables, reference=pair_loops.near_every(*given, paired.ones.at, paired.pairs, tables.starts, reach))
