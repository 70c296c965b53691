"""Targets made to agree: tables that were estimated apart, and the nearest ones whose common margins are the same.

Nearest in the sense of Σ_γ w_γ KL(q_γ ‖ p_γ), p the tables given and q those returned. That every holder of a common
set S has the same margin on S is a linear constraint, whose Bregman projection is in closed form: the common margin is
the weighted geometric mean of the holders' own, and each holder is scaled to it. Taken in turn over all common sets
the projections converge to the nearest tables that meet every constraint (Bregman 1967; as in Benamou et al. 2015,
section 3); the product of independent attributes meets them, so there are some. Least squares would go below zero.
Agreement is not more: tables that agree on all common parts need not be margins of one joint table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.names import AttributeSet

ROUNDS, TOLERANCE, LEAST = 200, 1e-6, 1e-12
PAIRS = 1000


@dataclass(frozen=True)
class Disagreement:
    """Half the L1 distance of two targets' margins on their common attributes, as a share of the total: its mean and
    most over `pairs` of targets, and the two that are farthest apart."""

    mean: float
    most: float
    pairs: int
    farthest: tuple[AttributeSet, AttributeSet] | None


def disagreement(
    marginal_of: Callable[[AttributeSet], Floats], targets: Sequence[AttributeSet], most: int = PAIRS, seed: int = 0
) -> Disagreement:
    """Over all pairs of targets with attributes in common, or over `most` of them drawn at random."""
    distances: list[tuple[float, tuple[AttributeSet, AttributeSet]]] = []
    for one, other in _pairs(targets, most, seed):
        kept = tuple(name for name in one if name in other)
        left, right = margin(marginal_of(one), one, kept), margin(marginal_of(other), other, kept)
        distances.append((float(np.abs(left - right).sum() / (left.sum() + right.sum())), (one, other)))
    if not distances:
        return Disagreement(0.0, 0.0, 0, None)
    worst = max(distances, key=lambda entry: entry[0])
    return Disagreement(float(np.mean([distance for distance, _ in distances])), worst[0], len(distances), worst[1])


def agreeing(
    targets: Mapping[AttributeSet, Floats],
    weights: Mapping[AttributeSet, float] | None = None,
    rounds: int = ROUNDS,
    tolerance: float = TOLERANCE,
) -> dict[AttributeSet, Floats]:
    """Non-negative tables of equal total that agree on every common margin to `tolerance` of the total (in L1).

    `targets[γ]`: a table, over cells or over groups alike, an axis per attribute; what is below 0 counts as 0. The
    total is their weighted mean. `weights`: how dear a target's own values are; 1 each unless given.
    """
    weight_of = {names: 1.0 if weights is None else float(weights[names]) for names in targets}
    total = max(sum(weight_of[n] * float(table.sum()) for n, table in targets.items()) / sum(weight_of.values()), LEAST)
    tables = {names: _positive(table, total) for names, table in targets.items()}
    common = _common(list(targets))
    for _ in range(rounds):
        apart = [_projected(tables, kept, holders, weight_of, total) for kept, holders in common.items()]
        if max(apart, default=0.0) <= tolerance * total:
            break
    return tables


def margin(values: Floats, names: AttributeSet, kept: AttributeSet) -> Floats:
    """Sums over what is not kept, axes in the order of `kept`."""
    summed = values.sum(axis=tuple(axis for axis, name in enumerate(names) if name not in kept))
    left = [name for name in names if name in kept]
    return np.asarray(summed.transpose([left.index(name) for name in kept]))


def _positive(table: Floats, total: float) -> Floats:
    """A copy with the total asked; nothing is quite zero, lest two tables have no cell in common."""
    table = np.maximum(table, LEAST * total / table.size)
    return np.asarray(table * (total / table.sum()))


def _common(targets: Sequence[AttributeSet]) -> dict[AttributeSet, list[AttributeSet]]:
    """The sets that several targets hold, largest last, each with its holders; none whose holders a larger one has."""
    sets = {tuple(sorted(set(one) & set(other))) for one, other in combinations(targets, 2)} - {()}
    holders = {kept: [names for names in targets if set(kept) <= set(names)] for kept in sets}
    needed = {}
    for kept in sorted(sets, key=lambda one: (len(one), one)):
        larger = [other for other in sets if set(kept) < set(other)]
        if not any(len(holders[other]) == len(holders[kept]) for other in larger):
            needed[kept] = holders[kept]
    return needed


def _projected(
    tables: dict[AttributeSet, Floats],
    kept: AttributeSet,
    holders: Sequence[AttributeSet],
    weights: Mapping[AttributeSet, float],
    total: float,
) -> float:
    """Scale all holders to their common margin; returns the L1 distance of the two that were farthest from it."""
    margins = [margin(tables[names], names, kept) for names in holders]
    share = np.array([weights[names] for names in holders]) / sum(weights[names] for names in holders)
    mean = np.exp(sum(w * np.log(np.maximum(marginal, LEAST**2)) for w, marginal in zip(share, margins, strict=True)))
    mean *= total / mean.sum()
    for names, marginal in zip(holders, margins, strict=True):
        tables[names] = tables[names] * _along(mean / np.maximum(marginal, LEAST**2), names, kept)
    return max(float(np.abs(marginal - mean).sum()) for marginal in margins)


def _along(ratio: Floats, names: AttributeSet, kept: AttributeSet) -> Floats:
    """An array over `kept` that broadcasts over `names`."""
    order = [kept.index(name) for name in names if name in kept]
    sizes = iter(ratio.transpose(order).shape)
    return ratio.transpose(order).reshape([next(sizes) if name in kept else 1 for name in names])


def _pairs(targets: Sequence[AttributeSet], most: int, seed: int) -> Iterator[tuple[AttributeSet, AttributeSet]]:
    """Pairs of targets with something in common: all, or some at random where there are many."""
    if len(targets) * (len(targets) - 1) // 2 <= most:
        yield from ((one, other) for one, other in combinations(targets, 2) if set(one) & set(other))
        return
    random, seen = np.random.default_rng(seed), set()
    for _ in range(50 * most):
        left, right = sorted(int(i) for i in random.integers(len(targets), size=2))
        if left != right and (left, right) not in seen and set(targets[left]) & set(targets[right]):
            seen.add((left, right))
            yield targets[left], targets[right]
            if len(seen) == most:
                return
