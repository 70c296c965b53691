"""Error of the best plan as a function of the axis weights, and its gradient.

With L_d(u) the optimum of demand d (`convex`), n_d its multiplicity and φ(L) = √L (Laplace noise: L^⅓), the error of
the best plan is a power of J(u) = Σ n_d φ(L_d(u)). An averaged axis of a product query contributes s(u) = uᵀGu, a
centred one (I − 1uᵀ) G (I − u1ᵀ). The gradient of J follows from ∂L/∂G (`slope`) and the chain rule:
    ∂s/∂u = 2Gu,   ∂L/∂u = −2 G (I − u1ᵀ) Y 1 for one centred axis, and likewise for every axis of a joint family.

Axes with the same size and families are of one *kind*, with common weights u (`profiles`). A *token* is a one-way
family on a kind of axis. A demand is a sum of products of tokens, and of joint terms. `weighed` is the J that is
evaluated, with its caches.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from dpscale.base.numerics import Floats
from dpscale.optimize.convex import (
    Optimum,
    SymmetryBlocks,
    cell_weights,
    optimise_blocks,
    optimise_roughly,
    slope,
    split,
)
from dpscale.optimize.residual_grams import (
    SEARCHED_BLOCKS,
    Demand,
    Demands,
    Joint,
    Products,
    Term,
    Token,
    is_product,
)
from dpscale.privacy.draws import rooted
from dpscale.workload import root_of
from dpscale.workload.factors import NEGLIGIBLE
from dpscale.workload.residual import kron
from dpscale.workload.wide import weighted_piece

Profiles = Sequence[Floats]  # u by kind
# seconds of a solve; least start weight relative to the largest, and least divisor; gap above which a solve is rough
SECONDS, LEAST_START, FINE = 60.0, 1e-9, 1e-4


@dataclass
class TokenState:
    """Quantities of a token under given weights: s, the Gram matrix of its pieces, L and, once solved, the optimum."""

    square: float
    gram: Floats
    inside: float = 0.0
    value: float = 0.0
    blocks: SymmetryBlocks | None = None
    optimum: Optimum | None = None

    @cached_property
    def slope(self) -> Floats:
        """∂L/∂G.

        With L = (√(optimum) + √inside)², ∂L/∂G is the slope of the optimum times 1 + √inside/√optimum.
        """
        assert self.optimum is not None
        assert self.blocks is not None
        root_of_optimum = max(math.sqrt(self.value) - math.sqrt(self.inside), LEAST_START)
        return slope(self.blocks, self.optimum) * (1 + math.sqrt(self.inside) / root_of_optimum)

    def report_optimum(self, optimum: float) -> None:
        """Set L from the optimum of the Gram matrix; if the axis is cut, add the level within the blocks."""
        self.value = (math.sqrt(max(optimum, 0.0)) + math.sqrt(self.inside)) ** 2


@dataclass
class WeightObjective:
    """J and its gradient for one workload.

    Attributes
    ----------
    demands : Demands
    noise : str
    most : int
        Largest number of cells of sums of terms that are solved exactly. Larger sums, including joint families, count
        by the sum of their products alone, which is a lower bound.
    tolerance : float
    seconds : float
        Time limit per solve.
    starts : dict
        Warm starts by problem.
    known : dict
        Quantities of tokens by token and profile.
    """

    demands: Demands
    noise: str
    most: int
    tolerance: float
    seconds: float = SECONDS
    starts: dict[object, Floats] = field(default_factory=dict)
    known: dict[tuple[Token, bytes], TokenState] = field(default_factory=dict)

    def __call__(self, profiles: Profiles) -> ObjectivePoint:
        """Return J(u) with its derivatives."""
        point = ObjectivePoint(self, profiles)
        for demand, number in self.demands.counts.items():
            point.add(demand, number)
        return point

    def averaged(self, token: Token, profile: Floats) -> TokenState:
        """Return the cached quantities of a token under a profile."""
        key = (token, profile.tobytes())
        if key not in self.known:
            self.known[key] = self._averaged(token, profile)
        return self.known[key]

    def _averaged(self, token: Token, profile: Floats) -> TokenState:
        """Return what J needs of a token's queries if their axis has the weights `profile`, called u.

        With G the Gram matrix of the queries, this is the square uᵀGu of their means, the Gram matrix (I − 1uᵀ) G (I −
        u1ᵀ) of the centred queries, and `value`, the optimum L of these, if a formula gives it; otherwise `value` is 0
        until `ObjectivePoint.solved` has searched it.
        """
        kind, family_key = token
        size, family = self.demands.cells[kind], self.demands.families[family_key]
        # G is over the cells, or over SEARCHED_BLOCKS blocks of cells if the axis has more cells
        axis = self.demands.axis(token)
        centred_gram, squared_mean = weighted_piece(axis.gram, profile)
        squared_mean = max(squared_mean, 0.0)  # rounding can make a 0 negative

        is_total_alone = float(np.trace(centred_gram)) <= NEGLIGIBLE * float(np.trace(axis.gram))
        if is_total_alone:  # multiples of the total vanish if they are centred
            return TokenState(squared_mean, np.zeros_like(centred_gram))

        # at uniform weights, queries that a rotation of the axis leaves unchanged have an optimum in closed form
        has_uniform_weights = kind in self.demands.even
        if size > SEARCHED_BLOCKS and has_uniform_weights and family.invariant:
            return TokenState(squared_mean, centred_gram, value=family.plain_value(size))

        # `inside` is the part of L from differences within the blocks, which G does not show; 0 without blocks
        return TokenState(squared_mean, centred_gram, inside=axis.inside)

    def solve(self, key: object, blocks: SymmetryBlocks) -> Optimum:
        """Return the optimum of a problem, started from the last optimum of the same key or of its curve.

        The optimum's weights of the cells become the start of the next solve of this key; zero weights are raised,
        since the fixed point cannot leave 0.
        """
        solve = optimise_blocks if self.tolerance <= FINE else optimise_roughly
        start = self.starts.get(key)
        if start is None and isinstance(key, tuple):
            start = self.starts.get((*key, "curve"))
        optimum = solve(blocks, self.tolerance, self.seconds, start)
        cells = cell_weights(blocks, optimum)
        self.starts[key] = np.maximum(cells, cells.max() * LEAST_START)
        return optimum


class ObjectivePoint:
    """J at one u, by kind; `by_square` and `by_value` are ∂J/∂s and ∂J/∂L of every token."""

    def __init__(self, weighed: WeightObjective, profiles: Profiles) -> None:
        """Start a sum of J at the axis weights `profiles`; `add` adds the demands one by one."""
        self.weighed, self.profiles, self.value = weighed, profiles, 0.0
        self.tokens: dict[Token, TokenState] = {}
        self.by_square: dict[Token, float] = defaultdict(float)
        self.by_value: dict[Token, float] = defaultdict(float)
        self._by_gram: dict[Token, Floats] = {}
        self._direct = [np.zeros_like(profile) for profile in profiles]
        self._later: list[Callable[[], None]] = []  # deferred slopes of sums, as expensive as their values

    def add(self, demand: Demand, number: int) -> None:
        """Add a demand's contribution to J and its slopes.

        The empty shape is the total, whose optimum needs no search. A sum on too many cells counts by its products,
        each as a demand of its own, which is a lower bound.
        """
        terms, shape = dict(demand), self.weighed.demands.shape(demand)
        if not shape:
            self._add_total(terms, number)
        elif is_product(terms):
            self._add_product(terms, number)
        elif math.prod(shape) <= self.weighed.most:
            self._add_sum(demand, shape, number)
        else:
            for term, weight in terms.items():
                if isinstance(term, Products):
                    self._add_product({term: weight}, number)

    def gradient(self) -> list[Floats]:
        """Return ∂J/∂u by kind.

        With Y = ∂J/∂(centred Gram matrix) of a token (`form`) and y = Y1 (`sums`), a centred axis adds −2 G (y −
        u·1ᵀy), and its square adds 2 G u times ∂J/∂s. Deferred slopes of sums fill `form` and `_direct` first.
        """
        while self._later:
            self._later.pop()()
        total = [direct.copy() for direct in self._direct]
        for token in self.tokens:
            if token[0] in self.weighed.demands.even:
                continue

            profile, gram = self.profiles[token[0]], self.weighed.demands.axis(token).gram
            total[token[0]] += self.by_square[token] * 2 * (gram @ profile)
            form = self._by_gram.get(token, 0.0)
            if self.by_value[token]:
                form = form + self.by_value[token] * self._slope(token)
            if isinstance(form, np.ndarray):
                sums = form.sum(axis=1)
                total[token[0]] -= 2 * (gram @ (sums - profile * sums.sum()))

        return total

    def averaged(self, token: Token) -> TokenState:
        """Return a token's s and Gram matrix under these weights; its L is 0 until it is `solved`."""
        if token not in self.tokens:
            self.tokens[token] = self.weighed.averaged(token, self.profiles[token[0]])
        return self.tokens[token]

    def solved(self, token: Token) -> TokenState:
        """Return a token with its L."""
        averaged = self.averaged(token)
        if not averaged.value:
            self._solve(token, averaged)
        return averaged

    def _solve(self, token: Token, averaged: TokenState) -> None:
        """Solve for the optimal strategy of the centred queries of a token, whose Gram matrix is scaled to trace 1."""
        scale = float(np.trace(averaged.gram))
        averaged.blocks = split(_rows(averaged.gram / scale), averaged.gram.shape[:1])
        averaged.optimum = self.weighed.solve(token, averaged.blocks)
        averaged.report_optimum(averaged.optimum.dual * scale)

    def _slope(self, token: Token) -> Floats:
        """Return ∂L/∂G of a token whose L is known."""
        if self.tokens[token].optimum is None:
            self._solve(token, self.tokens[token])
        return self.tokens[token].slope

    def _count(self, value: float, number: int) -> float:
        """Add n φ(L) and return n φ'(L); 0 instead of infinity at L = 0, where queries vanish on a space."""
        power = rooted(self.weighed.noise)
        self.value += number * value**power
        return number * power * value ** (power - 1) if value > 0 else 0.0

    def _add_total(self, terms: Mapping[Term, float], number: int) -> None:
        """Add the error of the total to J, and its derivatives: the squared means of all queries.

        The value is Σ weight · (squared mean): of a joint term the squares of its averaged queries, of a product Π of
        uᵀGu.
        """
        pieces = {term: self._reduced(term) for term in terms if isinstance(term, Joint)}
        value = sum(
            weight * (float((pieces[term] ** 2).sum()) if isinstance(term, Joint) else self._outside(term))
            for term, weight in terms.items()
        )
        rate = self._count(value, number)

        for term, weight in terms.items():
            if isinstance(term, Joint):
                self._by_queries(term, 2 * rate * weight * pieces[term])
            else:
                self._by_outside(term, rate * weight)

    def _add_product(self, terms: Mapping[Term, float], number: int) -> None:
        """Add the error of demands that are one product to J: the errors on the centred axes, times squared means.

        L of the demand is Π L_i over the centred axes times Σ weight · Π s over the averaged axes of each term. So
        ∂L/∂L_i is L/L_i, and a term's means count with weight · Π L_i.
        """
        products = {term: weight for term, weight in terms.items() if isinstance(term, Products)}
        centred = next(iter(products)).centred
        if not all(self.averaged(token).gram.any() for token in centred):  # no piece is left
            return

        inside = math.prod(self.solved(token).value for token in centred)
        value = inside * sum(weight * self._outside(term) for term, weight in products.items())
        rate = self._count(value, number)
        for term, weight in products.items():
            self._by_outside(term, rate * weight * inside)
        for token in centred:
            self.by_value[token] += rate * value / self.solved(token).value

    def _add_sum(self, demand: Demand, shape: tuple[int, ...], number: int) -> None:
        """Add the error of a demand that is a sum of products or joint to J, solved on all its cells together.

        Its derivatives are as expensive as its value, so they are computed later, if they are needed.

        Rows of the terms, times √weight, are stacked and scaled to trace 1; L is the optimum times the trace.
        """
        rows = {term: self._term_rows(term) for term, _ in demand}
        stacked = np.concatenate([math.sqrt(weight) * rows[term] for term, weight in demand])
        scale = float((stacked**2).sum())
        if not scale:  # no piece is left
            return

        blocks = split(stacked / math.sqrt(scale), shape)
        optimum = self.weighed.solve(demand, blocks)
        rate = self._count(optimum.dual * scale, number)
        self._later.append(partial(self._move_sum, demand, rows, blocks, optimum, rate))

    def _move_sum(
        self, demand: Demand, rows: Mapping[Term, Floats], blocks: SymmetryBlocks, optimum: Optimum, rate: float
    ) -> None:
        """Add the derivatives of J with respect to the weights in a sum of terms.

        `form` is rate · ∂L/∂G for the Gram matrix G of all rows. A term adds weight · RᵀR to G, so its rows R have the
        derivative 2 weight · R form.
        """
        form = rate * slope(blocks, optimum)
        for term, weight in demand:
            if not len(rows[term]):
                continue
            if isinstance(term, Joint):
                self._by_queries(term, 2 * weight * (rows[term] @ form))
            else:
                self._by_grams(term, weight, form)

    def _term_rows(self, term: Term) -> Floats:
        """Return rows whose Gram matrix is that of a term's centred queries, shape (rows, cells).

        There are none if the queries vanish when they are centred.
        """
        if isinstance(term, Joint):
            pieces, queries = self._reduced(term), self.weighed.demands.queries[term.key]
            is_left = float((pieces**2).sum()) > NEGLIGIBLE * float((queries**2).sum())
            return pieces.reshape(len(pieces), -1)[: None if is_left else 0]
        return math.sqrt(self._outside(term)) * kron([_rows(self.averaged(token).gram) for token in term.centred])

    def _outside(self, term: Products) -> float:
        return math.prod(self.averaged(token).square for token in term.outside)

    def _by_outside(self, term: Products, rate: float) -> None:
        """Add the derivative of rate · Π s by every square s of the averaged axes: the product of the other squares."""
        squares = [self.averaged(token).square for token in term.outside]
        for axis, token in enumerate(term.outside):
            self.by_square[token] += rate * math.prod(squares[:axis] + squares[axis + 1 :])

    def _by_grams(self, term: Products, weight: float, form: Floats) -> None:
        """Add the derivatives of J by the Gram matrices of a product's axes and by its means.

        `form` is the derivative by the product's whole Gram matrix.
        """
        grams, outside = [self.averaged(token).gram for token in term.centred], self._outside(term)
        self._by_outside(term, weight * float((form * kron(grams)).sum()))
        for axis, token in enumerate(term.centred):
            self._by_gram[token] = self._by_gram.get(token, 0.0) + weight * outside * _others(form, grams, axis)

    def _reduced(self, term: Joint, skipped: int = -1) -> Floats:
        """Return the pieces of a joint term, (m, sizes…), averaged axes of size 1; axis `skipped` is left unchanged."""
        queries = self.weighed.demands.queries[term.key]
        for axis, kind in enumerate(term.over):
            if axis != skipped:
                mean = np.expand_dims(np.tensordot(queries, self.profiles[kind], axes=(axis + 1, 0)), axis + 1)
                queries = queries - mean if axis in term.centred else mean
        return queries

    def _by_queries(self, term: Joint, change: Floats) -> None:
        """Add the derivatives of J with respect to every axis' weights, given those with respect to the pieces.

        Averaged along an axis, a piece changes by Δu times the queries on that axis; centred, by the negative of that.
        """
        sizes = self.weighed.demands.queries[term.key].shape
        change = change.reshape(len(change), *[n if i in term.centred else 1 for i, n in enumerate(sizes[1:])])
        for axis, kind in enumerate(term.over):
            reduced, summed = self._reduced(term, axis), change.sum(axis=axis + 1, keepdims=True)
            moved = (reduced * summed).sum(axis=tuple(i for i in range(reduced.ndim) if i != axis + 1))
            self._direct[kind] += -moved if axis in term.centred else moved


def _rows(gram: Floats) -> Floats:
    """Return rows of a Gram matrix with a one-dimensional null space."""
    return root_of((gram + gram.T) / 2)[-(len(gram) - 1) :]


def _others(form: Floats, grams: Sequence[Floats], axis: int) -> Floats:
    """Return ∂/∂G_axis of tr(form ⊗G): the pairs of the other axes contracted with their Gram matrices."""
    form = form.reshape([len(gram) for gram in grams] * 2)
    for other in reversed(range(len(grams))):
        if other != axis:
            form = np.tensordot(form, grams[other], axes=((other, form.ndim // 2 + other), (0, 1)))
    return form
