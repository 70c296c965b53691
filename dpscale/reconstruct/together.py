"""Least-squares answers of many sets at once, where every residual is measured by the marginal's own strategy.

Then sets of one shape differ in numbers alone: what one set takes a hundred small arrays for, a batch of them takes a
hundred larger ones. With r_τ the residuals and s_τ their scales, a batch has
    answers  W Σ_τ r_τ smeared,      variances  Σ_τ s_τ · ⊗ (diag W (KᵀK)⁺ Wᵀ inside τ, (W1/n)² outside).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from dpscale.names import AttributeSet
from dpscale.plans.blocks import Blocks
from dpscale.plans.factor import center_factor
from dpscale.residual import center, subsets
from dpscale.workload import Family, Part, ProductPart

Array = NDArray[np.float64]
Indices = NDArray[np.int64]
Both = tuple[Array, Array]
MOST_CELLS = 1 << 16  # of a batch


def alike(blocks: Blocks) -> bool:
    """Whether each residual is told by one block alone, whose factors all centre."""
    plain = all(factor.kind == "center" for strategy in blocks.strategies for factor in strategy)
    return plain and blocks.separate and blocks.sets.distinct


@dataclass(frozen=True, eq=False)
class Together:
    """Answers from `blocks` that are `alike`: `read(i)` gives the values of block i, `residual` a smaller one."""

    blocks: Blocks
    variances: Array
    read: Callable[[int], Array]
    residual: Callable[[AttributeSet], Array]

    def answers(self, part: ProductPart, sets: Sequence[AttributeSet]) -> Iterator[Both | None]:
        """Estimates and standard errors of all queries of each set; None where not all of it was measured."""
        start = 0
        while start < len(sets):
            end = self._end(part, sets, start)
            yield from self._batch(part, sets[start:end])
            start = end

    def _end(self, part: Part, sets: Sequence[AttributeSet], start: int) -> int:
        """Where the batch that begins there ends: sets of one shape."""
        shape = part.domain.shape(sets[start])
        most, end = max(MOST_CELLS // math.prod(shape), 1), start + 1
        while end < min(start + most, len(sets)) and part.domain.shape(sets[end]) == shape:
            end += 1
        return end

    def _batch(self, part: ProductPart, sets: Sequence[AttributeSet]) -> Iterator[Both | None]:
        shape, families = part.domain.shape(sets[0]), part.families(sets[0])
        patterns = subsets(range(len(shape)))
        places = self._places(sets, patterns)
        whole: NDArray[np.bool_] = np.logical_and.reduce(places >= 0, axis=0)
        if not whole.any() or any(part.families(names) != families for names in sets):
            yield from (None for _ in sets)
            return
        asked = [names for names, is_whole in zip(sets, whole, strict=True) if is_whole]
        both = zip(self._estimates(asked, places[:, whole], patterns, shape, families),
                   self._errors(places[:, whole], patterns, shape, families), strict=True)  # fmt: skip
        yield from (next(both) if is_whole else None for is_whole in whole.tolist())

    def _places(self, sets: Sequence[AttributeSet], patterns: Sequence[tuple[int, ...]]) -> Indices:
        """The block of every residual of every set, (patterns, sets); −1 where there is none."""
        members = self.blocks.sets.placed(sets)
        return np.stack([self.blocks.sets.locate(members[:, list(pattern)]) for pattern in patterns])

    def _estimates(
        self,
        sets: Sequence[AttributeSet],
        places: Indices,
        patterns: Sequence[tuple[int, ...]],
        shape: tuple[int, ...],
        families: Sequence[Family],
    ) -> Array:
        total = np.zeros((len(sets), *shape))
        for pattern, mine in zip(patterns, places, strict=True):
            values = self._residuals(sets, mine, pattern, shape)
            for axis, size in enumerate(shape):
                if axis not in pattern:
                    values = np.expand_dims(values, axis + 1) * (1 / size)
            total += values
        for axis, family in enumerate(families):
            total = family.answers(total, axis + 1)
        return total

    def _residuals(
        self, sets: Sequence[AttributeSet], mine: Indices, pattern: tuple[int, ...], shape: tuple[int, ...]
    ) -> Array:
        """The estimated residuals on some axes of every set, (sets, …)."""
        if len(pattern) < len(shape):  # that others have as well
            return np.stack([self.residual(tuple(names[axis] for axis in pattern)) for names in sets])
        values = np.stack([self.read(index) for index in mine.tolist()])
        return center(values, range(1, values.ndim)) / math.prod(shape)

    def _errors(
        self,
        places: Indices,
        patterns: Sequence[tuple[int, ...]],
        shape: tuple[int, ...],
        families: Sequence[Family],
    ) -> Array:
        total: Array = np.zeros(())
        for pattern, mine in zip(patterns, places, strict=True):
            vectors = [family.quadratic(center_factor(size).covariance) if axis in pattern else family.means(size) ** 2
                       for axis, (family, size) in enumerate(zip(families, shape, strict=True))]  # fmt: skip
            total = total + np.multiply.outer(self.variances[mine], reduce(np.multiply.outer, vectors, np.ones(())))
        return np.sqrt(total)
