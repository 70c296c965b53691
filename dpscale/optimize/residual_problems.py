"""Convex problems of the residual spaces of a workload, and their optima as integer strategies.

A subworkload whose Gram matrix is one Kronecker term has the product of its factors' optima as its optimum, and the
product of their dual bounds as its certificate. A small subworkload with several terms is one problem on all its cells;
a large one is solved by `opt_kronecker.solve_product`. Equal problems have equal keys.

*Joint measurement of several residual spaces of one attribute set, by one strategy on its cells.*
Measuring the residual spaces separately loses the common part of a query's pieces: little for products, up to a fifth
of the error for joint families on a small set. With Π = Σ over the spaces S of ⊗(I − u1ᵀ) ⊗ u1ᵀ, the pieces on these
spaces are the rows of WΠ over all sets that intersect them, and the optimum for their Gram matrix on the set's cells
covers all spaces at once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import cast

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.domain import MOST_PARTS
from dpscale.optimize.convex import Optimum, Solution, Solve, at_weights, cell_weights, dual, split
from dpscale.optimize.fourier import MOST_CELLS, FourierProblem
from dpscale.optimize.integer_strategies import (
    ENTRY_BITS,
    LARGEST_BITS,
    FactorBits,
    centring_rounder,
    error_coefficient,
    factor_bits,
    primitive_factor,
    round_strategy,
    two_cell_factor,
    weight_bits,
)
from dpscale.optimize.long_axis import LinearAxis, WideRoot, centred_bound, long_family, rooted_weights
from dpscale.plans.factor import Factor, center_factor
from dpscale.plans.nested import NestedFactor
from dpscale.privacy.draws import GAUSSIAN, allocate, variance_factor
from dpscale.workload import AnyGram, Family, GramFactor, Subworkload, Workload, WorkloadPart, root_of
from dpscale.workload.factors import MOST_GRAM, AxisWeights, compressed, weighted_queries
from dpscale.workload.residual import Weights, kron, profile_of, subsets
from dpscale.workload.wide import Cut, WideGram, cut_of, runs_of

# added multiple of the whole space, relative to the largest eigenvalue; most dimensions of a space that has it where a
# basis could be rounded; and where none can
RIDGE, RIDGE_CELLS, WHOLE_CELLS = 1e-12, 200, 2600
# bits of combinations of a rounded basis; least bits of the basis; least bits of combinations of an integer basis
ROUNDED_BITS, LEAST_BITS, SHORT_BITS = 18, 28, 8

# cells of a set measured jointly; cells of all attributes together if all families are products; sets of the workload;
# summed squares of the sets' cells
MOST_JOINT_CELLS, MOST_OF_PRODUCTS, MOST_SETS, MOST_ENTRIES = 2048, 1024, 24, 1 << 25
JOINT_RIDGE = 1e-12  # square of the ridge's scale, relative to the squared length of the last row
TOLERANCE, FEW_CELLS, LOOSELY = 1e-6, 300, 1e-3  # gap at which a search ends: on few cells, and on more
EVEN = 1e-3  # part of uniform weights, with which a strategy spans more than the queries


@dataclass(frozen=True, eq=False)
class Problem:
    """Convex problem of one Gram matrix of trace 1.

    Attributes
    ----------
    key : str
    shape : tuple of int
        Sizes of the axes.
    rows : ndarray, shape (r, cells)
    basis : ndarray, optional
        Integer basis of the span of the rows.
    weights : tuple of Weights or None
        Weights of the axes with respect to which the rows are centred.
    based : bool
        Whether the strategy must lie in the span of the rows.
    """

    key: str
    shape: tuple[int, ...]
    rows: Floats
    basis: Floats | None
    weights: tuple[Weights | None, ...]
    based: bool = True

    @property
    def on_two_cells(self) -> bool:
        """Whether the problem has only one possible strategy, determined by the weights."""
        return self.shape == (2,) and self.weights != (None,)

    @cached_property
    def is_center(self) -> bool:
        """Whether the Gram matrix is a multiple of the centring projector, whose known optimum needs no rounding."""
        n = self.rows.shape[1]
        if len(self.shape) != 1 or len(self.rows) != n - 1 or self.weights != (None,):
            return False
        gram = self.rows.T @ self.rows
        return bool(np.allclose(gram * (n - 1), np.eye(n) - 1 / n, rtol=0, atol=1e-10))

    @property
    def combines(self) -> bool:
        """Whether the strategy consists of integer combinations of an integer basis."""
        return self.basis is not None and not self.on_two_cells

    @property
    def rounds_basis(self) -> bool:
        """Whether the strategy has a rounded basis: it must lie in the span of rows without an integer basis."""
        return self.based and self.basis is None and len(self.rows) < math.prod(n - 1 for n in self.shape)

    @property
    def basis_bits(self) -> int:
        """Bits of a rounded basis."""
        return ENTRY_BITS - ROUNDED_BITS - (len(self.rows).bit_length() + 1) // 2 - weight_bits(self.weights)

    def check_basis(self) -> None:
        """Raise PlanError if a rounded basis has too few bits."""
        if self.basis_bits < LEAST_BITS:
            raise PlanError("workload", f"queries with non-integer values over {self.rows.shape[1]} cells of axes "
                            "with weights", "integer values", "use query-smasher")  # fmt: skip

    @cached_property
    def rounded_basis(self) -> Floats | None:
        """Integer rows near an orthonormal basis of the rows, with negligible rounding error.

        None if the rows span the whole space or have exact integer rows.

        Directions are the right singular vectors of the rows, scaled to integers of `basis_bits` bits, then centred
        exactly.
        """
        if not self.rounds_basis:
            return None
        directions = np.linalg.svd(self.rows, full_matrices=False)[2]
        bits = self.basis_bits
        scaled = np.ldexp(directions / np.abs(directions).max(), bits)
        return centring_rounder(self.shape, self.weights)(scaled).explicit().astype(np.float64)

    def solved(self, solve: Solve) -> Optimum:
        """Return the optimum computed by `solve`."""
        return solve(self.key, self.rows, self.shape)

    def rounded(self, optimum: Optimum, bits: FactorBits, noise: str) -> tuple[Factor, float]:
        """Return an integer strategy near the optimum and its error coefficient."""
        factor = self._factor(optimum, bits)
        return factor, error_coefficient(factor, self.rows, noise)

    def _factor(self, optimum: Optimum, bits: FactorBits) -> Factor:
        """Return the integer strategy near an optimum.

        It is centring, two cells, integer combinations of a basis, or rounded entries.

        The order is from exact strategies to rounded ones: a centring or a single possible row has no rounding error,
        and combinations of a basis keep the span of the queries, which rounded entries do not.
        """
        if self.is_center:
            return center_factor(self.shape[0])
        if self.on_two_cells and self.weights[0] is not None:
            return two_cell_factor(self.weights[0])

        if self.rounded_basis is not None:
            largest = np.abs(optimum.root @ np.linalg.pinv(self.rounded_basis)).max()  # coefficient of a basis row
            # the largest coefficient has ROUNDED_BITS bits: basis and coefficients share the bits of an entry
            finer = min(ROUNDED_BITS - math.frexp(largest)[1], ENTRY_BITS)
            return round_strategy(self.rows, optimum.root, self.shape, finer, self.rounded_basis, self.weights)

        if self.basis is not None:
            if bits.is_short and len(optimum.root) == 1:
                return primitive_factor(self.basis, self.shape, self.weights)
            finer = min(bits.combined + weight_bits(self.weights), ENTRY_BITS)
            if bits.is_short:
                largest = np.abs(optimum.root @ np.linalg.pinv(self.basis)).max()
                finer = max(finer, SHORT_BITS - math.frexp(largest)[1])  # so that the largest has SHORT_BITS
            return round_strategy(self.rows, optimum.root, self.shape, finer, self.basis, self.weights)
        return round_strategy(self.rows, optimum.root, self.shape, bits.entries, weights=self.weights)


def problem_of(
    key: str, shape: tuple[int, ...], rows: Floats, basis: Floats | None, weights: AxisWeights, based: bool = True
) -> Problem:
    """Return the problem with its rows compressed.

    If the rows span too little, no integer basis is known and there are few cells, a small multiple of the whole space
    is added so that rounding the strategy cannot leave the span of the queries. With many cells a basis of the queries
    is rounded instead.
    """
    rows = compressed(rows)
    full = math.prod(n - 1 for n in shape)  # dimension of the centred space
    if basis is not None and len(rows) < full:
        return Problem(key=key, shape=shape, rows=rows, basis=basis, weights=weights)
    if len(rows) < full and not based and full > WHOLE_CELLS:
        raise PlanError("workload", f"queries over {math.prod(shape)} cells for strategies that span all of them",
                        f"at most {WHOLE_CELLS} cells", "use query-smasher")  # fmt: skip

    if len(rows) < full and (not based or full <= RIDGE_CELLS):
        gram = rows.T @ rows
        centring = kron([_orthogonal(weight, n) for weight, n in zip(weights, shape, strict=True)])
        rows = root_of(gram + RIDGE * float(np.linalg.eigvalsh(gram)[-1]) * centring)

    problem = Problem(key=key, shape=shape, rows=rows, basis=None, weights=weights, based=based)
    if problem.rounds_basis:
        problem.check_basis()  # before it is solved
    return problem


def _orthogonal(weights: Weights | None, size: int) -> Floats:
    """Return the projector on the orthogonal complement of u."""
    profile = profile_of(weights, size)
    return np.eye(size) - np.outer(profile, profile) / float(profile @ profile)


MIXED_BITS = 10  # bits of the multipliers that bring the levels to their shares; their errors count squared
FEWEST_BITS = 12  # least bits of a level after those of its multiplier are subtracted
LEVEL_RIDGE = 1e-9  # of a singular Gram matrix of a level


@dataclass(frozen=True)
class TwoLevels:
    """Optima of the blocks and within the blocks of each run, the best two-level value, and a lower bound."""

    parts: tuple[Optimum, ...]
    primal: float
    dual: float

    @property
    def ended(self) -> str:
        return next((part.ended for part in self.parts if part.ended != "gap"), "gap")

    @property
    def gap(self) -> float:
        return max(part.gap for part in self.parts)


@dataclass(frozen=True, eq=False)
class CellsAlone:
    """Problem of a wide marginal."""

    key: str
    size: int
    is_center = True
    weights: tuple[Weights | None, ...] = (None,)

    def solved(self, solve: Solve) -> Optimum:
        """Return the known optimum, without a search.

        With G = (I − 11ᵀ/n)/(n − 1), of trace 1, the optimum X = (I − 11ᵀ/n) n/(n − 1) gives tr(G X⁺) = (n − 1)/n, and
        the dual has the same value.
        """
        least = (self.size - 1) / self.size
        return Optimum(root=np.zeros((0, 0)), primal=least, dual=least, weights=np.zeros(0))

    def rounded(self, optimum: Optimum, bits: FactorBits, noise: str) -> tuple[Factor, float]:
        factor = center_factor(self.size)
        return factor, factor.squared_sensitivity(noise) / self.size**2


@dataclass(frozen=True, eq=False)
class Nested:
    """Problem of a wide axis in two levels: `levels` are the blocks, then the cells within the blocks of every run."""

    gram: WideGram
    levels: tuple[Problem, ...]
    traces: tuple[float, ...]  # trace of each level's Gram matrix over all its blocks; they sum to 1
    is_center = False

    @property
    def key(self) -> str:
        return self.gram.key

    @property
    def weights(self) -> tuple[Weights | None, ...]:
        return (self.gram.weights,)

    def solved(self, solve: Solve) -> TwoLevels:
        """Return the optima of both levels with the value of the best division of the budget between them.

        A level with trace t of its Gram matrix has the optimum t times that of trace 1, and the levels share the budget
        (`two_levels`). The lower bound is at most the primal value.
        """
        parts = tuple(problem.solved(solve) for problem in self.levels)
        primal = two_levels([part.primal * trace for part, trace in zip(parts, self.traces, strict=True)])
        return TwoLevels(parts, primal, min(max(self.gram.lower_bound, self._dual), primal))

    @property
    def _dual(self) -> float:
        """Dual value of the problem for one family; 0 if unknown."""
        (family, weight), *others = self.gram.asked
        return 0.0 if others else weight * centred_bound(cast(Family, family), self.gram.size, self.gram.weights)

    def rounded(self, optimum: TwoLevels, bits: FactorBits, noise: str) -> tuple[Factor, float]:
        """Return the levels rounded and brought to their shares by integer multipliers.

        `errors` are the levels' errors at sensitivity 1. The joined factor multiplies the integers of a level, so its
        error is divided by the squared sensitivity of the level, and the whole by that of the joined strategy.
        """
        finer = bits._replace(entries=max(bits.entries - MIXED_BITS, FEWEST_BITS))
        pairs = zip(self.levels, optimum.parts, strict=True)
        parts = [problem.rounded(part, finer, noise) for problem, part in pairs]
        errors = [error * trace for (_, error), trace in zip(parts, self.traces, strict=True)]
        factor = self._joined([factor for factor, _ in parts], errors, noise)
        scaled = [part.squared_sensitivity(noise) for part in factor.parts]  # not included in the errors
        combined = sum(error / number for error, number in zip(errors, scaled, strict=True))

        return factor, combined * factor.squared_sensitivity(noise)

    def _joined(self, parts: Sequence[Factor], errors: Sequence[float], noise: str) -> NestedFactor:
        """Return the strategies of the blocks and within the blocks as one, each at its share of the budget.

        Shares follow from the errors. The integers of each strategy are multiplied so that their ratios are those of
        the shares.

        A level at share ρ must have squared sensitivity proportional to ρ (Gaussian noise) or sensitivity proportional
        to ρ (Laplace noise); `scales` are the factors that give this, and `unit` makes the least of them 2^MIXED_BITS.
        """
        shares, _ = allocate([errors[0], sum(errors[1:])], noise)
        of_parts = [shares[0], *([shares[1]] * (len(parts) - 1))]
        scales = [
            (share**0.5 if noise == GAUSSIAN else share) / math.sqrt(part.squared_sensitivity(noise))
            for share, part in zip(of_parts, parts, strict=True)
        ]
        unit = min(scales) / (1 << MIXED_BITS)
        top, *inner = [_times(part, round(scale / unit)) for part, scale in zip(parts, scales, strict=True)]
        weights = None if self.gram.weights is None else (self.gram.weights,)

        return NestedFactor("nested", (self.gram.size,), weights=weights, top=top, inner=tuple(inner))


def two_levels(optima: Sequence[float]) -> float:
    """Return (√L₁ + √L₂)² of the blocks and of all runs together.

    The share of a level is proportional to √L, which minimises L₁/ρ₁ + L₂/ρ₂ on ρ₁ + ρ₂ = 1.
    """
    return (math.sqrt(optima[0]) + math.sqrt(sum(optima[1:]))) ** 2


def _times(factor: Factor, number: int) -> Factor:
    return Factor(kind="matrix", shape=factor.shape, matrix=factor.explicit() * number, weights=factor.weights)


def wide_problem(gram: WideGram) -> CellsAlone | Nested | WideRoot | FourierProblem:
    """Return the problem of a wide axis.

    In this order: queries of single cells (known optimum), queries that a rotation leaves unchanged (Fourier basis),
    prefix or range queries with their best weights (a root of known eigenvectors), and else two levels of blocks. A cut
    divides the axis in blocks; a run is successive blocks of equal size, which share one problem within the blocks.

    `asked` are the families of queries with their weights, and `gram.weights` the axis weights, None for even ones.
    Level 0 is the table of block sums, and each further level the cells within the blocks of one run.
    """
    if gram.cells_alone:
        return CellsAlone(gram.key, gram.size)
    families = [cast(Family, family) for family, _ in gram.asked]
    if gram.weights is None and any(family.invariant and not family.is_identity for family in families):
        return FourierProblem.of_axis(gram)
    if gram.weights is not None and gram.weights == rooted_weights(families, gram.size, alone=True):
        return WideRoot(gram)

    cut, profile = cut_of(gram.size, gram.weights)
    grams = [gram.mixed([family.block_gram(cut) for family, _ in gram.asked], profile)]
    for run, within in zip(cut.runs, cut.within, strict=True):
        grams.append(gram.mixed([family.inner_gram(cut, run) for family, _ in gram.asked], within))
    # a level within blocks is measured once in each block of its run
    counts = [1, *(run.count for run in cut.runs)]
    traces = [count * float(np.trace(of_level)) for count, of_level in zip(counts, grams, strict=True)]
    weights, keys = _whole_of(gram, cut), ["blocks", *(f"within {run.size}" for run in cut.runs)]
    levels = []
    for key, of_level, weight in zip(keys, grams, weights, strict=True):
        levels.append(_level(f"{gram.key} {key}", of_level, weight))

    # shares of the levels by their traces, the sums of squares of their queries
    return Nested(gram, tuple(levels), tuple(trace / sum(traces) for trace in traces))


def _level(key: str, gram: Floats, weights: Weights | None) -> Problem:
    """Return the problem of the blocks of a wide axis, or of the cells within a block, whose rows span all of it."""
    size = len(gram)
    weights = (
        (1, 1) if size == 2 and weights is None else weights
    )  # one row instead of the two of the centring projector
    unit = (gram + gram.T) / (2 * float(np.trace(gram)))
    rows = root_of(unit)[-(size - 1) :]
    if len(rows) < size - 1:  # so that multiples of a rounded strategy cannot leave the span
        rows = root_of(unit + LEVEL_RIDGE * float(np.linalg.eigvalsh(unit)[-1]) * _orthogonal(weights, size))

    return Problem(key=key, shape=(size,), rows=rows, basis=None, weights=(weights,))


def _whole_of(gram: WideGram, cut: Cut) -> list[Weights | None]:
    """Return integer weights of the blocks, and within those of every run; None for the plain mean.

    Weights of the cells are products of the block's weight and the weight within the block; blocks of a run have the
    same weights within, so the first block represents the run. Common divisors are removed (`_reduced`).
    """
    if gram.weights is None:
        even = len(cut.runs) == 1
        return [None if even else tuple(int(length) for length in cut.lengths), *[None] * len(cut.runs)]

    numbers, start, sums, within = gram.weights, 0, [], []
    for run in runs_of(gram.size):
        blocks = [numbers[start + i * run.size : start + (i + 1) * run.size] for i in range(run.count)]
        sums += [sum(block) for block in blocks]
        within.append(_reduced(blocks[0]))
        start += run.count * run.size

    return [_reduced(tuple(sums)), *within]


def _reduced(weights: Sequence[int]) -> Weights:
    common = reduce(math.gcd, weights)
    return tuple(number // common for number in weights)


AnyProblem = Problem | CellsAlone | Nested | WideRoot | LinearAxis | FourierProblem
AnyOptimum = Optimum | TwoLevels
Rounded = dict[tuple[str, FactorBits], tuple[Factor, float]]  # by a problem's key and bits

JOINT_CELLS = MOST_GRAM


def problems_of(sub: Subworkload, based: bool, known: dict[str, AnyProblem]) -> tuple[AnyProblem, ...]:
    """Return the problems whose product solves a subworkload: one per factor, or one for all cells; none if too large.

    `known` maps keys to existing problems; new ones are added.

    `based`: strategies must lie in the span of the queries. A joint term has queries that are no product over the axes.
    The order: several attributes whose strategies may span all cells (Fourier basis); one product term (a problem per
    axis); too many cells (none); one joint term; several families on a wide axis; and else the sum on all its cells.
    """
    # keys of the factors of the only term; none of a sum
    factor_keys = next(iter(sub.terms)) if len(sub.terms) == 1 else ()
    is_product = bool(factor_keys) and not sub.is_joint(factor_keys)
    fits_fourier = not based and len(sub.attributes) > 1 and sub.cells <= MOST_CELLS
    # all cells, diagonal in the Fourier basis
    if sub.fourier or (fits_fourier and not is_product):
        return (known.setdefault(f"fourier/{sub.signature()}", FourierProblem.of(sub)),)
    # the optimum of a product is the product of the axes' optima
    if is_product:
        axes = zip(factor_keys, sub.sizes, sub.weights, strict=True)
        return tuple(_problem_of(sub.factors[key], (n,), (weights,), based, known) for key, n, weights in axes)
    if not sub.attributes or (sub.cells > JOINT_CELLS and len(sub.attributes) > 1 and not factor_keys):
        return ()
    if factor_keys:
        return (_problem_of(sub.factors[factor_keys[0]], sub.sizes, sub.weights, based, known),)
    # all terms are queries of a wide axis, whose Gram matrices are known by formulas
    wide = [factor for factor in sub.factors.values() if isinstance(factor, WideGram)]
    if len(wide) == len(sub.terms):
        known[sub.signature()] = wide_problem(_summed(sub, wide))
        return (known[sub.signature()],)

    # the sum of the terms as explicit queries on all cells
    rows, basis = sub.rows() / math.sqrt(sub.scale), _common_basis(sub) if based else None
    known[sub.signature()] = problem_of(sub.signature(), sub.sizes, rows, basis, sub.weights, based)
    return (known[sub.signature()],)


def _summed(sub: Subworkload, grams: Sequence[WideGram]) -> WideGram:
    """Return several families on one wide axis as one Gram matrix of trace 1."""
    families = tuple(
        (family, weight * sub.terms[gram.key,] / sub.scale) for gram in grams for family, weight in gram.asked
    )
    return replace(grams[0], key=sub.signature(), asked=families)


def _problem_of(
    factor: AnyGram,
    shape: tuple[int, ...],
    weights: AxisWeights,
    based: bool,
    known: dict[str, AnyProblem],
) -> AnyProblem:
    """Return the problem of a factor, from `known` by its key if it is there: of a wide, a long or another axis.

    `based` says whether strategies may be integer combinations of a basis of the queries.
    """
    family = long_family(factor, shape, weights) if based and isinstance(factor, GramFactor) else None
    if isinstance(factor, WideGram):
        known.setdefault(factor.key, wide_problem(factor))
    elif family:
        known.setdefault(factor.key, LinearAxis(key=factor.key, family=family, size=shape[0], weights=weights))
    elif factor.key not in known:
        basis = factor.integer_basis if based and isinstance(factor, GramFactor) else None
        known[factor.key] = problem_of(factor.key, shape, factor.rows, basis, weights, based)
    return known[factor.key]


def _common_basis(sub: Subworkload) -> Floats | None:
    """Return an integer basis of a sum of joint terms; None if a term is a product or has no basis."""
    bases = []
    for key in sub.terms:
        factor = sub.factors[key[0]] if sub.is_joint(key) else None
        if not isinstance(factor, GramFactor) or factor.basis is None:
            return None
        bases.append(factor.basis)
    return np.concatenate(bases)


def bits_of(problems: tuple[AnyProblem, ...]) -> FactorBits:
    """Return the bits to which a product's factors are rounded."""
    rounded = [problem for problem in problems if not problem.is_center]
    combined = [problem for problem in rounded if isinstance(problem, Problem) and problem.combines]
    wider = max((weight_bits(problem.weights) for problem in rounded), default=0)
    return factor_bits(len(rounded), len(combined), wider)


def assemble_solution(
    problems: tuple[AnyProblem, ...], optima: dict[str, AnyOptimum], rounded: Rounded, noise: str
) -> Solution:
    """Return the product of the problems' rounded optima: the solution for a Gram matrix of trace 1.

    The error of a product of strategies is the product of their errors, times the variance of unit noise; dual values
    multiply as well. The bound is at most the coefficient, which can differ by rounding.
    """
    strategies = [rounded[problem.key, bits_of(problems)] for problem in problems]
    coefficient = math.prod((error for _, error in strategies), start=float(variance_factor(noise)))
    bound = math.prod(optima[problem.key].dual for problem in problems)
    return Solution(tuple(factor for factor, _ in strategies), coefficient, min(bound, coefficient))


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
    fitting = {names for names in joint if len(names) > 1 and workload.domain.cells(names) <= MOST_JOINT_CELLS}
    countable = math.prod(workload.domain[name].largest_part for name in everything) <= MOST_PARTS
    most_cells = MOST_JOINT_CELLS if joint else MOST_OF_PRODUCTS  # residuals of products lose less
    if len(everything) > 1 and workload.domain.cells(everything) <= most_cells and countable:
        fitting.add(everything)

    return sorted(fitting, key=lambda names: (-len(names), names))


def joint_spaces(
    workload: Workload, attributes: AttributeSet, taken: Container[AttributeSet], weights: Mapping[str, Weights]
) -> JointSpaces:
    """Return the residuals of a set to measure jointly, except those in `taken`, which another set measures.

    The queries are projected on the sum of the spaces; a small multiple of a basis of it is the ridge, with which
    every direction is measured.

    The rows are a root of Πᵀ G Π, and the ridge is an orthonormal basis of the range of Π times JOINT_RIDGE^½ of the
    length of the last row.
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
    ridge = math.sqrt(JOINT_RIDGE * float((rows[-1] ** 2).sum())) * directions[:dimensions]
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


def _axis(size: int, weights: Weights | None, is_centred: bool) -> Integers:
    """Return M·(I − u1ᵀ) if `is_centred`, else M·u1ᵀ, with integer weights M u of sum M (by default 1 of each cell)."""
    numbers = np.array(weights or [1] * size, dtype=np.int64)
    mean = np.repeat(numbers[:, None], size, axis=1)
    return np.asarray(np.eye(size, dtype=np.int64) * numbers.sum() - mean if is_centred else mean)
