"""The most telling tables: those that depart most, beyond their noise, from what says nothing.

A one-way table from all cells alike, a pair from independence. Of the departure Σ (x − e)² what noise alone does,
Σ std_error², is taken off, and the rest is told as a share of Σ e². Released values only, so choosing costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dpscale.answers.labels import texts
from dpscale.answers.tables import Answered
from dpscale.base.arrays import Floats
from dpscale.base.errors import PlanError
from dpscale.base.names import AttributeSet
from dpscale.plans.figures import percent, whole
from dpscale.reconstruction.joint import half_width

LONGEST, SIDE = 400, 14  # cells of an attribute that is shown, and of one of a pair
LOOKED_AT = 80
LEVEL = 0.95


@dataclass(frozen=True, eq=False)
class Shown:
    """A table: its attributes, the labels of each, estimates and half widths of intervals (nan: none told), and how far
    it is from saying nothing."""

    names: AttributeSet
    labels: tuple[list[str], ...]
    values: Floats
    half: Floats
    departure: float


def singles(answered: Answered, most: int) -> list[Shown]:
    """One-way tables of attributes that were asked, the most telling first."""
    return _best(answered, [(name,) for name in _asked(answered, LONGEST)], most)


def pairs(answered: Answered, most: int) -> list[Shown]:
    """Two-way tables, the most telling first, no attribute in two of them before every other way is used up."""
    found = _best(answered, _pairs(answered), LOOKED_AT)
    fresh, held = list[Shown](), set[str]()
    for one in found:
        if not held & set(one.names):
            fresh.append(one)
            held |= set(one.names)
    return [*fresh, *(one for one in found if one not in fresh)][:most]


def sentence(shown: Shown) -> str:
    """The cell that stands out: of one attribute the largest, of two the one that most exceeds independence."""
    total = float(shown.values.sum())
    beyond = shown.values if shown.values.ndim == 1 else shown.values - expected(shown.values)
    cell = np.unravel_index(int(np.argmax(beyond)), shown.values.shape)
    named = " and ".join(f"{name} = {own[at]}" for name, own, at in zip(shown.names, shown.labels, cell, strict=True))
    half = f" ± {whole(float(shown.half[cell]))}" if np.isfinite(shown.half[cell]) else ""
    told = f"{named}: {whole(float(shown.values[cell]))}{half} records"
    if shown.values.ndim == 1:
        return f"{told}, {percent(float(shown.values[cell]) / total)} of all"
    return f"{told}, where chance alone would have {whole(float(expected(shown.values)[cell]))}"


def _best(answered: Answered, sets: Sequence[AttributeSet], most: int) -> list[Shown]:
    return sorted(_told(answered, sets[:LOOKED_AT]), key=lambda one: -one.departure)[:most]


def _asked(answered: Answered, longest: int) -> list[str]:
    domain = answered.estimates.workload.domain
    held = dict.fromkeys(name for names in answered.estimates.workload.sets for name in names)
    return [name for name in held if domain[name].size <= longest]


def _pairs(answered: Answered) -> list[AttributeSet]:
    """Pairs inside sets that were asked."""
    fits = set(_asked(answered, SIDE))
    found: dict[AttributeSet, None] = {}
    for names in answered.estimates.workload.sets:
        found.update(dict.fromkeys(combinations([name for name in names if name in fits], 2)))
        if len(found) > LOOKED_AT:
            break
    return list(found)


def _told(answered: Answered, sets: Iterable[AttributeSet]) -> Iterator[Shown]:
    """The tables of sets whose cells are told."""
    domain, half = answered.estimates.workload.domain, half_width(LEVEL, answered.estimates.noise)
    for names in sets:
        try:
            values, errors = answered.cells(names)
        except PlanError:
            continue
        labels = tuple(texts(domain[name]) for name in names)
        yield Shown(names, labels, values, half * errors, departure(values, errors))


def departure(values: Floats, errors: Floats) -> float:
    """How far a table is from saying nothing, beyond its noise, as a share; 0 where nothing is told."""
    total = float(values.sum())
    if total <= 0:
        return 0.0
    dull = expected(values)
    excess = float(((values - dull) ** 2).sum() - (np.nan_to_num(errors) ** 2).sum())
    return max(excess, 0.0) / float((dull**2).sum())


def expected(values: Floats) -> Floats:
    """What says nothing: all cells alike, or of two attributes independence."""
    if values.ndim == 1:
        return np.full_like(values, values.mean())
    return np.outer(values.sum(axis=1), values.sum(axis=0)) / values.sum()
