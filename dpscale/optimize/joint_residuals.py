"""Joint measurement of several residual spaces of one attribute set, by one strategy on its cells.

Measuring the residual spaces separately loses the common part of a query's pieces: little for products, up to a fifth
of the error for joint families on a small set. With Π = Σ over the spaces S of ⊗(I − u1ᵀ) ⊗ u1ᵀ, the pieces on these
spaces are the rows of WΠ over all sets that intersect them, and the optimum for their Gram matrix on the set's cells
covers all spaces at once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.domain import MOST_PARTS
from dpscale.optimize.convex import Solution, Solve, at_weights, cell_weights, dual
from dpscale.optimize.integer_strategies import ENTRY_BITS, LARGEST_BITS, error_coefficient
from dpscale.optimize.symmetry import split
from dpscale.plans.factor import Factor
from dpscale.privacy.draws import variance_factor
from dpscale.workload import Workload, WorkloadPart, root_of
from dpscale.workload.factors import compressed, weighted_queries
from dpscale.workload.residual import Weights, kron, profile_of, subsets

# cells of a set measured jointly; cells of all attributes together if all families are products; sets of the workload;
# summed squares of the sets' cells
MOST_CELLS, MOST_OF_PRODUCTS, MOST_SETS, MOST_ENTRIES = 2048, 1024, 24, 1 << 25
RIDGE = 1e-12  # square of the ridge's scale, relative to the squared length of the last row
TOLERANCE, FEW_CELLS, LOOSELY = 1e-6, 300, 1e-3  # gap at which a search ends: on few cells, and on more
EVEN = 1e-3  # part of uniform weights, with which a strategy spans more than the queries


@dataclass(frozen=True)
class JointSpaces:
    """Residual spaces of one set that are measured jointly.

    Attributes
    ----------
    attributes : AttributeSet
    shape : tuple of int
    weights : tuple of Weights or None
        Weights of the axes.
    spaces : tuple of tuple of int
        Centred axes of each residual space.
    rows : ndarray, shape (r, cells)
        Rows of the workload's Gram matrix on the spaces.
    ridge : ndarray
        Rows of very small weight that make a strategy span all of the spaces.
    """

    attributes: AttributeSet
    shape: tuple[int, ...]
    weights: tuple[Weights | None, ...]
    spaces: tuple[tuple[int, ...], ...]
    rows: Floats
    ridge: Floats

    @property
    def spanned(self) -> set[AttributeSet]:
        return {tuple(self.attributes[axis] for axis in space) for space in self.spaces}

    @property
    def key(self) -> str:
        """Key of the Gram matrix of trace 1, equal for equal problems."""
        gram = self.rows.T @ self.rows
        return f"unsplit/{hashlib.sha256((np.round(gram / np.trace(gram), 12) + 0.0).tobytes()).hexdigest()}"

    def solved(self, solve: Solve, noise: str) -> Solution | None:
        """Return the integer strategy near the optimum, which spans all the spaces; None if rounding loses rank.

        The bound is of the rows without the ridge. The ridge gives small weight to directions that no query needs, so
        that the strategy spans all spaces after rounding. `solve` is the general solver. Of many cells, the tolerance
        is larger (LOOSELY). EVEN is the share of even weights, which keeps every cell measured.
        """
        scale = math.sqrt(float((self.rows**2).sum()))
        compressed_rows = compressed(np.concatenate([self.rows, self.ridge]) / scale)
        tolerance = TOLERANCE if math.prod(self.shape) <= FEW_CELLS else LOOSELY
        if math.prod(self.shape) > FEW_CELLS and len(self.rows) < len(compressed_rows):
            # solved without the ridge, which would take longer, and mixed with even weights
            alone = compressed(self.rows / scale)
            weights = cell_weights(split(alone, self.shape), solve(f"{self.key}/alone", alone, self.shape, tolerance))
            optimum = at_weights(compressed_rows, self.shape, (1 - EVEN) * weights + EVEN / weights.size)
        else:
            optimum = solve(self.key, compressed_rows, self.shape, tolerance)

        factor = self.rounded(optimum.root)
        if np.linalg.matrix_rank(factor.explicit().astype(np.float64)) < len(factor.explicit()):
            return None

        coefficient = error_coefficient(factor, self.rows, noise) * variance_factor(noise)
        bound = dual(self.rows, cell_weights(split(compressed_rows, self.shape), optimum)) * variance_factor(noise)
        return Solution((factor,), coefficient, min(bound, coefficient))

    def rounded(self, root: Floats) -> Factor:
        """Return the integer matrix R·Π·ΠM, R ≈ 2^bits · root, which lies in the spaces exactly."""
        whole, _ = _projection(self.shape, self.weights, self.spaces)
        bits = min(LARGEST_BITS, ENTRY_BITS - int(np.abs(whole).max()).bit_length())
        matrix = np.rint(np.ldexp(root, bits)).astype(np.int64) @ whole
        return Factor(kind="matrix", shape=self.shape, matrix=matrix, weights=self.weights, spaces=self.spaces)


def candidates(workload: Workload, mixed: bool) -> list[AttributeSet]:
    """Return the sets that may be measured jointly.

    These are the sets of joint families and arrays over several attributes, and the set of all attributes. There are
    none if the workload has too many sets, whose pieces overlap so much that little is gained, or too many cells.

    `mixed` states whether some residual has more than one product; product workloads lose almost nothing by splitting.
    """
    sets = {names for part in workload.parts for names in part.sets}
    if not mixed or len(sets) > MOST_SETS:
        return []

    sizes = [workload.domain.cells(names) for names in sets]
    joint = {names for part in workload.parts if not part.factorizes for names in part.sets}
    if sum(size**2 for size in sizes) > MOST_ENTRIES:
        return []

    everything = workload.domain.ordered({name for names in sets for name in names})
    fitting = {names for names in joint if len(names) > 1 and workload.domain.cells(names) <= MOST_CELLS}
    countable = math.prod(workload.domain[name].largest_part for name in everything) <= MOST_PARTS
    most_cells = MOST_CELLS if joint else MOST_OF_PRODUCTS  # residuals of products lose less
    if len(everything) > 1 and workload.domain.cells(everything) <= most_cells and countable:
        fitting.add(everything)

    return sorted(fitting, key=lambda names: (-len(names), names))


def joint_spaces(
    workload: Workload, attributes: AttributeSet, taken: Container[AttributeSet], weights: Mapping[str, Weights]
) -> JointSpaces:
    """Return the residuals of a set to measure jointly, except those in `taken`, which another set measures.

    The queries are projected on the sum of the spaces; a small multiple of a basis of it is the ridge, with which
    every direction is measured.

    The rows are a root of Πᵀ G Π, and the ridge is an orthonormal basis of the range of Π times RIDGE^½ of the length
    of the last row.
    """
    spaces = tuple(space for space in subsets(tuple(range(len(attributes))))
                   if tuple(attributes[axis] for axis in space) not in taken)  # fmt: skip
    axis_weights, shape = tuple(weights.get(name) for name in attributes), workload.domain.shape(attributes)
    integers, times = _projection(shape, axis_weights, spaces)
    projection = integers / times
    gram = projection.T @ gram_on(workload, attributes, weights) @ projection
    rows = root_of((gram + gram.T) / 2)

    dimensions = sum(math.prod(shape[axis] - 1 for axis in space) for space in spaces)
    _, _, directions = np.linalg.svd(projection)
    ridge = math.sqrt(RIDGE * float((rows[-1] ** 2).sum())) * directions[:dimensions]
    return JointSpaces(attributes=attributes, shape=shape, weights=axis_weights, spaces=spaces, rows=rows, ridge=ridge)


def gram_on(workload: Workload, attributes: AttributeSet, weights: Mapping[str, Weights]) -> Floats:
    """Return the Gram matrix of all queries on a set's cells, (cells, cells), averaged over the other attributes."""
    shape = workload.domain.shape(attributes)
    total = np.zeros(shape * 2)
    for part in workload.parts:
        for names, weight in zip(part.sets, part.weights, strict=True):
            total += weight * _averaged(part, names, attributes, weights)
    return total.reshape(math.prod(shape), -1)


def _averaged(
    part: WorkloadPart, names: AttributeSet, attributes: AttributeSet, weights: Mapping[str, Weights]
) -> Floats:
    """Return the Gram matrix of one set averaged over axes outside `attributes`, to broadcast over two copies.

    An axis outside the set contributes the queries' means under its profile: uᵀGu for a product, q·u for arrays. Axes
    that the queries do not name have the length 1.
    """
    profiles = {name: profile_of(weights.get(name), part.domain[name].size) for name in names if name not in attributes}
    shape = [part.domain[name].size if name in names else 1 for name in attributes]
    if part.factorizes:
        grams = []
        for name, family in zip(names, part.families(names), strict=True):
            grams.append(_mean_of(family.gram(part.domain[name].size), profiles.get(name)))
        total = kron(grams)
    else:
        queries = weighted_queries(part, names)
        for axis in reversed(range(len(names))):
            if names[axis] in profiles:
                queries = np.tensordot(queries, profiles[names[axis]], axes=(axis + 1, 0))
        flat = queries.reshape(len(queries), -1)
        total = flat.T @ flat

    return np.asarray(total.reshape(shape * 2))


def _mean_of(gram: Floats, profile: Floats | None) -> Floats:
    return gram if profile is None else np.array([[profile @ gram @ profile]])


def _projection(
    shape: tuple[int, ...], weights: Sequence[Weights | None], spaces: Sequence[tuple[int, ...]]
) -> tuple[Integers, int]:
    """Return Π, (cells, cells), applied to queries from the right, as an integer matrix and its divisor.

    Each axis has the integer matrices of I − u1ᵀ or u1ᵀ times its divisor, n or the sum of its weights; the divisors of
    the axes multiply. All 2^axes spaces together are the identity.
    """
    cells = math.prod(shape)
    if len(spaces) == 1 << len(shape):
        return np.eye(cells, dtype=np.int64), 1

    total = np.zeros((cells, cells), dtype=np.int64)
    for space in spaces:
        axes = [_axis(n, weight, axis in space) for axis, (n, weight) in enumerate(zip(shape, weights, strict=True))]
        total += reduce(np.kron, axes)
    return total, math.prod(n if weight is None else sum(weight) for n, weight in zip(shape, weights, strict=True))


def _axis(size: int, weights: Weights | None, whole: bool) -> Integers:
    """Return M·(I − u1ᵀ) if `whole`, else M·u1ᵀ, with integer weights M u of sum M (1 for each cell by default)."""
    numbers = np.array(weights or [1] * size, dtype=np.int64)
    total = np.repeat(numbers[:, None], size, axis=1)
    return np.asarray(np.eye(size, dtype=np.int64) * numbers.sum() - total if whole else total)
