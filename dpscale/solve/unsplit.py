"""Sets measured unsplit: several residual spaces of one set by one strategy on its cells.

Split pieces are measured apart, and what the pieces of one query have in common is lost: little for products, up to a
fifth for joint families on a small set. With Π = Σ over the spaces S of ⊗(I − u1ᵀ) ⊗ u1ᵀ the queries' pieces on S are
the rows of WΠ, of all sets that reach into S, and their Gram's optimum on the set's cells takes all of S at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from dpscale.names import AttributeSet
from dpscale.plans.allocation import variance_factor
from dpscale.plans.factor import Factor
from dpscale.residual import Weights, profile_of, subsets
from dpscale.solve.implicit import set_gram
from dpscale.solve.lattice import ENTRY_BITS, LARGEST_BITS, worth
from dpscale.solve.solution import Solution, Solve
from dpscale.workload import Part, ProductPart, Workload, root_of

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
MOST_CELLS, MOST_SETS, MOST_ENTRIES = 1024, 24, 1 << 25
RIDGE = 1e-12


@dataclass(frozen=True)
class Unsplit:
    """Spaces of one set, by the axes that each keeps, and the rows of what is asked of them: (r, cells)."""

    attributes: AttributeSet
    shape: tuple[int, ...]
    weights: tuple[Weights | None, ...]
    spaces: tuple[tuple[int, ...], ...]
    rows: Array

    @property
    def tells(self) -> set[AttributeSet]:
        return {tuple(self.attributes[axis] for axis in kept) for kept in self.spaces}

    def solved(self, solve: Solve, noise: str) -> Solution | None:
        """The integer strategy near the optimum, which tells of all the spaces; None where rounding loses some."""
        scale = float((self.rows**2).sum())
        optimum = solve(None, self.rows / math.sqrt(scale), self.shape)
        factor = self.rounded(optimum.root)
        if np.linalg.matrix_rank(factor.explicit().astype(np.float64)) < len(factor.explicit()):
            return None
        coefficient = worth(factor, self.rows, noise) * variance_factor(noise)
        return Solution((factor,), coefficient, min(optimum.dual * scale * variance_factor(noise), coefficient))

    def rounded(self, root: Array) -> Factor:
        """R·Π·ΠM of whole numbers, R ≈ 2^bits · root: it lies in the spaces exactly."""
        whole = _whole_projection(self.shape, self.weights, self.spaces)
        bits = min(LARGEST_BITS, ENTRY_BITS - int(np.abs(whole).max()).bit_length())
        matrix = np.rint(np.ldexp(root, bits)).astype(np.int64) @ whole
        return Factor("matrix", self.shape, matrix, self.weights, self.spaces)


def candidates(workload: Workload, mixed: bool) -> list[AttributeSet]:
    """The sets that may be measured unsplit: those of joint families and arrays over several attributes, and all the
    attributes asked; none where there are too many sets, whose shared pieces leave little to gain, or cells.

    `mixed`: whether some residual is asked more than one product; what is only products loses next to nothing apart.
    """
    sets = {names for part in workload.parts for names in part.sets}
    sizes = [workload.domain.cells(names) for names in sets]
    joint = {names for part in workload.parts if not isinstance(part, ProductPart) for names in part.sets}
    if not mixed or len(sets) > MOST_SETS or sum(size**2 for size in sizes) > MOST_ENTRIES:
        return []
    everything = workload.domain.ordered({name for names in sets for name in names})
    fitting = [names for names in joint | {everything} if workload.domain.cells(names) <= MOST_CELLS and len(names) > 1]
    return sorted(fitting, key=lambda names: (-len(names), names))


def unsplit(
    workload: Workload, attributes: AttributeSet, asked: Sequence[AttributeSet], weights: Mapping[str, Weights]
) -> Unsplit:
    """Those of the `asked` residuals that lie in a set, taken together."""
    spaces = tuple(kept for kept in subsets(tuple(range(len(attributes))))
                   if tuple(attributes[axis] for axis in kept) in asked)  # fmt: skip
    own, shape = tuple(weights.get(name) for name in attributes), workload.domain.shape(attributes)
    projection = _projection(shape, own, spaces)
    gram = projection.T @ gram_on(workload, attributes, weights) @ projection
    space = np.linalg.svd(projection)[2][: _dimensions(shape, spaces)]
    ridge = RIDGE * float(np.linalg.eigvalsh(gram)[-1]) * (space.T @ space)
    return Unsplit(attributes, shape, own, spaces, root_of((gram + gram.T) / 2 + ridge)[-len(space) :])


def gram_on(workload: Workload, attributes: AttributeSet, weights: Mapping[str, Weights]) -> Array:
    """The Gram of all queries on the cells of a set, averaged over the attributes outside of it: (cells, cells)."""
    shape = workload.domain.shape(attributes)
    total = np.zeros(shape * 2)
    for part in workload.parts:
        for names, weight in zip(part.sets, part.weights, strict=True):
            total += weight * _averaged(part, names, attributes, weights)
    return total.reshape(math.prod(shape), -1)


def _averaged(part: Part, names: AttributeSet, attributes: AttributeSet, weights: Mapping[str, Weights]) -> Array:
    """The Gram of one set, the axes outside `attributes` averaged, ready to broadcast over two copies of those."""
    sizes = part.domain.shape(names)
    gram = set_gram(part, names).reshape(sizes * 2)
    for axis in reversed(range(len(names))):
        if names[axis] not in attributes:
            profile = profile_of(weights.get(names[axis]), sizes[axis])
            gram = np.tensordot(np.tensordot(gram, profile, axes=(axis + gram.ndim // 2, 0)), profile, axes=(axis, 0))
    shape = [part.domain[name].size if name in names else 1 for name in attributes]
    return np.asarray(gram.reshape(shape * 2))


def _projection(
    shape: tuple[int, ...], weights: Sequence[Weights | None], spaces: Sequence[tuple[int, ...]]
) -> Array:
    """Π, (cells, cells), from the right on queries: exact, for u is dyadic or 1/n."""
    whole = _whole_projection(shape, weights, spaces).astype(np.float64)
    return whole / math.prod(n if own is None else sum(own) for n, own in zip(shape, weights, strict=True))


def _whole_projection(
    shape: tuple[int, ...], weights: Sequence[Weights | None], spaces: Sequence[tuple[int, ...]]
) -> Integers:
    """Π times the product of the axes' M; where the spaces are all there are, just Π = 1 times that."""
    total = np.zeros((math.prod(shape),) * 2, dtype=np.int64)
    for kept in spaces:
        axes = [_axis(n, own, axis in kept) for axis, (n, own) in enumerate(zip(shape, weights, strict=True))]
        total += reduce(np.kron, axes)
    return total


def _axis(size: int, weights: Weights | None, kept: bool) -> Integers:
    """M·(I − u1ᵀ), or M·u1ᵀ."""
    numbers = np.array(weights or [1] * size, dtype=np.int64)
    total = np.repeat(numbers[:, None], size, axis=1)
    return np.asarray(np.eye(size, dtype=np.int64) * numbers.sum() - total if kept else total)


def _dimensions(shape: tuple[int, ...], spaces: Sequence[tuple[int, ...]]) -> int:
    return sum(math.prod(shape[axis] - 1 for axis in kept) for kept in spaces)
