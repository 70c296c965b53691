"""Whether an adaptive mechanism would be nearer than a plan that is settled beforehand, told before anything is spent.

The noise of a plan does not follow the table; what an adaptive mechanism misses is a share of the records. So the plan
is ahead where its error is small against what a query would hold, were records spread evenly over the cells: on the
tables of `benchmarks/ahead.py`, as a rule below a hundredth, and behind above a tenth; where all that is asked is
cumulative, and of attributes that a loop measures for it, below a two hundredth and behind above a twentieth. The
number of records is private unless the job makes it public, so it is told how many records decide it.
"""

from __future__ import annotations

import math

import numpy as np

from dpscale.base.names import AttributeSet
from dpscale.plans.cumulative import MOST as MOST_CELLS
from dpscale.workload import Part, ProductPart, Workload

BEHIND, AHEAD = 0.1, 0.01
BEHIND_OF_SUMS, AHEAD_OF_SUMS = 0.05, 0.005
CUMULATIVE = ("prefix", "range", "circular")
SETS = 200  # of each part, evenly taken


def evenly(workload: Workload) -> float:
    """The share of all records that a query holds on average, were they spread evenly over the cells."""
    held = [(part.count(names), _share(part, names)) for part in workload.parts for names in _some(part)]
    return sum(count * share for count, share in held) / sum(count for count, _ in held)


def _some(part: Part) -> list[AttributeSet]:
    return [names for names in part.sets[:: max(1, len(part.sets) // SETS)] if names] or [()]


def _share(part: Part, names: AttributeSet) -> float:
    sizes = part.domain.shape(names)
    if isinstance(part, ProductPart):
        pairs = zip(part.families(names), sizes, strict=True)
        return math.prod(family.trace(size) / (family.count(size) * size) for family, size in pairs)  # W is 0/1
    return float(np.abs(part.answers(names, np.full(sizes, 1 / math.prod(sizes)))).mean())


def limits(workload: Workload) -> tuple[float, float]:
    """Of an even answer: above the first a plan is behind as a rule, below the second ahead."""
    sizes = [size for part in workload.parts for names in part.sets for size in part.domain.shape(names)]
    of_sums = all(part.name in CUMULATIVE for part in workload.parts) and max(sizes, default=0) <= MOST_CELLS
    return (BEHIND_OF_SUMS, AHEAD_OF_SUMS) if of_sums else (BEHIND, AHEAD)


def told(workload: Workload, error: float, rows: int | None) -> list[str]:
    """In words; `error`: of a query, in records; `rows`: where their number is public. Nothing where 1-ways are all."""
    even = evenly(workload)
    if not even or max(map(len, workload.sets), default=0) < 2:
        return []
    few, many = (_about(error / (share * even)) for share in limits(workload))
    if rows is None:
        return [f"With fewer than about {few:,} records `aim-grem` is nearer as a rule, with more than {many:,} this"
                " plan is; between them either may be."]  # fmt: skip
    if rows > many:
        return []
    likely = "is nearer as a rule" if rows < few else "may be nearer"
    return [f"With {rows:,} public_rows `aim-grem` {likely}; this plan is with more than about {many:,}."]


def _about(records: float) -> int:
    """Two digits of it."""
    return int(float(f"{records:.2g}"))
