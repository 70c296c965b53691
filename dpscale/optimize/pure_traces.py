"""Traces of a workload on its residual spaces for marginals measured by a strategy on each attribute, and descents.

A strategy A of L1 sensitivity 1 on an attribute is represented by its lens (`marginal_algebra`). The error of marginals
with weights θ is Σ_τ t_τ/λ_τ. On one attribute i, with the others in a residual space τ, the precision is
a 11ᵀ + b AᵀA. Its inverse, and so the error, is a concave function of C = (AᵀA)⁻¹ (a parallel sum). The linear upper
bound at the present C is tr(Ĝ C) with
    Ĝ = Σ (c/b) P G Pᵀ,   P = I − κ 1 1ᵀC,   κ = (1 − λ_{τ+i}/(ν λ_τ))/ν,
so OPT0 on Ĝ cannot increase the error.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import Floats
from dpscale.optimize.implicit_workload import Implicit, Product, implicit
from dpscale.optimize.marginal_algebra import Lens, lens_of
from dpscale.optimize.opt_explicit import FIRST_STEPS, Strategy, descend, inverse_gram, is_symmetric, optimise_explicit
from dpscale.optimize.opt_marginals import OF_TOTAL
from dpscale.optimize.pure_marginals import ResidualTraces, WeightedSets
from dpscale.workload import Workload, decompose

MOST_TERMS = 20_000  # sets of the workload times their subsets, for strategies of attributes
NOTHING = 1e-13  # share of the largest trace below which a trace is a rounding error


def plain_traces(workload: Workload) -> ResidualTraces:
    """Return the traces for marginals that are measured cell by cell.

    `decompose` stores the residual spaces one after the other in one array: space i ends at `ends[i]`. `members`
    becomes a mask, shape (spaces, attributes), over the attributes that some space uses.
    """
    spaces = decompose(workload)
    used = sorted(set(spaces.members.tolist()))
    members = np.zeros((len(spaces.ends), len(used)), np.bool_)
    rows = np.repeat(np.arange(len(spaces.ends)), np.diff(spaces.ends, prepend=0))
    members[rows, np.searchsorted(used, spaces.members)] = True
    names = tuple(spaces.names[i] for i in used)
    traces = np.array([group_class.scale for group_class in spaces.classes])[spaces.which]
    sizes = np.array(workload.domain.shape(names), np.float64)

    return ResidualTraces(
        names=names, members=members, traces=traces, totals=sizes, sets=requested_sets(workload, names)
    )


def requested_sets(workload: Workload, names: Sequence[str]) -> tuple[int, ...]:
    """Return the sets of positive weight as bit masks over `names`."""
    bit_of, masks = {name: 1 << i for i, name in enumerate(names)}, []
    for part in workload.parts:
        for attributes, weight in zip(part.sets, part.weights, strict=True):
            if np.any(np.asarray(weight) > 0):
                masks.append(sum(bit_of.get(name, 0) for name in attributes))
    return tuple(dict.fromkeys(masks))


@dataclass(frozen=True, eq=False)
class AttributeStrategies:
    """p-Identity strategies of the attributes of a union of products, with parameters for a warm start."""

    union: Implicit
    strategies: tuple[Strategy, ...]

    @property
    def matrices(self) -> dict[str, Floats]:
        return {name: strategy.matrix for name, strategy in zip(self.union.names, self.strategies, strict=True)}

    @cached_property
    def lenses(self) -> tuple[Lens, ...]:
        return tuple(lens_of(inverse_gram(strategy.matrix)) for strategy in self.strategies)

    @cached_property
    def _split(self) -> list[dict[str, tuple[float, float]]]:
        """Traces of each Gram matrix of each attribute: on the span of Total, over ν, and on the rest."""
        traces = []
        for axis, lens in enumerate(self.lenses):
            pairs = {key: lens.split(gram).tolist() for key, gram in self.union.distinct(axis).items()}
            traces.append({key: (mean / lens.total, rest) for key, (mean, rest) in pairs.items()})
        return traces

    def _subsets(self, product: Product, axes: Sequence[int]) -> Iterator[tuple[int, float]]:
        """Yield the spaces of a product on some of its attributes, as bit masks, with its trace there.

        On each attribute the trace is divided into that of the mean and the rest.
        """
        spaces = [(0, product.weight)]
        for axis in axes:
            mean, rest = self._split[axis][product.keys[axis]]
            averaged = [(mask, value * mean) for mask, value in spaces]
            spaces = averaged + [(mask | 1 << axis, value * rest) for mask, value in spaces if rest > 0]
        return iter(spaces)

    @cached_property
    def traces(self) -> ResidualTraces:
        """Traces of the workload at these strategies.

        A space is a bit mask of attributes. Traces below NOTHING times the largest are rounding errors and are dropped.
        """
        total: dict[int, float] = defaultdict(float)
        for product in self.union.products:
            for space, value in self._subsets(product, _named(product)):
                total[space] += value

        least = NOTHING * max(total.values())
        spaces = {space: value for space, value in total.items() if value > least}
        names = self.union.names
        members = np.array([[space >> i & 1 for i in range(len(names))] for space in spaces], np.bool_)
        sets = tuple(dict.fromkeys(sum(1 << axis for axis in _named(product)) for product in self.union.products))
        sizes = np.array([lens.total for lens in self.lenses])

        return ResidualTraces(
            names=names, members=members, traces=np.array(list(spaces.values())), totals=sizes, sets=sets
        )

    def surrogate(self, axis: int, measured: WeightedSets) -> Floats | None:
        """Return Ĝ of one attribute for measured marginals; None if they do not measure the attribute.

        Ĝ is the Gram matrix for which the attribute's strategy has the error of the workload, with the other
        strategies fixed: a sum of its queries' Gram matrices, centred by a factor κ.

        Spaces are bit masks over the other attributes; with the attribute, τ + i. In the terms of the module: b =
        λ_{τ+i} (`inner`), c = `value`, the trace on the others, ν = `total`, and `across` = 1 1ᵀC. Equal forms (Gram
        matrix, κ) are added before the products of matrices.
        """
        levels, total = _Levels(self.traces.totals, measured), self.lenses[axis].total
        size = self.union.sizes[axis]
        across = np.outer(np.ones(size), self.lenses[axis].inverse.sum(axis=0))
        weights_by_form: dict[tuple[str, float], float] = defaultdict(float)

        for product in self.union.products:
            for space, value in self._subsets(product, [other for other in _named(product) if other != axis]):
                inner = levels[space | 1 << axis]
                # a space that is not measured, or not needed, adds nothing
                if inner > 0 and value > 0:
                    kappa = (1 - inner / (total * levels[space])) / total
                    weights_by_form[product.keys[axis], round(kappa, 14)] += value / inner

        if not weights_by_form:
            return None

        grams, surrogate = self.union.distinct(axis), np.zeros((size, size))
        for (key, kappa), weight in weights_by_form.items():
            centred = np.eye(size) - kappa * across
            surrogate += weight * centred @ grams[key] @ centred.T

        # symmetric in spite of rounding
        return (surrogate + surrogate.T) / 2

    def improved(self, measured: WeightedSets) -> AttributeStrategies:
        """Return strategies of no larger error for the same marginals and weights.

        The attributes follow one another. For each, a descent on its surrogate Ĝ, scaled to trace 1, starts at the
        present strategy; the error cannot increase, because Ĝ is an upper bound that touches it there.
        """
        current = self
        for axis, before in enumerate(self.strategies):
            gram = current.surrogate(axis, measured)
            if gram is None:
                continue
            after = _descended(gram / np.trace(gram), before)
            if after is not before:
                own = list(current.strategies)
                own[axis] = after
                current = replace(current, strategies=tuple(own))

        return current


class _Levels(dict[int, float]):
    """λ_τ of spaces on demand."""

    def __init__(self, totals: Floats, measured: WeightedSets) -> None:
        super().__init__()
        self.totals = totals.tolist()
        self.squares = list(zip(measured.marginals, (measured.weights**2).tolist(), strict=True))

    def __missing__(self, space: int) -> float:
        """Compute λ_τ = Σ over measured S ⊇ τ of θ_S² / Π over S∖τ of n_i for a space τ; sets are bit masks."""
        precisions = []
        for marginal, square in self.squares:
            if space & ~marginal == 0:
                summed = [n for i, n in enumerate(self.totals) if (marginal & ~space) >> i & 1]
                precisions.append(square / math.prod(summed))
        self[space] = math.fsum(precisions)
        return self[space]


def _named(product: Product) -> list[int]:
    return [axis for axis, own in enumerate(product.axes) if not own.is_total]


def _descended(gram: Floats, before: Strategy) -> Strategy:
    """Return a better p-Identity strategy for a Gram matrix, from the one before.

    A symmetric Gram matrix, or a strategy without stored parameters (`warm`), is optimised from new starts. Of the old
    and the new strategy, that with the smaller error tr(G (AᵀA)⁻¹) is returned.
    """
    if is_symmetric(gram) or before.warm is None:
        after = optimise_explicit(gram, "laplace")
    else:
        end = descend(gram, before.warm, FIRST_STEPS)
        after = Strategy(matrix=end.matrix, error=end.error, bound=0.0, warm=end.parameters)
    old, new = (float((gram * inverse_gram(strategy.matrix)).sum()) for strategy in (before, after))
    return after if new < old else before


def first_strategies(workload: Workload, of_total: float = OF_TOTAL) -> AttributeStrategies | None:
    """Return a strategy per attribute for its queries and a fraction of Total; None if no attribute needs one.

    On every attribute the queries' Gram matrices, each of trace 1, are added with `of_total` · 11ᵀ/n, which is the Gram
    matrix of the total. Attributes with equal Gram matrices share one strategy (`known`).

    Raises
    ------
    PlanError
        If the workload is not a union of products, or has too many.
    """
    terms = sum(1 << min(len(names), 20) for part in workload.parts for names in part.sets)
    if terms > MOST_TERMS:
        raise PlanError(
            "workload", f"{terms} pieces", f"at most {MOST_TERMS} for strategies of attributes", "use fewer sets"
        )

    union = implicit(workload)
    if all(axis.is_total or axis.is_identity for product in union.products for axis in product.axes):
        return None

    known: dict[tuple[str, ...], Strategy] = {}
    for axis in range(len(union.sizes)):
        grams = union.distinct(axis)
        key = tuple(sorted(grams))
        if key not in known:
            size = union.sizes[axis]
            normed = [gram / np.trace(gram) for gram in grams.values() if np.ptp(gram) > 0]
            mixed = np.sum(normed, axis=0) + np.full((size, size), of_total / size)
            known[key] = optimise_explicit(mixed, "laplace")

    keys = [tuple(sorted(union.distinct(axis))) for axis in range(len(union.sizes))]
    return AttributeStrategies(union, tuple(known[key] for key in keys))
