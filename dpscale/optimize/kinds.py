"""Which attributes are alike: those of one size of which a workload asks the same. They share their weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.base.names import AttributeSet
from dpscale.workload import Part, ProductPart, Workload
from dpscale.workload.joint import JOINT

MOST_KINDS, FEW_SETS = 32, 24
Role = tuple[int, frozenset[tuple[str, ...]]]


def kinds_of(workload: Workload) -> dict[str, Role]:
    """What makes attributes alike: their size, the families asked of them, and how much of each by degree.

    Where that makes very many kinds, how much is left out.
    """
    much = _asked_of(workload)
    finely = {name: _role(workload, name, counted, True) for name, counted in much.items()}
    if len(set(finely.values())) <= MOST_KINDS:
        return finely
    return {name: _role(workload, name, counted, False) for name, counted in much.items()}


def _asked_of(workload: Workload) -> dict[str, dict[tuple[str, ...], float]]:
    """What families are asked of every attribute in sets of which degree, with their weights; summed in columns, in the
    order of the sets."""
    names = workload.domain.names
    place, seen = {name: i for i, name in enumerate(names)}, dict[str, None]()
    columns: dict[tuple[str, ...], list[tuple[NDArray[np.int64], NDArray[np.float64]]]] = defaultdict(list)
    for part in workload.parts:
        seen.update(dict.fromkeys(chain.from_iterable(part.sets)))
        for degree, sets, weights in _by_degree(part):
            flat = np.fromiter(map(place.__getitem__, chain.from_iterable(sets)), np.int64, degree * len(sets))
            for family, own in _families(part, sets, flat):
                columns[family, str(degree)].append((flat[own], np.repeat(weights, degree)[own]))
    much: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in seen}
    for key, found in columns.items():
        places, values = (np.concatenate(column) for column in zip(*found, strict=True))
        sums = np.bincount(places, values)
        for i in np.unique(places).tolist():
            much[names[i]][key] = float(sums[i])
    return much


def _by_degree(part: Part) -> Iterator[tuple[int, Sequence[AttributeSet], NDArray[np.float64]]]:
    """The sets of each degree with their weights, in their order."""
    degrees, weights = np.fromiter(map(len, part.sets), np.int64, len(part.sets)), np.asarray(part.weights, np.float64)
    for degree in dict.fromkeys(degrees.tolist()):
        own = np.flatnonzero(degrees == degree)
        some = part.sets if len(own) == len(degrees) else [part.sets[i] for i in own.tolist()]
        yield degree, some, weights[own]


def _families(part: Part, sets: Sequence[AttributeSet], places: NDArray[np.int64]) -> Iterator[tuple[str, Any]]:
    """The families that sets of one degree ask, and of which of their attributes, one set after the other."""
    if isinstance(part, ProductPart):
        told = {family.name: family for name in part.domain.names for family in part.families((name,))}
        of = np.array([list(told).index(part.families((name,))[0].name) for name in part.domain.names])
        yield from ((family, of[places] == number) for number, family in enumerate(told))
    elif part.name in JOINT and not (part.name == "random" and len(part.sets) <= FEW_SETS):
        yield part.name, slice(None)
    else:  # axes differ
        keys = [f"{part.key(names)}/{axis}" for names in sets for axis in range(len(names))]
        yield from ((key, np.array(keys) == key) for key in dict.fromkeys(keys))


def _role(workload: Workload, name: str, counted: Mapping[tuple[str, ...], float], finely: bool) -> Role:
    asked = [(*key, f"{weight:.6g}") if finely else key for key, weight in counted.items() if weight > 0]
    return workload.domain[name].size, frozenset(asked)
