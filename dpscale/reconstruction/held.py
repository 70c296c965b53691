"""What the domain says of tables beforehand (`dpscale.domain.impossible`), in estimates of maximum entropy.

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
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats
from dpscale.base.names import AttributeSet
from dpscale.domain.impossible import Excludes, Follows, possible, speaking
from dpscale.workload.residual.groups import Groups, coarsened, expanded

Rules = Sequence[Excludes]
MOST_CELLS, LEAST, SCALED = 1 << 22, 1e-6, 4


def pairs_held(rules: Rules, names: Sequence[str]) -> list[AttributeSet]:
    """The pairs that a rule of two attributes speaks of, or that follow from a third, in the order of `names`."""
    spoken = {frozenset(rule.names) for rule in rules}
    for one, other in combinations(following(rules, names), 2):
        if one.by == other.by:
            spoken.add(frozenset((one.what, other.what)))
    return [pair for pair in combinations(names, 2) if frozenset(pair) in spoken] if spoken else []


def following(rules: Rules, names: Iterable[str]) -> list[Follows]:
    """The rules by which one of the attributes follows from another in every cell."""
    return [rule for rule in speaking(rules, names) if isinstance(rule, Follows) and rule.whole] if rules else []


def told_alone(rules: Rules, names: AttributeSet) -> bool:
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


def kept_cells(
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
