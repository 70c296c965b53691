"""Lower bounds of the error over all matrix mechanisms, from products of the axes; feasible at any size.

For any weights μ of all cells and any Q of norm at most 1, (tr QᵀW D_μ^½)² ≤ the optimum of W. Let μ be a product, and
on an axis A = W D^½ = a vᵀ + C with v = √μ, C v = 0. With an isometry Z = [h vᵀ + K], h = Zv ⊥ K = Z(1 − vvᵀ), take
    Q_S = Σ over τ ⊆ S of c_Sτ ⊗ over τ of K ⊗ over S∖τ of h vᵀ ⊗ outside S of vᵀ,   Σ over S ⊇ τ of c² = 1.
Its pieces are orthogonal, so its norm is 1, and the best c give the plan's own formula with g = h·a, k = tr KᵀC:
    optimum ≥ (Σ over τ of √(Σ over S ⊇ τ of w_S Π over τ of k² · Π over S∖τ of g²))².
Z is the polar factor of C + α a vᵀ; α is searched, and μ is the dual solution of the curve's problem. It is exact for
one set. With several families the bounds add, because the optimum is superadditive in the Gram matrix. Joint families
have a bound of their own: their sets are in groups of few cells, the optimum of each group is computed, and these add.
In experiments the plan's error is 0 % (one set) to 11 % (3-way prefix on [10]^40) above the bound. On domains small
enough for an exact solution it is 0.0 to 0.35 % above the optimum, so the gap is due to the bound.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from dpscale.base.deadline import check_planning_time
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.optimize import long_axis
from dpscale.optimize.axis_weights import added_total, along_curve
from dpscale.optimize.convex import cell_weights, optimise, optimise_blocks, optimise_roughly, split
from dpscale.optimize.implicit_workload import Implicit, Product, explicit_gram
from dpscale.optimize.residual_grams import Demands, Products, Token, demands_of
from dpscale.optimize.weight_objective import ObjectivePoint
from dpscale.workload import Family, Workload, WorkloadPart, root_of
from dpscale.workload.wide import is_wide

Pair = tuple[float, float]  # g and k of a token
EXACT_CELLS, SWEEPS = 2048, 2  # cells up to which the optimum is solved; rounds over the tokens in the search for α
GROUP_CELLS, MOST_GROUPS = 512, 64  # cells of a group of sets of joint families, and groups
NEARLY = 1e-5  # gap of the dual of one axis
LOOSELY = 1e-3  # gap of the dual on more cells than that of a group
ALPHAS = [1.0, 0.6, 0.2]  # grid of α that the search tries; 1 is the optimum for even weights


def exact_floor(workload: Workload, most: int = EXACT_CELLS, seconds: float = math.inf) -> float:
    """Return the dual of the optimum over all matrix mechanisms under Gaussian noise at unit cost.

    A search ended by `seconds` or by its steps returns a smaller bound, which is valid.

    Raises PlanError if there are more than `most` cells.
    """
    names, gram = explicit_gram(workload, most)
    scale, shape = float(np.trace(gram)), workload.domain.shape(names)
    if scale <= 0:
        return 0.0

    rows = root_of(gram / scale)
    if len(gram) <= GROUP_CELLS:
        return optimise(rows, shape, seconds=seconds).dual * scale
    return optimise_roughly(split(rows, shape), LOOSELY, seconds).dual * scale


@dataclass
class _FewCells:
    """Sets of some parts, by number of the part, whose attributes together have few cells."""

    attributes: set[str]
    cells: int
    chosen: dict[int, list[AttributeSet]]


def grouped_floor(workload: Workload) -> float:
    """Return a lower bound of the sum of weight · variance at unit cost of the joint families of a workload."""
    groups: list[_FewCells] = []
    sizes = {axis.name: axis.size for axis in workload.domain.axes}
    for number, part in enumerate(workload.parts):
        for names, weight in () if part.factorizes else zip(part.sets, part.weights, strict=True):
            if weight > 0 and math.prod(sizes[name] for name in names) <= GROUP_CELLS:
                _place(groups, sizes, number, names)
    return math.fsum(exact_floor(_restricted(workload, group.chosen)) for group in groups)


def _place(groups: list[_FewCells], sizes: Mapping[str, int], number: int, names: AttributeSet) -> None:
    """Add a set to the first group whose attributes then have few cells, or to a new one if there are few groups.

    Attributes of a group are those of its sets; a new set counts with the sizes of its attributes that are not yet in
    it.
    """
    for group in groups:
        cells = group.cells * math.prod(sizes[name] for name in names if name not in group.attributes)
        if cells <= GROUP_CELLS:
            group.attributes.update(names)
            group.cells = cells
            group.chosen.setdefault(number, []).append(names)
            return
    if len(groups) < MOST_GROUPS:
        groups.append(_FewCells(set(names), math.prod(sizes[name] for name in names), {number: [names]}))


def _restricted(workload: Workload, chosen: Mapping[int, Sequence[AttributeSet]]) -> Workload:
    """Return the queries over some sets of some parts."""
    restricted = Workload(workload.domain)
    restricted.parts = [_only(workload.parts[number], sets) for number, sets in chosen.items()]
    return restricted


def _only(part: Any, sets: Sequence[AttributeSet]) -> Any:
    """Return a part on some of its sets."""
    weights = dict(zip(part.sets, part.weights, strict=True))
    if len(sets) == len(part.sets):
        return part
    return replace(part, sets=tuple(sets), weights=tuple(weights[names] for names in sets))


def floor(workload: Workload, curve: ObjectivePoint) -> float:
    """Return a lower bound of the sum of weight · variance at unit cost; 0 if the workload has no product family.

    `curve` is the end of the fixed point for the workload's weights (`along_curve`), perhaps of `pooled` families.

    With one family for each kind the curve's weights serve for all sets at once; otherwise each family has its bound,
    and bounds add, because the optimum is superadditive in the Gram matrix.
    """
    products = [part for part in workload.parts if part.factorizes]
    if len(products) == len(workload.parts) and _one_family_an_axis(products, curve.weighed.demands):
        return _floor(curve)
    families = dict.fromkeys(part.axis_families for part in products)
    by_family = [[product for product in products if product.axis_families == family] for family in families]
    known: dict[tuple[Family, int], float] = {}
    return math.fsum(_floor_of_family(workload, parts, known) for parts in by_family)


def _floor_of_family(
    workload: Workload, parts: Sequence[WorkloadPart], known: dict[tuple[Family, int], float]
) -> float:
    """Return the bound of parts with the same families; of one set it is the product of the optima of its axes.

    `known` has the optimum of each family and size.
    """
    alone = Workload(workload.domain)
    alone.parts = list(parts)
    if not alone.weighs:
        return 0.0
    part, names = parts[0], parts[0].sets[0]
    # several sets, or an axis whose optimum is not computed: the bound from the curve
    if len(parts) > 1 or len(part.sets) > 1 or any(is_wide(workload.domain[name].size) for name in names):
        return _floor(along_curve(demands_of(alone)))

    check_planning_time()
    axes = [(family, workload.domain[name].size) for name, family in zip(names, part.families(names), strict=True)]
    for family, size in axes:
        if (family, size) not in known:
            known[family, size] = _optimum_of(family.gram(size))
    return part.weights[0] * math.prod(known[axis] for axis in axes)


def _optimum_of(gram: Floats) -> float:
    """Return the dual of the optimum of one Gram matrix."""
    rows = root_of(gram)
    return optimise_blocks(split(rows, (len(gram),)), NEARLY).dual if len(rows) else 0.0


def _one_family_an_axis(products: Sequence[WorkloadPart], demands: Demands) -> bool:
    """Return whether every kind of attribute has one family, in the workload and not as a mean of several."""
    tokens = set[Token]()  # pairs of a kind of attribute and a family
    for demand in demands.counts:
        for term, _ in demand:
            if isinstance(term, Products):
                tokens.update((*term.centred, *term.outside))
    families = {family.key for part in products for family in part.axis_families}
    return len({kind for kind, _ in tokens}) == len(tokens) and {family for _, family in tokens} <= families


def _floor(point: ObjectivePoint) -> float:
    """Return the bound at the best α of a grid, optimised per kind of axis; any α gives a valid bound.

    Coordinate ascent over α of each token, for SWEEPS rounds; the bound is squared because `_bound` sums roots.
    """
    demands = point.weighed.demands
    choices = {token: _pairs(point, token) for token in point.tokens}
    pairs = {token: candidates[0] for token, candidates in choices.items()}

    for _ in range(SWEEPS):
        for token, candidates in choices.items():
            values = [_bound(demands, pairs | {token: pair}) for pair in candidates] if len(candidates) > 1 else [0.0]
            pairs[token] = candidates[int(np.argmax(values))]
    return _bound(demands, pairs) ** 2


def _pairs(point: ObjectivePoint, token: Token) -> list[Pair]:
    """Return g and k of a token at every α of the grid; for an even kind at the optimal α = 1.

    With W a root of the Gram matrix, A = W D^½ and v = √μ, `mean` is (Av) vᵀ = a vᵀ and the rest is C.
    """
    weights = _cell_weights(point, token)
    roots = np.sqrt(weights)
    rows = root_of(point.weighed.demands.axis(token).gram) * roots
    mean = np.outer(rows @ roots, roots)
    return [_pair(rows - mean, mean, alpha) for alpha in ([1.0] if token[0] in point.weighed.demands.even else ALPHAS)]


def _pair(centred: Floats, mean: Floats, alpha: float) -> Pair:
    """Return g = h·a and k = tr KᵀC for the polar factor of C + α a vᵀ."""
    left, _, right = np.linalg.svd(centred + alpha * mean, full_matrices=False)
    isometry = left @ right
    return float((isometry * mean).sum()), float((isometry * centred).sum())


def _cell_weights(point: ObjectivePoint, token: Token) -> Floats:
    """Return μ on the cells of an axis: the dual of the curve's problem."""
    size = len(point.profiles[token[0]])
    if token[0] in point.weighed.demands.even:
        return np.full(size, 1 / size)
    rows = root_of(point.weighed.demands.axis(token).gram + added_total(point, token))
    blocks = split(rows / np.sqrt((rows**2).sum()), (size,))
    return cell_weights(blocks, point.weighed.solve((*token, "curve"), blocks))


def _bound(demands: Demands, pairs: Mapping[Token, Pair]) -> float:
    """Return the bound: the plan's formula with g² and k² in place of s (mean) and l (centred) of each axis.

    `pairs` has g and k of each token, a pair of a kind of attribute and a family.
    """
    total = 0.0
    for demand, number in demands.counts.items():
        terms = [(term, weight) for term, weight in demand if isinstance(term, Products)]
        outside = sum(weight * math.prod(pairs[token][0] ** 2 for token in term.outside) for term, weight in terms)
        first, _ = terms[0]  # the centred axes of all terms are the same
        total += number * math.sqrt(outside) * math.prod(pairs[token][1] for token in first.centred)
    return total


def fewer_sets(workload: Workload, most: int) -> Workload:
    """Return the product families over their first sets with at most `most` residual spaces.

    A bound of some queries is one of all queries, because the error of the others is not negative.
    """
    reduced, spaces_left = Workload(workload.domain), most
    for part in workload.parts:
        chosen = 0
        while part.factorizes and chosen < len(part.sets) and spaces_left >= 1 << len(part.sets[chosen]):
            spaces_left -= 1 << len(part.sets[chosen])
            chosen += 1
        if chosen:
            reduced.parts.append(_only(part, part.sets[:chosen]))
    return reduced


def whole_bound(workload: Workload) -> float:
    """Return a lower bound of Σ weight · variance over all matrix mechanisms, at any size.

    It is the sum over the sets of the product of the attributes' bounds: dual ones of prefix or range queries
    (`long_axis`), else (Σσ)²/n in closed form. Sets with a family that has neither contribute 0. It is loose for
    several sets.
    """
    known: dict[tuple[Any, int], float] = {}
    total = 0.0
    for part in workload.parts:
        for names, weight in zip(part.sets, part.weights, strict=True) if part.factorizes else ():
            sizes = part.domain.shape(names)
            axes = list(zip(part.families(names), sizes, strict=True))
            for family, size in axes:
                if (family, size) not in known:
                    trace, dual = family.whole_trace(size), long_axis.whole_bound(family, size)
                    known[family, size] = max(dual or 0.0, 0.0 if trace is None else trace**2 / size)
            total += weight * math.prod(known[axis] for axis in axes)

    return total


COMMUTES = 1e-9  # relative asymmetry of products, and difference of eigenvalues, that counts as rounding
MOST_SPACES = 1 << 22  # products of the axes' eigenspaces, the entries of an array; no bound is computed above


@dataclass(frozen=True)
class SvdBound:
    """SVD bound; `exact` if it is the bound of the whole workload and not a sum of the bounds of its groups."""

    value: float
    exact: bool


def svd_of_gram(gram: Floats) -> float:
    """Return the SVD bound of one explicit Gram matrix."""
    return float(np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0.0)).sum() ** 2 / len(gram))


@lru_cache(maxsize=1)
def svd_bound(union: Implicit) -> SvdBound:
    """Return the SVD bound of a union of products, exact if all its Gram matrices commute."""
    groups = commuting_groups(union)
    values = [_common(union, group) for group in groups]
    if len(groups) == 1 and values[0] is not None:
        return SvdBound(values[0], True)

    bounds = [
        value if value is not None else _separate_bound(group) for value, group in zip(values, groups, strict=True)
    ]
    return SvdBound(math.fsum(bounds), False)


def commuting_groups(union: Implicit) -> list[tuple[Product, ...]]:
    """Return the products in groups within which the Gram matrices of every attribute commute, assigned greedily.

    Products are taken in decreasing order of weight · trace; a product joins the first group with whose Gram matrices
    its own commute on every axis, or begins a new one.

    `taken` has the keys of the Gram matrices of each group on each axis. Commuting matrices have common eigenspaces
    (`_common`).
    """
    commute = _Commuting(union)
    groups: list[list[Product]] = []
    taken: list[list[set[str]]] = []

    def decreasing(product: Product) -> float:
        return -product.weight * math.prod(float(np.trace(axis.gram)) for axis in product.axes)

    for product in sorted(union.products, key=decreasing):
        check_planning_time()
        for group, keys in zip(groups, taken, strict=True):
            if all(commute(i, key, keys[i]) for i, key in enumerate(product.keys)):
                group.append(product)
                for used, key in zip(keys, product.keys, strict=True):
                    used.add(key)
                break
        else:
            groups.append([product])
            taken.append([{key} for key in product.keys])

    return [tuple(group) for group in groups]


class _Commuting:
    """Test whether a Gram matrix on an axis commutes with some others; each pair is tested once."""

    def __init__(self, union: Implicit) -> None:
        self.grams = [union.distinct(i) for i in range(len(union.sizes))]
        self.known: dict[tuple[int, frozenset[str]], bool] = {}

    def __call__(self, axis: int, key: str, others: set[str]) -> bool:
        return all(self._pair(axis, key, other) for other in others)

    def _pair(self, axis: int, first: str, second: str) -> bool:
        """Return whether the Gram matrices of two queries on an axis commute: whether their product is symmetric.

        `known` keeps the result by axis and pair; symmetric means within COMMUTES times the largest entry.
        """
        pair = (axis, frozenset((first, second)))
        if pair not in self.known:
            product = self.grams[axis][first] @ self.grams[axis][second]
            self.known[pair] = bool(np.abs(product - product.T).max() <= COMMUTES * np.abs(product).max())
        return self.known[pair]


def _common(union: Implicit, group: Sequence[Product]) -> float | None:
    """Return the bound of products that commute on every axis; None if they have too many eigenspaces.

    Commuting Gram matrices have common eigenspaces on each axis (`levels`: eigenvalue of each matrix there, `sizes`:
    their dimensions). The eigenvalues of the sum on products of spaces are `values`, and the bound is (Σ dimension ·
    √value)² over the number of cells.

    `union` is the sum of all products, whose keys name the axes' Gram matrices in `group`.
    """
    if len(group) == 1:
        return _separate_bound(group)

    spaces = [eigenspaces({p.keys[i]: p.axes[i].gram for p in group}) for i in range(len(union.sizes))]
    if math.prod(len(sizes) for _, sizes in spaces) > MOST_SPACES:
        return None

    # one axis of the arrays for each axis of the products, with its eigenspaces
    values, counts = np.zeros([len(sizes) for _, sizes in spaces]), np.ones(())
    for product in group:
        check_planning_time()
        term = np.array(product.weight)
        for key, (levels, _) in zip(product.keys, spaces, strict=True):
            term = np.multiply.outer(term, levels[key])
        values += term

    for _, sizes in spaces:
        counts = np.multiply.outer(counts, sizes)
    roots = float((counts * np.sqrt(np.maximum(values, 0.0))).sum())
    return roots**2 / math.prod(float(sizes.sum()) for _, sizes in spaces)


def eigenspaces(grams: dict[str, Floats]) -> tuple[dict[str, Floats], Floats]:
    """Return each commuting Gram matrix' eigenvalue on every common eigenspace, and the dimensions of the spaces.

    Eigenvectors of a random positive combination are common to all of them, and different eigenspaces almost surely
    have different eigenvalues of the combination; equal ones are grouped.
    """
    draws = np.random.default_rng(0).random(len(grams)) + 0.5
    mixed = np.sum([draw * gram / np.trace(gram) for draw, gram in zip(draws, grams.values(), strict=True)], axis=0)
    levels, vectors = np.linalg.eigh(mixed)
    starts = np.flatnonzero(np.diff(levels, prepend=-np.inf) > COMMUTES * levels[-1])
    dimensions = np.diff(np.append(starts, len(levels))).astype(np.float64)
    spectra = {
        key: np.add.reduceat((vectors * (gram @ vectors)).sum(axis=0), starts) / dimensions
        for key, gram in grams.items()
    }

    return spectra, dimensions


def _separate_bound(group: Sequence[Product]) -> float:
    """Return the sum of the products' own bounds, each the product of its factors' bounds (theorem 5)."""
    known: dict[str, float] = {}
    for product in group:
        for axis in product.axes:
            if axis.key not in known:
                known[axis.key] = svd_of_gram(axis.gram)
    return math.fsum(product.weight * math.prod(known[key] for key in product.keys) for product in group)
