"""Sums of the same terms whose weights are nearly the same, taken as one: for a search, which looks at J often.

Where every set has a weight of its own, every attribute leaves another mix of the same terms. L is smooth in the mix:
those within a quarter of one another count as their mean; J is off by the square of that, and its lowest point hardly.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import replace

from dpscale.optimize.demands import Demand, Demands, Term, is_product

NEAR = 0.25  # of the logarithm of a term's share


def merged(demands: Demands, power: float) -> Demands:
    """The demands with near sums as one; `power` of L is what counts."""
    alike: dict[object, list[tuple[Demand, int]]] = defaultdict(list)
    for demand, number in demands.counts.items():
        alike[demand if is_product(term for term, _ in demand) else _mix(demand)].append((demand, number))
    counts: Counter[Demand] = Counter()
    for group in alike.values():
        counts[group[0][0] if len(group) == 1 else _mean(group, power)] += sum(number for _, number in group)
    return replace(demands, counts=counts)


def _mix(demand: Demand) -> object:
    whole = math.fsum(weight for _, weight in demand)
    return frozenset((term, round(math.log(weight / whole) / NEAR)) for term, weight in demand)


def _mean(group: list[tuple[Demand, int]], power: float) -> Demand:
    """The mean of the shares, by what their demands add to J, at the scale at which they add as much."""
    shares: dict[Term, float] = defaultdict(float)
    adds = [number * math.fsum(weight for _, weight in demand) ** power for demand, number in group]
    for (demand, _), add in zip(group, adds, strict=True):
        whole = math.fsum(weight for _, weight in demand)
        for term, weight in demand:
            shares[term] += add / math.fsum(adds) * weight / whole
    scale = (math.fsum(adds) / sum(number for _, number in group)) ** (1 / power)
    return frozenset((term, scale * share) for term, share in shares.items())
