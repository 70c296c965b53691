"""Which tables are published, and their whole numbers: the total first, then one attribute, two, …

Between attribute sets that are asked for come what they have in common, and every attribute alone, so that what two
tables share is settled before either. A set with no whole table beside the others is left out, and named.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dpscale.answers import statistics
from dpscale.answers.publish.rounding import settled
from dpscale.answers.tables import Answered
from dpscale.base.arrays import Floats, Integers
from dpscale.base.errors import JobError, PlanError
from dpscale.base.names import AttributeSet
from dpscale.domain.impossible import possible

MOST_CELLS = 20_000
MOST_SETS = 2000


@dataclass(frozen=True, eq=False)
class Published:
    """Whole tables by set, their standard errors (nan: none told), and the sets that were left out, with why."""

    total: int
    tables: Mapping[AttributeSet, Integers]
    errors: Mapping[AttributeSet, Floats]
    left_out: Mapping[AttributeSet, str]


def publish(answered: Answered, asked: Sequence[AttributeSet]) -> Published:
    """Whole numbers for the sets; PlanError where not even the total is told."""
    total = max(round(statistics.total(answered, 0.95).estimate), 0)
    whole: dict[AttributeSet, Integers] = {(): np.array(total)}
    errors, left = dict[AttributeSet, Floats](), dict[AttributeSet, str]()
    domain = answered.estimates.workload.domain
    for names in closed(asked):
        if domain.cells(names) > MOST_CELLS:
            left[names] = f"it has more than {MOST_CELLS:,} cells"
            continue
        try:
            estimate, errors[names] = answered.cells(names)
        except PlanError:
            left[names] = "its cells were not asked for"
            continue
        found = settled(estimate, names, below(names, whole), possible(domain.rules, names, domain.shape(names)))
        if found is None:
            left[names] = "no whole numbers of it add up with the other tables"
        else:
            whole[names] = found
    kept = {names: whole[names] for names in asked if names in whole and names}
    return Published(total, kept, errors, {names: why for names, why in left.items() if names in asked})


def closed(asked: Iterable[AttributeSet]) -> list[AttributeSet]:
    """The sets, their attributes alone and what any two have in common, small ones first."""
    found = dict.fromkeys(names for names in asked if names)
    for one, other in combinations(list(found), 2):
        found[tuple(name for name in one if name in other)] = None
    found.update(dict.fromkeys((name,) for names in list(found) for name in names))
    return sorted((names for names in found if names), key=len)


def below(names: AttributeSet, whole: Mapping[AttributeSet, Integers]) -> dict[AttributeSet, Integers]:
    """The largest settled tables over parts of a set."""
    inside = [own for own in whole if set(own) < set(names)]
    return {own: whole[own] for own in inside if not any(set(own) < set(other) for other in inside)}


def chosen(answered: Answered, sets: Sequence[Sequence[str]], degree: int | None) -> list[AttributeSet]:
    """The sets named, else all asked, or those of some degree; JobError for too many, or where none is small enough."""
    domain = answered.estimates.workload.domain
    named = [domain.ordered(names) for names in sets] or [
        names for names in answered.estimates.workload.sets if names and degree in (None, len(names))
    ]
    named = list(dict.fromkeys(named))
    fit = sum(domain.cells(names) <= MOST_CELLS for names in named)
    if not fit or len(named) > MOST_SETS:
        got = f"{len(named):,} sets, {fit:,} of them of up to {MOST_CELLS:,} cells"
        raise JobError("publish", got, f"1 to {MOST_SETS:,} of them", "name some by --set age,sex or --degree 2")
    return named
