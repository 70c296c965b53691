"""Least-squares answers of many sets at once, where each residual is measured by one block, axis by axis.

Then sets of one shape and of the same strategies differ in numbers alone: what one set takes a hundred small arrays
for, a batch of them takes a hundred larger ones. With r_τ the residuals, s_τ the variances of their noise and u the
weights of the averages (1/n, unless a plan chose others), a batch has
    answers  W Σ_τ r_τ smeared by u,      variances  Σ_τ s_τ · ⊗ (diag W (KᵀK)⁺ Wᵀ inside τ, (Wu)² outside).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Floats, Integers
from dpscale.base.names import AttributeSet
from dpscale.plans.blocks import Blocks, Strategy
from dpscale.workload import Family, Part, ProductPart
from dpscale.workload.residual import subsets

Both = tuple[Floats, Floats]
Pattern = tuple[int, ...]
MOST_CELLS = 1 << 16  # of a batch


def apart(blocks: Blocks) -> bool:
    """Whether each residual is told by one block alone."""
    return blocks.commutes and blocks.separate and blocks.sets.distinct


@dataclass(frozen=True, eq=False)
class Together:
    """Answers from `blocks` that are `apart`: `read(i)` gives the values of block i, `residual` a smaller residual;
    `profiles`: the weights u of the attributes that have some."""

    blocks: Blocks
    variances: Floats
    profiles: Mapping[str, Floats]
    read: Callable[[int], Floats]
    residual: Callable[[AttributeSet], Floats]

    def answers(self, part: ProductPart, sets: Sequence[AttributeSet]) -> Iterator[Both | None]:
        """Estimates and standard errors of all queries of each set; None where not all of it was measured so."""
        start = 0
        while start < len(sets):
            end = _end(part, sets, start)
            yield from self._batch(part, sets[start:end])
            start = end

    def _batch(self, part: ProductPart, sets: Sequence[AttributeSet]) -> Iterator[Both | None]:
        """Of sets of one shape, those of the same strategies together."""
        found: list[Both | None] = [None] * len(sets)
        patterns = subsets(range(len(sets[0])))
        places = self._places(sets, patterns)
        for mine in self._alike(places):
            like = _Alike(self, part, [sets[i] for i in mine.tolist()], patterns, places[:, mine])
            for i, answers, errors in zip(mine.tolist(), like.estimates(), like.errors(), strict=True):
                found[i] = answers, errors
        return iter(found)

    @cached_property
    def _by_axis(self) -> NDArray[np.bool_]:
        """Of every strategy whether it is a product over the axes."""
        return np.array([all(len(factor.shape) == 1 for factor in one) for one in self.blocks.strategies])

    def _places(self, sets: Sequence[AttributeSet], patterns: Sequence[Pattern]) -> Integers:
        """The block of every residual of every set, (patterns, sets); −1 where there is none."""
        members = self.blocks.sets.placed(sets)
        return np.stack([self.blocks.sets.locate(members[:, list(pattern)]) for pattern in patterns])

    def _alike(self, places: Integers) -> Iterator[Integers]:
        """The sets all of which was measured axis by axis, grouped by the strategies of their residuals."""
        told = (places >= 0) & self._by_axis[self.blocks.which[places]]
        whole = np.flatnonzero(np.logical_and.reduce(told, axis=0))
        if len(whole):
            _, group = np.unique(self.blocks.which[places[:, whole]], axis=1, return_inverse=True)
            yield from (whole[group == number] for number in range(int(group.max()) + 1))


def _end(part: Part, sets: Sequence[AttributeSet], start: int) -> int:
    """Where the batch that begins there ends: sets of one shape, asked for the same families."""

    def kind(names: AttributeSet) -> object:
        return part.domain.shape(names), part.families(names) if isinstance(part, ProductPart) else ()

    first = kind(sets[start])
    most, end = max(MOST_CELLS // part.domain.cells(sets[start]), 1), start + 1
    while end < min(start + most, len(sets)) and kind(sets[end]) == first:
        end += 1
    return end


@dataclass(frozen=True, eq=False)
class _Alike:
    """Sets of one shape, families and strategies, with the blocks of their residuals, (patterns, sets)."""

    whole: Together
    part: ProductPart
    sets: Sequence[AttributeSet]
    patterns: Sequence[Pattern]
    places: Integers

    @property
    def shape(self) -> tuple[int, ...]:
        return self.part.domain.shape(self.sets[0])

    @property
    def families(self) -> tuple[Family, ...]:
        return self.part.families(self.sets[0])

    def profile(self, axis: int) -> Floats:
        """How the total of an axis is spread over its cells; that of one set is that of all."""
        size = self.shape[axis]
        return self.whole.profiles.get(self.sets[0][axis], np.full(size, 1 / size))

    def strategy(self, pattern: int) -> Strategy:
        blocks = self.whole.blocks
        return blocks.strategies[blocks.which[self.places[pattern, 0]]]

    def estimates(self) -> Floats:
        """Of all queries of every set, (sets, …)."""
        total = np.zeros((len(self.sets), *self.shape))
        for number, pattern in enumerate(self.patterns):
            values = self._residuals(number)
            for axis in range(len(self.shape)):
                if axis not in pattern:
                    values = np.expand_dims(values, axis + 1)
                    values = values * self.profile(axis).reshape(
                        [-1 if i == axis + 1 else 1 for i in range(values.ndim)]
                    )
            total += values
        for axis, family in enumerate(self.families):
            total = family.answers(total, axis + 1)
        return total

    def _residuals(self, number: int) -> Floats:
        """The estimated residuals of a pattern, (sets, …)."""
        pattern = self.patterns[number]
        if len(pattern) < len(self.shape):  # that others have as well
            return np.stack([self.whole.residual(tuple(names[axis] for axis in pattern)) for names in self.sets])
        values = np.stack([self.whole.read(index) for index in self.places[number].tolist()])
        for factor in self.strategy(number):  # each axis goes to the end, so after all of them they stand as they did
            values = factor.estimated(values, 1)
        return values

    def errors(self) -> Floats:
        """Standard errors of all queries of every set, (sets, …)."""
        total: Floats = np.zeros(())
        for number, pattern in enumerate(self.patterns):
            factor = dict(zip(pattern, self.strategy(number), strict=True))
            vectors = [factor[axis].quadratics(family) if axis in factor else self._means(axis) ** 2
                       for axis, family in enumerate(self.families)]  # fmt: skip
            own = self.whole.variances[self.places[number]]
            total = total + np.multiply.outer(own, reduce(np.multiply.outer, vectors, np.ones(())))
        return np.sqrt(total)

    def _means(self, axis: int) -> Floats:
        """What is left of every query where an axis is averaged away."""
        family, own = self.families[axis], self.whole.profiles.get(self.sets[0][axis])
        return family.means(self.shape[axis]) if own is None else family.answers(own, 0)
