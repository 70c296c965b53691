"""The mechanism `eigen-design` (Li and Miklau, 2012): optimal weights on a fixed set of design queries.

The queries are designed on all cells of the workload, or by attribute. If the attributes of the workload have few cells
together, any family is one Gram with one strategy. Otherwise a set of products is measured by one design per attribute,
for the sum of the queries on that attribute, since the eigenvectors of a Kronecker product are products; the marginals
are weighted by `OPT_M`.

Unless an option names the design, the best of the full, `separate` and `principal` designs is measured; under pure
epsilon (section 3.5), where no design queries are the best for all workloads, the best of all design queries. Version 1
measured the full design. A plan is read from its file, so charged runs of version 1 are measured by their own design.

*Weights.*
Program 1: min Σ c_i/u_i  s.t.  Σ_i u_i Q_ij² ≤ 1 for every cell j, with c_i the squared norms of the columns of W Q⁺
and u_i the squares of the scale factors λ_i. Under Laplace noise (section 3.5) only the sensitivity changes: min Σ
c_i/λ_i²  s.t.  Σ_i λ_i |Q_ij| ≤ 1. Both are min Σ c_i/v_i^r  s.t.  vᵀa ≤ 1, with r = 1, a = Q², or r = 2, a = |Q|. With
weights μ ≥ 0 on the cells, Σμ = 1, k = 1/(r + 1) and T = Σ_i c_i^k (aμ)_i^(1−k), the point v_i = (c_i / (aμ)_i)^k gives
by Hölder's inequality
    T^(r+1) ≤ the optimum ≤ T · max_j (vᵀa)_j^r,     Σ_j μ_j (vᵀa)_j = T,
so (max_j (vᵀa)_j / T)^r − 1 is its certified gap. The iteration is log μ ← log μ + 2 log((vᵀa)_j / T) with Anderson
mixing. If cells have weight 0 at the optimum, an interior-point method finishes: with y = Tμ unscaled, s_j = 1 −
(vᵀa)_j ≥ 0, y_j s_j = 0, and −∂(vᵀa)/∂y = k aᵀ diag(c^k (ay)^(−1−k)) a.
Program 2 uses the eigenvectors of WᵀW as design queries and completes the columns that are shorter than the longest.
Program 1 does not count the gain of completed columns, so fewer free weights (section 4.2) can give a smaller error:
`choose_design` compares them. The eigenvectors say nothing of L1 norms, so under Laplace noise `choose_queries`
compares them with other design queries. The completion adds single-cell queries in the norm of the noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

import numpy as np
from pydantic import model_validator

from dpscale.base.errors import JobError
from dpscale.base.numerics import AttributeSet, Floats
from dpscale.base.settings import Settings, setting
from dpscale.mechanisms.contract import Objective, PlanningProblem, Tools, objective, seconds_of_products
from dpscale.mechanisms.matrix_mechanism import check_cells, marginal_plan, matrix_mechanism
from dpscale.optimize import baselines
from dpscale.optimize.convex import interior_point, iterate_fixed_point
from dpscale.optimize.implicit_workload import explicit_gram, implicit
from dpscale.optimize.integer_strategies import joint_block, product_block
from dpscale.optimize.lower_bounds import svd_bound, svd_of_gram
from dpscale.optimize.opt_explicit import Noise, Strategy, error_of, sensitivity
from dpscale.optimize.opt_marginals import optimise_marginals
from dpscale.plans.blocks import Block
from dpscale.plans.plan import Plan
from dpscale.privacy.draws import LAPLACE
from dpscale.workload import Workload

GAP, LAPLACE_GAP = 1e-7, 1e-3  # certified relative gaps at which program 1 ends: default; in `choose_queries`
STEPS = 61  # most steps of the fixed point before the interior-point method
NEWTON_STEPS = 80  # most steps of the interior-point method
RANK = 1e-12  # share of the largest cost, eigenvalue or singular value below which a value is taken as 0
SHORT = 1e-9  # a column is completed if more than this share of the longest norm is missing
GAIN = 1e-3  # a reduced design replaces the full one if its error is smaller by more than this share
FULL = "full"
COMPARED_CELLS = 1024  # larger problems compare one reduced design, since every design is a dense solve

NAME = "eigen-design"
EXPLICIT_CELLS = 2048  # joint cells of all attributes for which there is one strategy
OF_TOTAL = 1e-3  # weight of the total and of the cells, in a sum of Gram matrices of trace 1
DESIGNS = {
    "eigen": None,
    "wavelet": baselines.wavelet,
    "fourier": baselines.fourier,
    "walsh": baselines.walsh,
    "hierarchical": baselines.hierarchical,
    "hb": baselines.hb,
    "identity": baselines.identity,
}


@dataclass(frozen=True, eq=False)
class Weighting:
    """Weights v of the design queries, their error Σ c/v^r and a lower bound of it.

    The weights are scale factors λ under Laplace noise, and their squares u under Gaussian noise.
    """

    weights: Floats
    error: float
    bound: float

    @property
    def gap(self) -> float:
        return self.error / self.bound - 1


class DesignPoint:
    """Weights y ≥ 0 of the cells with v (`scales`), the loads vᵀa (`leverage`), T, and the ratio of primal to dual."""

    def __init__(self, costs: Floats, sizes: Floats, power: int, weights: Floats) -> None:
        """Evaluate the point of some weights of the cells.

        `costs` are c, `sizes` a with shape (queries, cells), and `power` is r. `sums` is aμ, `scales` is
        v = (c/(aμ))^(1/(r + 1)), and T = Σ v (aμ), since c^k (aμ)^(1 − k) is v times aμ.
        """
        self.costs, self.sizes, self.power, self.weights = costs, sizes, power, weights
        self.sums = np.maximum(sizes @ weights, 1e-300)
        self.scales = (costs / self.sums) ** (1 / (power + 1))
        self.leverage: Floats = self.scales @ sizes
        self.trace = float((self.scales * self.sums).sum())
        with np.errstate(over="ignore"):  # of a point far from feasible
            self.ratio = float(np.power(self.leverage.max() * weights.sum() / self.trace, power))

    def at(self, weights: Floats) -> DesignPoint:
        """Return the point of other weights."""
        return DesignPoint(costs=self.costs, sizes=self.sizes, power=self.power, weights=weights)

    def solve(self, diagonal: Floats, right: Floats) -> Floats:
        """Return x with (RᵀR + diag) x = right, RᵀR the curvature; by Woodbury's identity if it has a smaller rank.

        RᵀR = k aᵀ diag(c^k (ay)^(−1 − k)) a with k = 1/(r + 1). With more rows than half of the cells, the matrix of
        cells is solved; otherwise (D + RᵀR)⁻¹ = D⁻¹ − D⁻¹Rᵀ (I + R D⁻¹ Rᵀ)⁻¹ R D⁻¹.
        """
        share = 1 / (self.power + 1)
        curves = share * self.costs**share * np.maximum(self.sums, 1e-200) ** (-1 - share)  # finite for unused cells
        rows = np.sqrt(curves)[:, None] * self.sizes
        if 2 * len(rows) > len(diagonal):
            return np.asarray(np.linalg.solve(rows.T @ rows + np.diag(diagonal), right))

        thin = rows / diagonal
        inner = np.linalg.solve(np.eye(len(rows)) + thin @ rows.T, thin @ right)
        return np.asarray(right / diagonal - thin.T @ inner)


def power_of(noise: Noise) -> int:
    """Return r: the power of the weights of design queries in the error."""
    return 2 if noise == "laplace" else 1


def sizes_of(queries: Floats, noise: Noise) -> Floats:
    """Return a: the entries of design queries as they count for the sensitivity."""
    return np.abs(queries) if noise == "laplace" else queries**2


def weigh(costs: Floats, sizes: Floats, gap: float = GAP, noise: Noise = "gaussian") -> Weighting:
    """Solve program 1.

    Parameters
    ----------
    costs : ndarray, shape (k,)
        c.
    sizes : ndarray, shape (k, cells)
        a, see `sizes_of`.
    gap : float
        Certified gap at which the search ends.
    noise : {"gaussian", "laplace"}
    """
    power = power_of(noise)
    used = (costs > RANK * costs.max()) & (sizes.max(axis=1) > 0)
    evaluate = partial(DesignPoint, costs[used], sizes[used], power)
    even = np.full(sizes.shape[1], 1 / sizes.shape[1])
    point = iterate_fixed_point(evaluate, even, gap, math.inf, STEPS)
    if point.ratio - 1 > gap:
        point = interior_point(point, gap, steps=NEWTON_STEPS)

    weights = np.zeros(len(costs))
    weights[used] = point.scales / float(point.leverage.max())
    bound = point.trace ** (power + 1) / float(point.weights.sum()) ** power
    return Weighting(weights, max(float((costs[used] / weights[used] ** power).sum()), bound), bound)


def eigen_design(gram: Floats, design: Floats | None = None, gap: float = GAP, noise: Noise = "gaussian") -> Strategy:
    """Solve program 2 for a Gram matrix (n, n), or program 1 for design queries (k, n) that span the workload."""
    queries = eigen_queries(gram) if design is None else design
    solution = weigh(query_costs(gram, queries), sizes_of(queries, noise), gap, noise)
    return _strategy(gram, queries, solution.weights, noise)


def separated_design(gram: Floats, group: int | None = None, gap: float = GAP, noise: Noise = "gaussian") -> Strategy:
    """Return eigen-query separation (section 4.2): weights in groups of similar eigenvalues, then a factor per group.

    `group` is the number of eigenvectors per group, n^⅓ by default.
    """
    queries = eigen_queries(gram)
    step = group or max(1, round(len(gram) ** (1 / 3)))
    weights = separated_weights(query_costs(gram, queries), sizes_of(queries, noise), step, gap, noise)
    return _strategy(gram, queries, weights, noise)


def principal_design(gram: Floats, count: int, gap: float = GAP, noise: Noise = "gaussian") -> Strategy:
    """Return principal vectors (section 4.2): weights for the `count` largest eigenvectors, one for all others."""
    queries = eigen_queries(gram)
    if count >= len(queries):
        return eigen_design(gram, gap=gap, noise=noise)
    weights = principal_weights(query_costs(gram, queries), sizes_of(queries, noise), count, gap, noise)
    return _strategy(gram, queries, weights, noise)


@dataclass(frozen=True, eq=False)
class DesignChoice:
    """Design with the least error among several.

    Attributes
    ----------
    full, best : Strategy
        The full design, and the chosen one, which may be the same object.
    name : str
        Name of the chosen design: "full", "separate K", "principal K", or that of other design queries.
    errors : mapping of str to float
        Squared error of every design by name, relative to the full design.
    """

    full: Strategy
    best: Strategy
    name: str
    errors: dict[str, float]


def choose_design(gram: Floats, gap: float = GAP) -> DesignChoice:
    """Return the best of the full design and reduced designs of several sizes (section 4.2), for Gaussian noise.

    A reduced design is chosen if its error is smaller by more than `GAIN`, so that rounding does not decide.
    """
    queries = eigen_queries(gram)
    costs, squares = query_costs(gram, queries), queries**2
    full = _strategy(gram, queries, weigh(costs, squares, gap).weights)
    # sizes of the groups of separated designs, and numbers of the principal vectors, that are compared
    count, large = len(queries), len(gram) > COMPARED_CELLS
    group_sizes = [] if large else [round(count ** (1 / 3)), round(count / 3), round(count / 2)]
    principal_counts = [round(count / 3)] if large else [round(count / 4), round(count / 3), round(count / 2)]
    reduced = {
        **{f"separate {k}": separated_weights(costs, squares, k, gap) for k in group_sizes if 1 < k < count},
        **{f"principal {k}": principal_weights(costs, squares, k, gap) for k in principal_counts if 0 < k < count},
    }
    errors = {FULL: 1.0, **{name: _design_error(gram, queries, u) / full.error for name, u in reduced.items()}}
    name = min(errors, key=errors.__getitem__)
    if errors[name] >= 1 - GAIN:
        return DesignChoice(full=full, best=full, name=FULL, errors=errors)
    return DesignChoice(full=full, best=_strategy(gram, queries, reduced[name]), name=name, errors=errors)


def choose_queries(gram: Floats, designs: Mapping[str, Floats], gap: float = LAPLACE_GAP) -> DesignChoice:
    """Return the best of eigenvectors and other design queries under Laplace noise (section 3.5).

    Parameters
    ----------
    gram : ndarray, shape (n, n)
    designs : mapping of str to ndarray, shape (k, n)
        Design queries that span the workload, by name.
    gap : float
    """
    full = eigen_design(gram, gap=gap, noise="laplace")
    tried = {FULL: full} | {name: eigen_design(gram, queries, gap, "laplace") for name, queries in designs.items()}
    # another design must be better than the eigenvectors by the fraction GAIN
    name = min(tried, key=lambda label: tried[label].error * (1 - GAIN * (label == FULL)))
    errors = {label: design.error / full.error for label, design in tried.items()}
    return DesignChoice(full=full, best=tried[name], name=name, errors=errors)


def separated_weights(costs: Floats, sizes: Floats, group: int, gap: float = GAP, noise: Noise = "gaussian") -> Floats:
    """Return the weights of eigen-query separation for design queries in the order of their groups; see `weigh`.

    Within each group weights are optimal alone, with the error and the loads (vᵀa) of the group. Groups are then
    weighted like design queries of these costs and sizes, and both weights multiply.
    """
    cuts = [slice(start, start + group) for start in range(0, len(costs), group)]
    inner = [weigh(costs[cut], sizes[cut], gap, noise) for cut in cuts]
    loads = np.stack([solution.weights @ sizes[cut] for solution, cut in zip(inner, cuts, strict=True)])
    outer = weigh(np.array([solution.error for solution in inner]), loads, gap, noise).weights
    return np.concatenate([factor * solution.weights for factor, solution in zip(outer, inner, strict=True)])


def principal_weights(costs: Floats, sizes: Floats, count: int, gap: float = GAP, noise: Noise = "gaussian") -> Floats:
    """Return the weights of principal vectors, the first `count` design queries; see `weigh`."""
    # the others are one query with the sum of their costs and sizes, and have its weight
    summed_costs = np.append(costs[:count], costs[count:].sum())
    summed_sizes = np.vstack([sizes[:count], sizes[count:].sum(axis=0)])
    weights = weigh(summed_costs, summed_sizes, gap, noise).weights
    return np.append(weights[:count], np.full(len(costs) - count, weights[count]))


def _design_error(gram: Floats, queries: Floats, weights: Floats) -> float:
    """Return the error of weighted eigenvectors with completed columns: tr(G M⁻¹) max M_jj, M = QᵀUQ + completion.

    The completion adds a row for each cell, so that all columns have the largest norm; it costs nothing, because the
    sensitivity is that norm. All entries of the diagonal are then equal to the maximum.
    """
    if len(queries) < len(gram) or weights.min() <= 0:
        return _strategy(gram, queries, weights).error
    square = (queries.T * weights) @ queries
    np.fill_diagonal(square, square.diagonal().max())
    return float(np.trace(np.linalg.solve(square, gram))) * float(square[0, 0])


def eigen_queries(gram: Floats) -> Floats:
    """Return the eigenvectors of the Gram matrix as rows, largest eigenvalue first, without those of eigenvalue 0."""
    values, vectors = np.linalg.eigh(gram)
    positive = values > RANK * values[-1]
    return np.asarray(vectors[:, positive].T[::-1])


def query_costs(gram: Floats, queries: Floats) -> Floats:
    """Return c_i, the squared norms of the columns of W Q⁺: the diagonal of Q⁺ᵀ G Q⁺ (theorem 1)."""
    inverse = np.linalg.pinv(queries, rcond=RANK)
    return np.asarray(np.maximum((inverse * (gram @ inverse)).sum(axis=0), 0.0))


def complete_columns(matrix: Floats, noise: Noise = "gaussian") -> Floats:
    """Add single-cell queries so that every column is as long as the longest (program 2, step 4).

    The length is the L2 norm for Gaussian and the L1 norm for Laplace noise.

    For Gaussian noise `norms` are squared, so the added entry is the root of what is missing.
    """
    norms = sizes_of(matrix, noise).sum(axis=0)
    missing = np.maximum(norms.max() - norms, 0.0)
    longest = norms.max()
    if noise == "gaussian":
        missing, longest = np.sqrt(missing), np.sqrt(longest)

    short = np.flatnonzero(missing > SHORT * longest)
    added = np.zeros((len(short), matrix.shape[1]))
    added[np.arange(len(short)), short] = missing[short]
    return np.concatenate([matrix, added])


def _strategy(gram: Floats, queries: Floats, weights: Floats, noise: Noise = "gaussian") -> Strategy:
    """Return the weighted queries with completed columns, at sensitivity 1.

    If a completion is so small that the pseudo-inverse loses it, the error is that of the weighted queries alone.

    Weights are λ for Laplace noise and λ² for Gaussian noise, so the scales λ are their power 1 or ½.
    """
    positive = weights > 0
    scales = weights[positive] ** (power_of(noise) / 2)
    rows = scales[:, None] * queries[positive]
    matrix = complete_columns(rows, noise)
    matrix = matrix / sensitivity(matrix, noise)
    error = error_of(gram, matrix, noise)
    if not np.isfinite(error):
        error = error_of(gram, rows, noise)

    return Strategy(matrix, error, min(svd_of_gram(gram), error))


class Options(Settings):
    """Design queries and their weighting."""

    design: Literal["eigen", "wavelet", "fourier", "walsh", "hierarchical", "hb", "identity"] = setting(
        "eigen",
        ", ".join(DESIGNS),
        "design queries to weight; if no option is set, the best of eigen, separate and principal, or under pure"
        " epsilon of all",
    )
    separate: int | None = setting(None, "a whole number above 0", "eigenvectors in a group (section 4.2)", ge=1)
    principal: int | None = setting(
        None, "a whole number above 0", "number of eigenvectors with separate weights", ge=1
    )
    relative: bool = setting(False, "true or false", "true: errors relative to a query's length (section 3.4)")

    @property
    def named(self) -> frozenset[str]:
        """Names of the options that fix the design."""
        return frozenset(self.model_fields_set & {"design", "separate", "principal"})

    @model_validator(mode="after")
    def _one_design(self) -> Self:
        """Refuse a design other than eigen together with the options of the eigen design."""
        if len(self.named) > 1 and self.design != "eigen":
            raise ValueError(JobError("mechanism.design", "given together with separate or principal", "one of them",
                                      "remove the others"))  # fmt: skip
        return self

    objective: Objective = objective()


def plan(problem: PlanningProblem, options: Options, tools: Tools) -> Plan:
    """Plan weighted design queries with completed columns.

    At most EXPLICIT_CELLS joint cells have one strategy together; otherwise each attribute has a strategy.
    """
    workload = problem.workload
    names = {name for part in workload.parts for names in part.sets for name in names}
    small = workload.domain.cells(workload.domain.ordered(names)) <= EXPLICIT_CELLS
    return (_explicit if small else _by_attribute)(problem, options, tools)


DENSE_SECONDS = 16.0  # of the designs of 1,024 cells


def predicted_seconds(problem: PlanningProblem, options: Options) -> float:
    """Return the predicted seconds of the designs, and of the error by attribute of as many blocks as subsets."""
    workload = problem.workload
    names = workload.domain.ordered({name for names in workload.sets for name in names})
    if (cells := workload.domain.cells(names)) <= EXPLICIT_CELLS:
        return DENSE_SECONDS * (cells / 1024) ** 3

    sizes = workload.domain.shape(names)
    if max(sizes, default=0) > EXPLICIT_CELLS:
        return 0.0  # refused at once

    dense = sum(DENSE_SECONDS * (size / 1024) ** 3 for size in sizes)
    return dense + 2 * seconds_of_products(workload, workload.most_subsets)


def _solve(options: Options, noise: Noise, gram: Floats) -> DesignChoice:
    """Return the named design, or the best one if no option names it.

    Without a named design: under Laplace noise all design queries are compared, since none is the best for all
    workloads; under Gaussian noise full and reduced designs of eigenvectors.
    """
    if not options.named and noise == "laplace":
        others = {name: make(len(gram)) for name, make in DESIGNS.items() if make is not None}
        return choose_queries(gram, others)
    if not options.named:
        return choose_design(gram)

    gap = LAPLACE_GAP if noise == "laplace" else GAP
    make = DESIGNS[options.design]
    if make is not None:
        strategy = eigen_design(gram, make(len(gram)), gap, noise)
    elif options.separate is not None:
        strategy = separated_design(gram, options.separate, gap, noise)
    elif options.principal is not None:
        strategy = principal_design(gram, options.principal, gap, noise)
    else:
        strategy = eigen_design(gram, None, gap, noise)

    return DesignChoice(full=strategy, best=strategy, name=FULL, errors={})


def _noise(problem: PlanningProblem) -> Noise:
    return "laplace" if problem.noise == LAPLACE else "gaussian"


def _explicit(problem: PlanningProblem, options: Options, tools: Tools) -> Plan:
    """Return the plan of one strategy on the joint cells of all attributes of the workload.

    The bound by singular values holds for absolute errors only, so it is 0 if errors are `relative`.
    """
    workload, relative = problem.workload, options.relative
    names, gram = explicit_gram(workload, EXPLICIT_CELLS, relative)
    (choice,) = tools.each(partial(_solve, options, _noise(problem)), [gram])
    strategy = choice.best

    if len(names) > 1:
        block = joint_block(names, workload.domain.shape(names), strategy.matrix, problem.noise)
    else:
        block = product_block(names, [strategy.matrix] * len(names), 1.0, problem.noise)
    return _joint_plan(workload, [block], 0.0 if relative else svd_of_gram(gram), _remarks([names], [choice]))


def _by_attribute(problem: PlanningProblem, options: Options, tools: Tools) -> Plan:
    """Plan marginals of one strategy per attribute; the designs chosen by attribute replace the full ones if better.

    The sum of an attribute's Grams only approximates its share of the error, so whole plans are compared.

    `weigh_marginals` plans marginals of given strategies with optimal weights. A share of the cost is the weight for
    Laplace noise and its square for Gaussian noise. Reduced designs must gain the fraction GAIN.
    """
    workload, relative = problem.workload, options.relative
    union = implicit(workload, relative)
    axes = [union.distinct(i) for i in range(len(union.sizes))]
    noise = _noise(problem)
    choices = list(tools.each(partial(_solve, options, noise), [_mixed(grams) for grams in axes]))

    def weigh_marginals(factors: list[Floats], notes: tuple[str, ...] = ()) -> Plan:
        """Return the plan of marginals with optimal weights; `factors` has the strategy of each attribute."""
        factor_of = dict(zip(union.names, factors, strict=True))
        weights = optimise_marginals(union, noise, factors=factors).weights
        power = 1 if noise == "laplace" else 2
        blocks = [
            product_block(names, [factor_of[name] for name in names], weight**power, problem.noise)
            for names, weight in weights.items()
        ]
        check_cells(blocks, tools, NAME)

        return _joint_plan(workload, blocks, 0.0 if relative else svd_bound(union).value, notes)

    full = weigh_marginals([choice.full.matrix for choice in choices])
    notes = _remarks([(name,) for name in union.names], choices)
    if not notes:
        return full

    best = weigh_marginals([choice.best.matrix for choice in choices], notes)
    return best if best.error < (1 - GAIN) * full.error else full


def _remarks(sets: Sequence[AttributeSet], choices: Sequence[DesignChoice]) -> tuple[str, ...]:
    """Return a note for every reduced design; none for full designs, whose plan files have none."""
    return tuple(
        f"{', '.join(names)}: {choice.name} is the best design (squared error over that of the full one): "
        + "; ".join(f"{name} {ratio:.4g}" for name, ratio in choice.errors.items())
        for names, choice in zip(sets, choices, strict=True)
        if choice.name != FULL
    )


def _mixed(grams: dict[str, Floats]) -> Floats:
    """Return the sum of an attribute's Grams, each scaled to trace 1, plus a small multiple of Total for full rank."""
    size = len(next(iter(grams.values())))
    scaled = [gram / np.trace(gram) for gram in grams.values() if np.ptp(gram) > 0]
    return np.asarray(np.sum(scaled, axis=0) + OF_TOTAL * (np.full((size, size), 1 / size) + np.eye(size) / size))


def _joint_plan(workload: Workload, blocks: list[Block], bound: float, notes: tuple[str, ...]) -> Plan:
    """Return a plan of joint blocks, with a note on its error beside the SVD bound of any strategy."""
    marginal = marginal_plan(workload, NAME, blocks, bound, notes)
    if marginal.bound == 0:
        return marginal
    ratio = (marginal.error / marginal.bound) ** 0.5
    note = f"root mean square error over the least that any strategy can have: {ratio:.6g}"
    return Plan(
        workload=workload,
        mechanism=NAME,
        blocks=marginal.blocks,
        error=marginal.error,
        bound=marginal.bound,
        notes=(note, *notes),
    )


MECHANISM = matrix_mechanism(NAME, Options, plan, "3", frozenset({"1", "2"}), predicted_seconds)
