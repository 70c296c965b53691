"""Consistency between estimated targets: their disagreement on common attributes, and tables that agree on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.one_way import positive_counts
from dpscale.storage.files import reading, writing

ROUNDS, TOLERANCE, LEAST_TARGET = 200, 1e-6, 1e-12
PAIRS = 1000


@dataclass(frozen=True)
class Disagreement:
    """Half the L1 distance between the margins of two targets on their common attributes, as a share of the total.

    Attributes
    ----------
    mean, most : float
        Mean and maximum over the pairs of targets.
    pairs : int
        Number of pairs of targets.
    farthest : pair of AttributeSet, optional
        The two targets with the largest distance.
    """

    mean: float
    most: float
    pairs: int
    farthest: tuple[AttributeSet, AttributeSet] | None


def disagreement(
    marginal_of: Callable[[AttributeSet], Floats], targets: Sequence[AttributeSet], most: int = PAIRS, seed: int = 0
) -> Disagreement:
    """Return the disagreement over all pairs of targets with common attributes, or over `most` random ones."""
    distances: list[tuple[float, tuple[AttributeSet, AttributeSet]]] = []
    for one, other in _pairs(targets, most, seed):
        subset = tuple(name for name in one if name in other)
        first, second = margin(marginal_of(one), one, subset), margin(marginal_of(other), other, subset)
        distances.append((float(np.abs(first - second).sum() / (first.sum() + second.sum())), (one, other)))

    if not distances:
        return Disagreement(0.0, 0.0, 0, None)

    worst = max(distances, key=lambda entry: entry[0])
    return Disagreement(float(np.mean([distance for distance, _ in distances])), worst[0], len(distances), worst[1])


def make_consistent(
    targets: Mapping[AttributeSet, Floats],
    weights: Mapping[AttributeSet, float] | None = None,
    rounds: int = ROUNDS,
    tolerance: float = TOLERANCE,
) -> dict[AttributeSet, Floats]:
    """Return non-negative tables of equal total that agree on every common margin, by weighted geometric means.

    Parameters
    ----------
    targets : mapping of AttributeSet to ndarray
        Tables, all over cells or all over groups, one axis per attribute. Negative values count as 0. The common total
        is the weighted mean of their sums.
    weights : mapping of AttributeSet to float, optional
        Weight of each target's own values; 1 by default.
    rounds : int
        Maximum number of rounds.
    tolerance : float
        Largest L1 distance of margins, as a share of the total, at which the rounds end.
    """
    weight_of = {names: 1.0 if weights is None else float(weights[names]) for names in targets}
    total = max(
        sum(weight_of[n] * float(table.sum()) for n, table in targets.items()) / sum(weight_of.values()), LEAST_TARGET
    )
    # no exact zeros, so that any two tables have a common cell
    tables = {
        names: positive_counts(table, LEAST_TARGET * total / table.size, total) for names, table in targets.items()
    }
    common = _common(list(targets))
    for _ in range(rounds):
        distances = [
            _project_common(tables, subset, containing, weight_of, total) for subset, containing in common.items()
        ]
        if max(distances, default=0.0) <= tolerance * total:
            break

    return tables


def margin(values: Floats, names: AttributeSet, subset: AttributeSet) -> Floats:
    """Return sums over the other attributes, with axes in the order of `subset`."""
    summed = values.sum(axis=tuple(axis for axis, name in enumerate(names) if name not in subset))
    remaining = [name for name in names if name in subset]
    return np.asarray(summed.transpose([remaining.index(name) for name in subset]))


def _common(targets: Sequence[AttributeSet]) -> dict[AttributeSet, list[AttributeSet]]:
    """Return the sets inside several targets, smallest first, each with the targets that contain it.

    A set is left out if a larger one is inside the same targets.
    """
    sets = {tuple(sorted(set(one) & set(other))) for one, other in combinations(targets, 2)} - {()}
    containing = {subset: [names for names in targets if set(subset) <= set(names)] for subset in sets}
    needed = {}
    for subset in sorted(sets, key=lambda one: (len(one), one)):
        larger = [other for other in sets if set(subset) < set(other)]
        if not any(len(containing[other]) == len(containing[subset]) for other in larger):
            needed[subset] = containing[subset]
    return needed


def _project_common(
    tables: dict[AttributeSet, Floats],
    subset: AttributeSet,
    containing: Sequence[AttributeSet],
    weights: Mapping[AttributeSet, float],
    total: float,
) -> float:
    """Scale all targets that contain a set to their common margin; return the largest L1 distance from it."""
    margins = [margin(tables[names], names, subset) for names in containing]
    share = np.array([weights[names] for names in containing]) / sum(weights[names] for names in containing)
    mean = np.exp(
        sum(w * np.log(np.maximum(marginal, LEAST_TARGET**2)) for w, marginal in zip(share, margins, strict=True))
    )
    mean *= total / mean.sum()
    for names, marginal in zip(containing, margins, strict=True):
        tables[names] = tables[names] * _along(mean / np.maximum(marginal, LEAST_TARGET**2), names, subset)

    return max(float(np.abs(marginal - mean).sum()) for marginal in margins)


def _along(ratio: Floats, names: AttributeSet, subset: AttributeSet) -> Floats:
    """Return an array over `subset` that broadcasts over `names`."""
    order = [subset.index(name) for name in names if name in subset]
    sizes = iter(ratio.transpose(order).shape)
    return ratio.transpose(order).reshape([next(sizes) if name in subset else 1 for name in names])


def _pairs(targets: Sequence[AttributeSet], most: int, seed: int) -> Iterator[tuple[AttributeSet, AttributeSet]]:
    """Yield pairs of targets with common attributes: all, or `most` random ones if there are many."""
    if len(targets) * (len(targets) - 1) // 2 <= most:
        yield from ((one, other) for one, other in combinations(targets, 2) if set(one) & set(other))
        return

    random, seen = np.random.default_rng(seed), set()
    for _ in range(50 * most):
        first, second = sorted(int(i) for i in random.integers(len(targets), size=2))
        if first != second and (first, second) not in seen and set(targets[first]) & set(targets[second]):
            seen.add((first, second))
            yield targets[first], targets[second]
            if len(seen) == most:
                return


@dataclass(frozen=True, eq=False)
class ConsistentMarginals:
    """Model whose marginals inside some consistent tables are the margins of the first such table."""

    model: LowOrder
    tables: Mapping[AttributeSet, Floats]

    def marginal(self, names: AttributeSet) -> Floats:
        target = next((target for target in self.tables if set(names) <= set(target)), None)
        return self.model.marginal(names) if target is None else margin(self.tables[target], target, names)


def write_consistent(path: Path, tables: Mapping[AttributeSet, Floats]) -> None:
    """Write consistent targets."""
    index = {"sets": [list(names) for names in tables]}
    arrays = {f"t{i}": table for i, table in enumerate(tables.values())}
    with writing(path, durable=False) as file:
        np.savez(file, allow_pickle=False, index=np.array(json.dumps(index)), **arrays)


def read_consistent(path: Path) -> dict[AttributeSet, Floats]:
    """Return the consistent targets in a file."""
    with reading(path) as file, np.load(file, allow_pickle=False) as arrays:
        return {tuple(names): arrays[f"t{i}"] for i, names in enumerate(json.loads(str(arrays["index"]))["sets"])}
