"""What the domain says of tables beforehand (`dpscale.domain.structural_zeros`), in estimates of maximum entropy.

It is public, so it costs nothing:

- *1-ways.* Where one attribute follows from another, a region from its town, counts of both tell of the region: it
  is the average by inverse variance, and its towns are scaled to it. Values that are impossible alone have next to
  nothing.
- *Pairs.* How many people of every town are in which region is known from the towns' 1-way, and need not be measured.
  Of other attributes that a rule speaks of what is expected is what independence leaves possible, fitted to their
  1-ways.
- *Cells.* Nobody is in a cell that is impossible; within a group of cells the others share what the group has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats
from dpscale.base.display import AttributeSet
from dpscale.domain.structural_zeros import Excludes, Follows, possible, speaking
from dpscale.workload.residual.in_axis import Groups, coarsened, expanded

Rules = Sequence[Excludes]
MOST_CELLS, LEAST, SCALED = 1 << 22, 1e-6, 4


def constrained_pairs(rules: Rules, names: Sequence[str]) -> list[AttributeSet]:
    """The pairs that a rule of two attributes speaks of, or that follow from a third, in the order of `names`."""
    spoken = {frozenset(rule.names) for rule in rules}
    for one, other in combinations(following(rules, names), 2):
        if one.by == other.by:
            spoken.add(frozenset((one.what, other.what)))
    return [pair for pair in combinations(names, 2) if frozenset(pair) in spoken] if spoken else []


def following(rules: Rules, names: Iterable[str]) -> list[Follows]:
    """The rules by which one of the attributes follows from another in every cell."""
    return [rule for rule in speaking(rules, names) if isinstance(rule, Follows) and rule.whole] if rules else []


def determined_alone(rules: Rules, names: AttributeSet) -> bool:
    """Whether all attributes but one follow from others of the set: that one's 1-way tells everything."""
    found = following(rules, names)
    return len(names) > 1 and len(set(names) - {rule.what for rule in found}) <= 1


def settled(rules: Rules, names: AttributeSet, groups: Mapping[str, Groups]) -> bool:
    """Whether an attribute among them follows from another over groups: then a smaller set tells all of it."""
    return any((_met(rule, groups).sum(axis=1) == 1).all() for rule in following(rules, names))


def known_pair(
    rules: Rules, names: AttributeSet, ones: Mapping[str, Floats], groups: Mapping[str, Groups]
) -> Floats | None:
    """The table over groups of two attributes where either, or a third, decides both: its 1-way has all of it."""
    found = following(rules, ones)
    for decides in [*names, *(rule.by for rule in found)] if found else []:
        of = {rule.what: np.array(rule.of) for rule in found if rule.by == decides}
        of[decides] = np.arange(len(ones[decides]))
        if set(names) <= of.keys():
            first, second = (groups[name].labels[of[name]] for name in names)
            shape = groups[names[0]].count, groups[names[1]].count
            table = np.bincount(first * shape[1] + second, ones[decides], shape[0] * shape[1])
            return np.asarray(table.reshape(shape), np.float64)
    return None


def coarse_possible(rules: Rules, names: AttributeSet, groups: Mapping[str, Groups]) -> NDArray[np.bool_]:
    """Over groups: whether some cell of a group's may hold anybody. Of large sets only what follows is looked at."""
    inside = [groups[name] for name in names]
    shape = [one.size for one in inside]
    if math.prod(shape) <= MOST_CELLS:
        return np.asarray(coarsened(possible(rules, names, shape).astype(np.int64), inside) > 0)
    held = np.ones([one.count for one in inside], np.bool_)
    for rule in speaking(rules, names):
        if isinstance(rule, Follows):
            held &= _turned(rule, names, groups)
    return held


def _met(rule: Follows, groups: Mapping[str, Groups]) -> NDArray[np.bool_]:
    """(groups of what decides, of what follows): which of them meet in some cell."""
    of, by, what = np.array(rule.of), groups[rule.by], groups[rule.what]
    held = np.zeros((by.count, what.count), np.bool_)
    held[by.labels[of >= 0], what.labels[of[of >= 0]]] = True
    held[by.labels[of < 0]] = True
    return held


def _turned(rule: Follows, names: AttributeSet, groups: Mapping[str, Groups]) -> NDArray[np.bool_]:
    """The same as broadcasts to a table over the groups of `names`."""
    held = _met(rule, groups)
    held = held if names.index(rule.by) < names.index(rule.what) else held.T
    return held.reshape([groups[name].count if name in rule.names else 1 for name in names])


def possible_cells(
    rules: Rules, names: AttributeSet, groups: Mapping[str, Groups], ones: Mapping[str, Floats], cells: Floats
) -> Floats:
    """A table over cells, in place, without what cannot be: every group of cells has what it had, the whole its sum.

    In a group cells share by their 1-ways, but for what follows from another attribute, whose share is all or nothing.
    """
    inside = [groups[name] for name in names]
    before = coarsened(cells, inside).copy()
    cells *= possible(rules, names, cells.shape)
    for what in sorted({rule.what for rule in following(rules, names)}):  # the same last bits in every process
        cells /= ones[what].reshape([-1 if name == what else 1 for name in names])
    after = coarsened(cells, inside)
    cells *= expanded(np.divide(before, after, out=np.zeros_like(before), where=after > 0), inside)
    cells *= ones[names[0]].sum() / max(cells.sum(), LEAST)
    return cells


def agreed(ones: Mapping[str, Floats], variances: Mapping[str, float], rules: Rules) -> dict[str, Floats]:
    """1-ways over cells, > 0 and of equal sums, by the rules (`closed`); `variances`: of the noise of each one's cells.

    First what follows is what all say of it; then what its finest decider says, to which the others are scaled.
    """
    found = {name: _alone(rules, name, counts) for name, counts in ones.items()}
    decided: dict[str, list[Follows]] = {}
    for rule in sorted(following(rules, ones), key=lambda rule: (-len(rule.of), rule.by)):
        decided.setdefault(rule.what, []).append(rule)
    for what, by in decided.items():
        joint = _joint(found[what], by, found, variances)
        for rule in by:
            found[rule.by] = _scaled(rule, found, joint)
    for what, by in [*decided.items()] * SCALED:
        found[what] = np.maximum(_sums(by[0], found), LEAST)
        for rule in by[1:]:
            found[rule.by] = _scaled(rule, found, found[what])
    return found


def _alone(rules: Rules, name: str, counts: Floats) -> Floats:
    """Without the values that are impossible by themselves."""
    if not speaking(rules, [name]):
        return counts
    kept = np.where(possible(rules, (name,), counts.shape), counts, LEAST)
    return np.asarray(kept * (counts.sum() / kept.sum()))


def _joint(own: Floats, by: Sequence[Follows], ones: Mapping[str, Floats], variances: Mapping[str, float]) -> Floats:
    """What follows, as its own counts and those of all that decide it have it, by inverse variance."""
    weight = np.full(len(own), 1 / variances[by[0].what])
    joint, some = own * weight, np.ones(len(own), np.bool_)
    for rule in by:
        members = np.bincount(rule.of, minlength=len(own))
        theirs = 1 / (np.maximum(members, 1) * variances[rule.by])
        joint, weight, some = joint + theirs * _sums(rule, ones), weight + theirs, some & (members > 0)
    joint = np.where(some, joint / weight, 0.0)
    return np.asarray(joint * (own.sum() / max(joint.sum(), LEAST)))


def _scaled(rule: Follows, ones: Mapping[str, Floats], wanted: Floats) -> Floats:
    """The counts of what decides, scaled to what is wanted of what follows."""
    ratio = wanted / np.maximum(_sums(rule, ones), LEAST)
    scaled = np.maximum(ones[rule.by] * ratio[np.array(rule.of)], LEAST)
    return np.asarray(scaled * (ones[rule.by].sum() / scaled.sum()))


def _sums(rule: Follows, ones: Mapping[str, Floats]) -> Floats:
    """What follows, as the counts of what decides have it."""
    return np.asarray(np.bincount(rule.of, ones[rule.by], len(ones[rule.what])), np.float64)


def edges(rules: Rules, name: str) -> frozenset[int]:
    """The cells of an attribute where what follows from it changes, where it does so in runs of cells."""
    found: set[int] = set()
    for rule in rules:
        if isinstance(rule, Follows) and rule.by == name:
            changes = (np.flatnonzero(np.diff(rule.of)) + 1).tolist()
            found.update(changes if len(changes) < len(set(rule.of)) else ())
    return frozenset(found)


ROUNDS, TOLERANCE, LEAST_TARGET = 200, 1e-6, 1e-12
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
    total = max(
        sum(weight_of[n] * float(table.sum()) for n, table in targets.items()) / sum(weight_of.values()), LEAST_TARGET
    )
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
    table = np.maximum(table, LEAST_TARGET * total / table.size)
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
    mean = np.exp(
        sum(w * np.log(np.maximum(marginal, LEAST_TARGET**2)) for w, marginal in zip(share, margins, strict=True))
    )
    mean *= total / mean.sum()
    for names, marginal in zip(holders, margins, strict=True):
        tables[names] = tables[names] * _along(mean / np.maximum(marginal, LEAST_TARGET**2), names, kept)
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
