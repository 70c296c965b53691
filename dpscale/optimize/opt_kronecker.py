"""OPT⊗: one Kronecker product as the strategy; OPT+: unions of products (HDMM, section 6.1 and definition 18).

The error of A = ⊗ A_i on a union of products is Σ_k w_k Π_i tr(G_ki (A_iᵀA_i)⁺) (theorem 6). With one product the
problem separates: the product of each attribute's OPT0 is the optimum (theorem 4). With several products it is solved
by block descent: OPT0 on the surrogate Gram matrix Σ_k w_k Π_{j≠i} tr(G_kj (A_jᵀA_j)⁺) G_ki (equation 5) of every
attribute i. The attributes of a sweep, the starts and the groups of OPT+ are independent tasks, which `each` maps. The
*cost* of a Gram matrix on an attribute is tr(G (AᵀA)⁺) under the present strategy A of the attribute.

A descent begins from a numbered start (`seed`; 0 is the identity). It is *rough* while its Laplace searches have no
restarts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from dpscale.base.deadline import check_planning_time
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, ParallelMap, named_task, one_thread, serial_map
from dpscale.optimize.convex import Solution, Solve
from dpscale.optimize.implicit_workload import Groups, Implicit, Product, distinct_groupings
from dpscale.optimize.integer_strategies import bits_for, error_coefficient, round_strategy
from dpscale.optimize.lower_bounds import svd_bound
from dpscale.optimize.opt_explicit import (
    FIRST_STEPS,
    RANK,
    STEPS,
    Noise,
    PIdentity,
    Strategy,
    best_end,
    descend,
    inverse_gram,
    is_symmetric,
    optimise_explicit,
    promising,
    starting_points,
    with_bound,
)
from dpscale.privacy.draws import rooted, variance_factor
from dpscale.workload import Subworkload, root_of

SWEEPS = 15  # sweeps after which a descent ends; a rough descent has a further fine sweep
CONVERGED = 1e-5  # relative decrease of a sweep below which the descent ends
STARTS = 6  # descents of a union of products from different starts
FIRST_STARTS, RESTARTED = 6, 3  # restarts of an attribute's search, and sweeps that have them
ROUGH_STEPS = 160  # of a search whose solution the next sweep replaces
Costs = list[dict[str, float]]


@dataclass(frozen=True, eq=False)
class ProductStrategy:
    """Strategy ⊗ factors on the attributes `names`; every factor (rows × size), hence the product, has sensitivity 1.

    Attributes that only Total uses have a factor of one row of ones. `error` is the coefficient tr(G (AᵀA)⁺); `bound`
    is a lower bound over all strategies (0 if unknown).
    """

    names: AttributeSet
    factors: tuple[Floats, ...]
    error: float
    bound: float


@dataclass(frozen=True, eq=False)
class AttributeProblem:
    """OPT0 on one attribute: a task. Equal keys mean equal solutions.

    With `is_rough` the searches from all starts end after ROUGH_STEPS; otherwise the best of them are continued.
    """

    gram: Floats
    noise: Noise
    seed: int
    starts: int | None = None
    warm: Floats | None = None
    is_rough: bool = False

    @cached_property
    def key(self) -> bytes:
        """Digest of all that the solution depends on; equal problems are solved once.

        The seed, the number of starts and the roughness count for Laplace noise only; `warm` is the start of the
        search.
        """
        searched = [self.seed, self.starts, self.is_rough] * (self.noise == "laplace")
        settings = repr((self.noise, len(self.gram), searched)).encode()
        digest = hashlib.sha256(settings + np.ascontiguousarray(self.gram).tobytes())
        digest.update(b"" if self.warm is None else np.ascontiguousarray(self.warm).tobytes())
        return digest.digest()

    @property
    def has_restarts(self) -> bool:
        """Whether the solution is the best of several searches."""
        total = np.ptp(self.gram) <= RANK * float(self.gram[0, 0])
        return self.noise == "laplace" and not total and not is_symmetric(self.gram)

    @property
    def starting_points(self) -> list[Floats]:
        return starting_points(len(self.gram), None, self.starts, self.seed, self.warm)


@named_task("solve-attribute")
def solve_attribute(problem: AttributeProblem) -> Strategy:
    """Return the strategy of one attribute."""
    with one_thread():
        return optimise_explicit(problem.gram, problem.noise, problem.seed, starts=problem.starts, warm=problem.warm)


@named_task("solve-restart")
def solve_restart(task: tuple[Floats, Floats, int]) -> PIdentity:
    """Return the end of a p-Identity search of some steps from one start."""
    with one_thread():
        return descend(*task)


class Descent(Protocol):
    """Search for the strategy of a union of products in sweeps, each a list of independent problems."""

    @property
    def done(self) -> bool: ...
    @property
    def problems(self) -> list[AttributeProblem]: ...
    def advance(self, solved: Sequence[Strategy]) -> None:
        """Take the solutions of `problems`."""

    @property
    def strategy(self) -> ProductStrategy: ...


def run_descents(descents: Sequence[Descent], each: ParallelMap) -> None:
    """Run descents side by side until all are done: every sweep maps the distinct problems of all of them.

    A problem that was solved before is not solved again, whichever descent it belongs to.

    A sweep is the list of problems of one step of a descent. Distinct problems of all sweeps are mapped together, and
    each descent receives the solutions in the order of its problems.
    """
    known: dict[bytes, Strategy] = {}
    active = [descent for descent in descents if not descent.done]
    while active:
        check_planning_time()
        sweeps = [descent.problems for descent in active]
        new = {problem.key: problem for problems in sweeps for problem in problems if problem.key not in known}
        known.update(_solved(new, each))
        for descent, problems in zip(active, sweeps, strict=True):
            descent.advance([known[problem.key] for problem in problems])
        active = [descent for descent in descents if not descent.done]


def _solved(new: Mapping[bytes, AttributeProblem], each: ParallelMap) -> dict[bytes, Strategy]:
    """Return the solutions of distinct problems, the largest first; each restart of a p-Identity search is a task."""
    order = sorted(new, key=lambda key: -len(new[key].gram))
    single = [key for key in order if not new[key].has_restarts]
    solved = {}
    if single:
        solved = dict(zip(single, each(solve_attribute, [new[key] for key in single]), strict=True))
    starts = {key: new[key].starting_points for key in order if new[key].has_restarts}

    if starts:
        # a few steps from every start, and more from the promising ends
        ends = _run_starts(new, starts, FIRST_STEPS, each)
        continued = {key: promising(of_problem) for key, of_problem in ends.items() if not new[key].is_rough}
        if continued:
            ends |= _run_starts(new, continued, STEPS, each)
        for key, of_problem in ends.items():
            solved[key] = with_bound(new[key].gram, best_end(new[key].gram, of_problem))

    return solved


def _run_starts(
    new: Mapping[bytes, AttributeProblem], starts: Mapping[bytes, Sequence[Floats]], steps: int, each: ParallelMap
) -> dict[bytes, list[PIdentity]]:
    """Return the ends of the searches from all starts of all problems.

    A task has the Gram matrix, a start, and the number of steps, which is smaller for a rough problem. Results are
    grouped by problem again.
    """
    tasks = []
    for key, of_problem in starts.items():
        most_steps = ROUGH_STEPS if new[key].is_rough else steps
        tasks += [(new[key].gram, start, most_steps) for start in of_problem]
    ends = iter(each(solve_restart, tasks))
    return {key: [next(ends) for _ in of_problem] for key, of_problem in starts.items()}


def optimise_product(
    union: Implicit, noise: Noise, each: ParallelMap = serial_map, starts: int = STARTS, seed: int = 0
) -> ProductStrategy:
    """Solve OPT⊗: in closed form for one product, else as the best of `starts` descents."""
    descents = _descents(union, noise, starts, seed)
    run_descents(descents, each)
    return _best(union, descents)


def _descents(union: Implicit, noise: Noise, starts: int, seed: int) -> list[Descent]:
    if len(union.products) == 1:
        return [_OneProduct(union, noise, seed)]
    return [_SweepDescent(union, noise, seed + start) for start in range(starts)]


def _best(union: Implicit, descents: Sequence[Descent]) -> ProductStrategy:
    """Return the strategy of least error with the better of its bound and the SVD bound."""
    best = min((descent.strategy for descent in descents), key=lambda strategy: strategy.error)
    return replace(best, bound=min(max(svd_bound(union).value, best.bound), best.error))


class _OneProduct:
    """One product: the product of the optima of its attributes is its optimum (theorem 4)."""

    def __init__(self, union: Implicit, noise: Noise, seed: int) -> None:
        self.union = union
        self.problems = [AttributeProblem(axis.gram, noise, seed) for axis in union.products[0].axes]
        self._solved: Sequence[Strategy] | None = None

    @property
    def done(self) -> bool:
        return self._solved is not None

    def advance(self, solved: Sequence[Strategy]) -> None:
        self._solved = solved

    @property
    def strategy(self) -> ProductStrategy:
        """Product of the solved strategies; error and bound are the products of theirs, times the weight."""
        solved, weight = self._solved or (), self.union.products[0].weight
        return ProductStrategy(
            names=self.union.names,
            factors=tuple(strategy.matrix for strategy in solved),
            error=weight * math.prod(strategy.error for strategy in solved),
            bound=weight * math.prod(strategy.bound for strategy in solved),
        )


class _SweepDescent:
    """Block descent from one start; seed 0 starts from the identity, as in the paper.

    A sweep solves the surrogates of all attributes at the same costs, as independent tasks. It then visits the
    attributes, another one first in every sweep, and takes each solution that decreases the error at the costs of those
    taken before. The first one visited always does, so a sweep is at least a step of block coordinate descent, and a
    sweep without gain is a coordinate-wise optimum. Searches under Laplace noise are rough until a sweep has no gain:
    their tasks take about equal times, so few workers wait. The sweep after that has restarts.
    """

    def __init__(self, union: Implicit, noise: Noise, seed: int) -> None:
        """Begin the sweeps over the attributes, whose costs are those of `_begin`.

        `best` is the least error so far; searches for Laplace noise are rough at first.
        """
        self.union, self.noise, self.seed, self.sweep = union, noise, seed, 0
        self.costs = _begin(union, seed)
        self.strategies: list[Strategy | None] = [None] * len(union.sizes)
        self.best, self.done, self.is_rough = math.inf, not union.sizes, noise == "laplace"
        self.random_before = RESTARTED

    @property
    def problems(self) -> list[AttributeProblem]:
        """Problems of a sweep, one for each attribute: its surrogate Gram matrix, at the costs of the other attributes.

        A problem has the strategy of the sweep before as a start (`warm`), and for Laplace noise, in sweeps before
        `random_before`, FIRST_STARTS random starts too.
        """
        grams = [_surrogate(self.union, self.costs, axis) for axis in range(len(self.union.sizes))]
        warm = [None if before is None else before.warm for before in self.strategies]
        # random starts and precision of a search count for Laplace noise only
        search = self.noise, self.seed, FIRST_STARTS if self.sweep < self.random_before else 0
        # a factor of the Gram matrix does not change the optimum; at trace 1, equal problems have equal keys
        return [
            AttributeProblem(gram / np.trace(gram), *search, start, self.is_rough)
            for gram, start in zip(grams, warm, strict=True)
        ]

    def advance(self, solved: Sequence[Strategy]) -> None:
        """Take the new strategy of each attribute if it does not increase the error, in an order that rotates.

        The descent ends after SWEEPS sweeps, or if the error decreased too little; a rough one then continues finely.

        `costs[axis]` has tr(G (AᵀA)⁺) of each Gram matrix of the axis under its strategy A; `prices` are those of the
        new one. A strategy is taken if the sum over products at the present costs of the other axes does not increase.
        """
        axes, first = range(len(solved)), self.sweep % len(solved)
        for axis in (*axes[first:], *axes[:first]):
            prices = _price(self.union.distinct(axis), solved[axis].matrix)
            if self.strategies[axis] is None or self._value(axis, prices) <= self._value(axis, self.costs[axis]):
                self.strategies[axis], self.costs[axis] = solved[axis], prices

        before, self.best, self.sweep = self.best, _total(self.union, self.costs), self.sweep + 1
        if self.sweep >= SWEEPS or self.best > before * (1 - CONVERGED):
            # a fine descent is done; a rough one becomes fine, and its next sweep has random starts again
            self.done, self.is_rough, self.random_before = not self.is_rough, False, self.sweep + 1

    def _value(self, axis: int, prices: dict[str, float]) -> float:
        """Return the error with `prices` as the costs of one axis."""
        return _dot(self.union, self.costs, axis, prices)

    @property
    def strategy(self) -> ProductStrategy:
        factors = tuple(strategy.matrix for strategy in self.strategies if strategy is not None)
        return ProductStrategy(names=self.union.names, factors=factors, error=_total(self.union, self.costs), bound=0.0)


def _begin(union: Implicit, seed: int) -> Costs:
    """Return initial costs: those of the identity for seed 0, else randomly scaled.

    The cost of the identity is tr(G); other seeds multiply each by e^(−2x), x uniform.
    """
    generator = np.random.default_rng(seed)
    spread = 0.0 if seed == 0 else 2.0
    costs = []
    for axis in range(len(union.sizes)):
        scaled = {}
        for key, gram in union.distinct(axis).items():
            scaled[key] = float(np.trace(gram)) * float(np.exp(-spread * generator.random()))
        costs.append(scaled)
    return costs


def _price(grams: dict[str, Floats], factor: Floats) -> dict[str, float]:
    """Return the cost of each Gram matrix of an attribute under the strategy `factor`."""
    inverse = inverse_gram(factor)
    return {key: float((gram * inverse).sum()) for key, gram in grams.items()}


def _coefficients(union: Implicit, costs: Costs, axis: int) -> dict[str, float]:
    """Return Σ_k w_k Π_{j≠axis} cost over the products with each Gram matrix on one axis.

    These are the coefficients of the surrogate Gram matrix of the axis (equation 5); the cost of a product is weight ·
    Π.
    """
    total: dict[str, float] = {}
    for product in union.products:
        keys = product.keys
        rest = product.weight
        for j, key in enumerate(keys):
            rest *= costs[j][key] if j != axis else 1.0
        total[keys[axis]] = total.get(keys[axis], 0.0) + rest
    return total


def _surrogate(union: Implicit, costs: Costs, axis: int) -> Floats:
    grams = union.distinct(axis)
    parts = [value * grams[key] for key, value in _coefficients(union, costs, axis).items()]
    return np.asarray(np.sum(parts, axis=0))


def _dot(union: Implicit, costs: Costs, axis: int, prices: dict[str, float]) -> float:
    return sum(value * prices[key] for key, value in _coefficients(union, costs, axis).items())


def _total(union: Implicit, costs: Costs) -> float:
    return _dot(union, costs, 0, costs[0]) if costs else float(sum(product.weight for product in union.products))


PRODUCT_SWEEPS = 12  # most sweeps over the axes of a subworkload in `solve_product`

Terms = list[tuple[tuple[str, ...], float]]
AxisCosts = dict[tuple[str, ...], list[float]]


def solve_product(sub: Subworkload, solve: Solve, noise: str) -> Solution:
    """Return a product strategy for a large sum of Kronecker terms, with its coefficient for trace 1, and no bound.

    `cost[key]` has, for a term, the error of each of its axes under the present strategy. Each axis in turn is solved
    for its surrogate, the terms' Gram matrices weighted by the costs of their other axes, until the sum hardly
    decreases. `scale` is the trace of the sum, so that terms have the trace 1 in sum; sweeps end when a sum falls by
    less than the fraction 1e-5.
    """
    if any(sub.is_joint(key) for key in sub.terms):
        names = ", ".join(sub.attributes)
        raise PlanError(
            "workload",
            f"a joint family together with others over {sub.cells} cells ({names})",
            "fewer cells",
            "coarsen the attributes, or use one family over this set",
        )

    terms = [(key, weight / sub.scale) for key, weight in sub.terms.items()]
    cost = {key: [1.0] * len(sub.sizes) for key, _ in terms}
    roots: list[Floats] = [np.zeros(0)] * len(sub.sizes)
    value = math.inf

    for _ in range(PRODUCT_SWEEPS):
        for axis in range(len(sub.sizes)):
            gram = _product_surrogate(sub, terms, cost, axis)
            roots[axis] = solve(None, root_of(gram / np.trace(gram)), gram.shape[:1], 1e-7).root
            _product_price(sub, terms, cost, axis, roots[axis])
        before, value = value, sum(weight * math.prod(cost[key]) for key, weight in terms)
        if value > before * (1 - 1e-5):
            break

    rows = [root_of(_product_surrogate(sub, terms, cost, axis)) for axis in range(len(roots))]
    return _rounded_product(sub, terms, rows, roots, noise)


def with_product_bound(solution: Solution, sub: Subworkload, duals: Mapping[str, float]) -> Solution:
    """Return the solution of a sum of Kronecker terms with the sum of their bounds, from those of the factors."""
    bound = sum(weight / sub.scale * math.prod(duals[axis] for axis in key) for key, weight in sub.terms.items())
    return replace(solution, bound=min(bound, solution.coefficient))


def _product_surrogate(sub: Subworkload, terms: Terms, cost: AxisCosts, axis: int) -> Floats:
    """Return the Gram matrix of one axis whose error is that of a sum of products, at the costs of the other axes."""
    total = np.zeros((sub.sizes[axis],) * 2)
    for key, weight in terms:
        others = math.prod(value for i, value in enumerate(cost[key]) if i != axis)
        total += weight * others * sub.factors[key[axis]].gram
    return total


def _product_price(sub: Subworkload, terms: Terms, cost: AxisCosts, axis: int, root: Floats) -> None:
    """Set the costs of all terms on one axis to those of its new strategy `root`."""
    inverse = np.linalg.pinv(root.T @ root, rcond=1e-12, hermitian=True)
    for key, _ in terms:
        cost[key][axis] = float((sub.factors[key[axis]].gram * inverse).sum())


def _rounded_product(sub: Subworkload, terms: Terms, rows: list[Floats], roots: list[Floats], noise: str) -> Solution:
    """Return the product of integer strategies near the roots of the axes, with its error on all terms.

    The error of a term is the product of its axes' errors; terms add with their weights.
    """
    bits, factors = bits_for(len(roots)), []
    for queries, root, size, weights in zip(rows, roots, sub.sizes, sub.weights, strict=True):
        factors.append(round_strategy(queries, root, (size,), bits, weights=(weights,)))

    errors = []
    for key, weight in terms:
        of_axes = [error_coefficient(factor, sub.factors[axis].rows, noise)
                   for factor, axis in zip(factors, key, strict=True)]  # fmt: skip
        errors.append(weight * math.prod(of_axes))
    return Solution(tuple(factors), variance_factor(noise) * sum(errors), 0.0)


@dataclass(frozen=True, eq=False)
class UnionStrategy:
    """Product strategies, the products of the workload that each answers, and their shares of the budget.

    `shares` are parts of the privacy cost (squared sensitivity) for Gaussian, of ε for Laplace noise; they sum to 1.
    """

    groups: tuple[ProductStrategy, ...]
    answers: tuple[tuple[Product, ...], ...]
    shares: tuple[float, ...]
    error: float
    bound: float


def optimise_union(
    union: Implicit, noise: Noise, each: ParallelMap = serial_map, groups: Groups | None = None, seed: int = 0
) -> UnionStrategy:
    """Solve OPT+ for given groups, or for the better of single products and products grouped under the largest ones.

    The products of a group are answered by one product strategy. Its errors divide the budget (`divide`). For each
    grouping, `parts` are the unions of the products of each group, and `descents` the searches from STARTS starts of
    each part.
    """
    groupings = [groups] if groups is not None else distinct_groupings(union)
    parts = [[union.only(group) for group in grouping] for grouping in groupings]
    descents = [[_descents(part, noise, STARTS, seed) for part in of_grouping] for of_grouping in parts]

    # all descents of all groupings run side by side
    all_descents = []
    for of_grouping in descents:
        for of_part in of_grouping:
            all_descents += of_part
    run_descents(all_descents, each)

    strategies = []
    for grouping, of_parts, of_grouping in zip(groupings, parts, descents, strict=True):
        strategies.append(_of_groups(union, noise, grouping, tuple(map(_best, of_parts, of_grouping))))

    return min(strategies, key=lambda strategy: strategy.error)


def divide(errors: Sequence[float], noise: Noise) -> tuple[list[float], float]:
    """Return the shares of the budget that minimise the error, and that error.

    Σ e_i/s_i (Gaussian) and Σ e_i/s_i² (Laplace) are least at s ∝ e^p, with the value (Σ e^p)^(1/p), p of `rooted`.
    """
    power = rooted(noise)
    roots = [value**power for value in errors]
    total = math.fsum(roots)
    return [root / total for root in roots], total ** (1 / power)


def _of_groups(union: Implicit, noise: Noise, groups: Groups, solved: tuple[ProductStrategy, ...]) -> UnionStrategy:
    shares, error = divide([strategy.error for strategy in solved], noise)
    bound = min(svd_bound(union).value, error)
    return UnionStrategy(groups=solved, answers=tuple(groups), shares=tuple(shares), error=error, bound=bound)
