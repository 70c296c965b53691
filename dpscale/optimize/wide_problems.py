"""The problems of wide axes: of the cells alone in closed form, of intervals in two levels (`workload.wide`).

The pieces of queries on the blocks and within them are apart, and blocks share no cell: with L₁ the optimum of the
blocks and L₂ that within one, summed over them, the best two levels leave (√L₁ + √L₂)², which is what is planned. The
certificate is against all strategies (`wide_bounds`); measured, two levels are 6 to 13 % of the squared error above it.
Cells alone: the centring projector's own optimum, (n − 1)/n at trace 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.optimize.convex import Optimum
from dpscale.optimize.problem import Problem
from dpscale.optimize.solution import Solve
from dpscale.optimize.wide_bounds import lower_bound
from dpscale.plans.allocation import GAUSSIAN, allocate
from dpscale.plans.factor import Factor, center_factor
from dpscale.plans.nested import NestedFactor
from dpscale.workload import root_of
from dpscale.workload.residual import Weights
from dpscale.workload.wide import Cut, WideGram, block_gram, cut_of, inner_gram, runs_of

MIXED_BITS = 10  # of the multipliers that bring the levels to their shares: an error there counts squared
FEWEST_BITS = 12


@dataclass(frozen=True)
class TwoLevels:
    """The optima of the blocks and within them by run, the best of two levels, and the bound of all strategies."""

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
    """The problem of a wide marginal."""

    key: str
    size: int
    is_center = True
    weights: tuple[Weights | None, ...] = (None,)

    def solved(self, solve: Solve) -> Optimum:
        least = (self.size - 1) / self.size
        return Optimum(np.zeros((0, 0)), least, least, np.zeros(0))

    def rounded(self, optimum: Optimum, bits: int, noise: str) -> tuple[Factor, float]:
        factor = center_factor(self.size)
        return factor, factor.squared_sensitivity(noise) / self.size**2


@dataclass(frozen=True, eq=False)
class Nested:
    """The problem of a wide axis in two levels: `levels` of the blocks, then within those of every run."""

    gram: WideGram
    levels: tuple[Problem, ...]
    traces: tuple[float, ...]  # of each level's Gram, all its blocks together: 1 in all
    is_center = False

    @property
    def key(self) -> str:
        return self.gram.key

    @property
    def weights(self) -> tuple[Weights | None, ...]:
        return (self.gram.weights,)

    def solved(self, solve: Solve) -> TwoLevels:
        parts = tuple(problem.solved(solve) for problem in self.levels)
        primal = two_levels([part.primal * trace for part, trace in zip(parts, self.traces, strict=True)])
        return TwoLevels(parts, primal, min(lower_bound(self.gram), primal))

    def rounded(self, optimum: TwoLevels, bits: int, noise: str) -> tuple[Factor, float]:
        """The levels rounded, and brought to their shares by whole multipliers."""
        finer = max(bits - MIXED_BITS, FEWEST_BITS)
        pairs = zip(self.levels, optimum.parts, strict=True)
        parts = [problem.rounded(part, finer, noise) for problem, part in pairs]
        errors = [error * trace for (_, error), trace in zip(parts, self.traces, strict=True)]
        factor = self._joined([factor for factor, _ in parts], errors, noise)
        scaled = [part.squared_sensitivity(noise) for part in factor.parts]  # of which an error takes no notice else
        told = sum(error / number for error, number in zip(errors, scaled, strict=True))
        return factor, told * factor.squared_sensitivity(noise)

    def _joined(self, parts: Sequence[Factor], errors: Sequence[float], noise: str) -> NestedFactor:
        shares, _ = allocate([errors[0], sum(errors[1:])], noise)
        wanted = [shares[0], *([shares[1]] * (len(parts) - 1))]
        scales = [(share**0.5 if noise == GAUSSIAN else share) / math.sqrt(part.squared_sensitivity(noise))
                  for share, part in zip(wanted, parts, strict=True)]  # fmt: skip
        unit = min(scales) / (1 << MIXED_BITS)
        top, *inner = [_times(part, round(scale / unit)) for part, scale in zip(parts, scales, strict=True)]
        weights = None if self.gram.weights is None else (self.gram.weights,)
        return NestedFactor("nested", (self.gram.size,), weights=weights, top=top, inner=tuple(inner))


def two_levels(optima: Sequence[float]) -> float:
    """(√L₁ + √L₂)² of the blocks and of all runs together."""
    return (math.sqrt(optima[0]) + math.sqrt(sum(optima[1:]))) ** 2


def _times(factor: Factor, number: int) -> Factor:
    return Factor("matrix", factor.shape, factor.explicit() * number, factor.weights)


def wide_problem(gram: WideGram) -> CellsAlone | Nested:
    """The problem of a wide axis."""
    if gram.cells_alone:
        return CellsAlone(gram.key, gram.size)
    cut, profile = cut_of(gram.size, gram.weights)
    grams = [gram.mixed(partial(block_gram, cut=cut), profile)]
    for run, own in zip(cut.runs, cut.within, strict=True):
        grams.append(gram.mixed(partial(inner_gram, size=gram.size, cells=run.size), own))
    counts = [1, *(run.count for run in cut.runs)]
    traces = [count * float(np.trace(one)) for count, one in zip(counts, grams, strict=True)]
    weights, keys = _whole_of(gram, cut), ["blocks", *(f"within {run.size}" for run in cut.runs)]
    levels = [_level(f"{gram.key} {key}", one, own) for key, one, own in zip(keys, grams, weights, strict=True)]
    return Nested(gram, tuple(levels), tuple(trace / sum(traces) for trace in traces))


def _level(key: str, gram: Floats, weights: Weights | None) -> Problem:
    size = len(gram)
    weights = (1, 1) if size == 2 and weights is None else weights  # one row, and not the two that centre
    rows = root_of((gram + gram.T) / (2 * float(np.trace(gram))))[-(size - 1) :]
    return Problem(key, (size,), rows, None, (weights,))


def _whole_of(gram: WideGram, cut: Cut) -> list[Weights | None]:
    """Whole weights of the blocks, and within those of every run; None for the plain mean."""
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
