"""Plans over hierarchies: every residual of the other attributes is measured at all levels of the trees at once.

The Gram matrix of a residual τ is (Σ_l ω_l A_lᵀA_l) ⊗ G_τ. It is measured by a strategy of G_τ on the other attributes
and by precisions of the nodes of the tree (`optimize.tree`), and the budget is divided among the residuals
by the square-root rule. With several hierarchies, or Gram matrices that differ by level, the strategy is still a
product, and each factor is the best for given errors of the others. The bound is summed over
residuals, each with its own weights of the leaves; with one hierarchy, common weights bound the error of all matrix
mechanisms.

A hierarchy that is centred loses nothing if the total is spread by u = C1 / 1ᵀC1, with C the covariance of the best
strategy that is not centred: with K₀ the row of the total, of precision p = 1 / 1ᵀC1, and K(I − u1ᵀ) for the rest, the
precisions are the same, and a record costs p + (1 − p) in place of 1. u_v is the product of the gains on the path of v.

By default the levels are balanced: the weights ω_l are chosen so that the root mean square error of a cell is the same
at every level, as far as a level is not better at no cost.

*Demands.*
The sets with the same levels form a group. Without its levels, a group is a workload on the other attributes, and its
subworkloads (`workload.subworkloads`) have one Gram matrix for each node of the levels. The first hierarchy is measured
at all of its levels with every residual τ. A level of another hierarchy splits like an attribute, into the total,
spread by shares u of its nodes, and a part that is centred: the residual (τ, S) is centred in the hierarchies S.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Floats, Integers
from dpscale.domain import Hierarchy
from dpscale.domain.hierarchy import Tree
from dpscale.mechanisms.contract import PlanningProblem, Tools
from dpscale.mechanisms.residual_split import solve_residuals
from dpscale.optimize.convex import Solution, Solve
from dpscale.optimize.opt_kronecker import solve_product
from dpscale.optimize.tree import (
    NodeClasses,
    TreeGram,
    best_precisions,
    classes_of,
    integer_multipliers,
    product_bound,
    spread_of,
    tree_bound,
)
from dpscale.plans.blocks import Block, Blocks
from dpscale.plans.factor import Factor
from dpscale.plans.plan import Plan
from dpscale.plans.tree import TreeFactor, known_level, levels_only, split_levels, without_implied
from dpscale.privacy.draws import GAUSSIAN, allocate, rooted, variance_factor
from dpscale.workload import Subworkload, Workload, WorkloadPart, decompose
from dpscale.workload.residual import subsets

Levels = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class LevelGroup:
    """Sets with the same levels.

    Attributes
    ----------
    levels : tuple of int
        Level of each hierarchy in use; 0 where the sets have none.
    workload : Workload
        The sets without their levels.
    weight : float
        Sum of the weights of all queries.
    """

    levels: Levels
    workload: Workload
    weight: float


@dataclass(frozen=True, eq=False)
class TreeTerm:
    """Demand of one group on a residual.

    Attributes
    ----------
    group : int
    levels : tuple of int
        Level of each hierarchy at which the residual is needed; 0 where it is the total.
    sub : Subworkload
        Gram matrix on the other attributes, for one node of each level.
    spread : tuple of int
        Levels of the group's sets over which the total is spread; 0 where the residual is needed at the level itself.
    """

    group: int
    levels: Levels
    sub: Subworkload
    spread: Levels


@dataclass(frozen=True, eq=False)
class TreeDemands:
    """Demands of a workload over hierarchies.

    Attributes
    ----------
    hierarchies : tuple of Hierarchy
        Those in use; the first is measured at all levels, and the others are centred.
    trees : tuple of Tree
    groups : tuple of LevelGroup
    terms : mapping
        Terms of each residual, by the other attributes and the positions of the centred hierarchies.
    known : mapping of AttributeSet to int
        Deepest level of the hierarchy at which a residual follows from public totals, where there is one.
    """

    hierarchies: tuple[Hierarchy, ...]
    trees: tuple[Tree, ...]
    groups: tuple[LevelGroup, ...]
    terms: Mapping[tuple[AttributeSet, Levels], list[TreeTerm]]
    known: Mapping[AttributeSet, int]

    def whole_terms(self, names: AttributeSet) -> list[TreeTerm]:
        """Return one term of each group with a residual of the other attributes: that with all levels of its sets."""
        whole = []
        for (attributes, _), terms in self.terms.items():
            if attributes == names:
                whole += [term for term in terms if not any(term.spread)]
        return whole

    def depths(self, key: tuple[AttributeSet, Levels]) -> Levels:
        """Return the deepest level of every hierarchy at which a residual is needed."""
        return tuple(max(levels) for levels in zip(*(term.levels for term in self.terms[key]), strict=True))


def uses_levels(workload: Workload) -> bool:
    """Return whether the sets of a workload and the public totals are at several levels of a hierarchy."""
    used = {name for names in workload.sets for name in names}
    used |= {name for total in workload.domain.public_totals for name in total.names}
    return any(len(used.intersection(hierarchy.names)) > 1 for hierarchy in workload.domain.hierarchies)


def tree_demands(workload: Workload) -> TreeDemands:
    """Return the demands of a workload.

    The hierarchy with the most levels in use is the first. A group has a term for each residual of its other attributes
    and each subset of its other hierarchies: in the subset the residual is centred at the level of the group, outside
    it is the total, spread over the nodes of that level.

    Raises
    ------
    PlanError
        If queries on a level are not its cells.
    """
    used = {name for names in workload.sets for name in names}
    chosen = sorted(
        (hierarchy for hierarchy in workload.domain.hierarchies if used.intersection(hierarchy.names)),
        key=lambda hierarchy: -len(used.intersection(hierarchy.names)),
    )
    groups = tuple(_groups(workload, chosen))

    terms: dict[tuple[AttributeSet, Levels], list[TreeTerm]] = {}
    for number, group in enumerate(groups):
        others = [place for place, level in enumerate(group.levels) if place and level]
        for sub in decompose(group.workload):
            for centred in subsets(tuple(others)):
                # the first hierarchy is measured at its levels with every residual, so it is never spread
                at_level = [not place or place in centred for place in range(len(group.levels))]
                levels = tuple(level if at else 0 for level, at in zip(group.levels, at_level, strict=True))
                spread = tuple(0 if at else level for level, at in zip(group.levels, at_level, strict=True))
                of_residual = terms.setdefault((sub.attributes, centred), [])
                of_residual.append(TreeTerm(group=number, levels=levels, sub=sub, spread=spread))

    known = {names: level for names, _ in terms if (level := known_level(workload.domain, chosen[0], names)) >= 0}
    if len(chosen) > 1 and workload.domain.public_totals:
        raise PlanError("totals", "given for a workload over several hierarchies", "totals over one hierarchy",
                        "leave out the totals, or the levels of all hierarchies but one")  # fmt: skip

    # a level that follows from public totals needs no measurement
    unknown = {}
    for key, of_residual in terms.items():
        unknown[key] = [term for term in of_residual if term.levels[0] > known.get(key[0], -1)]
    return TreeDemands(
        hierarchies=tuple(chosen),
        trees=tuple(hierarchy.tree for hierarchy in chosen),
        groups=groups,
        terms={key: of_residual for key, of_residual in unknown.items() if of_residual},
        known=known,
    )


def _groups(workload: Workload, hierarchies: Sequence[Hierarchy]) -> Iterator[LevelGroup]:
    """Yield the workload by levels: a set belongs to the level of each hierarchy that it contains (0 for none).

    A group has the other attributes of its sets as a workload, and a weight of the sum over its queries.
    """
    by_level: dict[Levels, tuple[Workload, list[float]]] = {}
    for part in workload.parts:
        by_levels: dict[Levels, list[tuple[AttributeSet, float]]] = {}
        for names, weight in zip(part.sets, part.weights, strict=True):
            split = split_levels(hierarchies, without_implied(hierarchies, names))
            levels = tuple(split.levels.get(hierarchy.leaf, 0) for hierarchy in hierarchies)
            if levels not in by_level:
                by_level[levels] = Workload(workload.domain.without_totals), []
            if any(levels):
                _check_marginal(part, hierarchies, names)
            rest = tuple(name for name in split.axes if name not in split.levels)
            by_levels.setdefault(levels, []).append((rest, float(weight)))
            # without the cells that are 0 because one level follows from another
            by_level[levels][1].append(float(weight) * part.count(without_implied(hierarchies, names)))

        for levels, pairs in by_levels.items():
            sets, weights = zip(*pairs, strict=True)
            by_level[levels][0].parts.append(_restricted(part, sets, weights) if part.factorizes else part)

    groups = (LevelGroup(levels, inner, math.fsum(weights)) for levels, (inner, weights) in sorted(by_level.items()))
    return (group for group in groups if group.weight > 0)


def _restricted(part: Any, sets: Sequence[AttributeSet], weights: Sequence[float]) -> WorkloadPart:
    """Return a product part over other sets, here those without their levels."""
    return replace(part, sets=sets, weights=weights)


def _check_marginal(part: WorkloadPart, hierarchies: Sequence[Hierarchy], names: AttributeSet) -> None:
    """Raise PlanError if queries of a part on a level are not its cells."""
    levels = [name for name in names for hierarchy in hierarchies if name in hierarchy.names]
    if not part.factorizes:
        raise levels_only(levels[0])
    families = dict(zip(names, part.families(names), strict=True))
    for name in levels:
        if not families[name].is_identity:
            raise levels_only(name)


Key = tuple[AttributeSet, Levels]
GRID = 32  # level weights are rounded to powers of exp(1 / GRID), so that similar residuals share a strategy
NOWHERE = -20_000  # logarithm of a level weight of 0, in steps of 1 / GRID
LEAST = 1e-300  # keeps a sum of weights of 0 from being a divisor
# rounds over the trees of several hierarchies; steps that balance the groups' errors; excess of the largest error
# over the mean at which they end; part of a step in logarithms
SWEEPS, BALANCES, EVEN, DAMPING = 3, 16, 0.01, 0.7


def plan_trees(problem: PlanningProblem, tools: Tools, solve: Solve, name: str, balance: bool) -> Plan:
    """Return the plan of a workload over hierarchies.

    Parameters
    ----------
    problem : PlanningProblem
    tools : Tools
    solve : Solve
        Solver of the residuals of the other attributes.
    name : str
        Name of the mechanism.
    balance : bool
        Whether levels are weighted to have equal errors; otherwise the weights are those of the workload.

    Raises
    ------
    PlanError
        If queries on a level are not its cells.
    """
    demands = tree_demands(problem.workload)
    planner = _Planner(problem, demands, _solutions(problem, demands, tools, solve))
    weights = np.array([1 / group.weight for group in demands.groups])
    if not demands.terms:  # everything follows from public totals, which the plan refuses
        return Plan(
            workload=problem.workload,
            mechanism=name,
            blocks=Blocks.of(problem.workload.domain.axis_names, ()),
            error=0.0,
            bound=0.0,
        )

    scale = problem.workload.query_count
    if not balance:
        return planner.plan(name, np.ones(len(demands.groups)), ())

    for _ in range(BALANCES):
        errors = planner.errors(weights)
        weighed = weights * np.array([group.weight for group in demands.groups])
        weighed = weighed * (errors > 0)  # public totals have no error
        mean = float(weighed @ errors / max(weighed.sum(), LEAST))
        needed = errors[weighed > weighed.max() * 1e-4]
        if needed.max() <= mean * (1 + EVEN) or len(demands.groups) == 1:
            break
        weights = weights * _moves(demands, np.where(errors > 0, errors / mean, 1.0))

    weighed = weights * np.array([group.weight for group in demands.groups])
    return planner.plan(name, weights * scale / weighed.sum(), planner.notes(planner.errors(weights)))


def _moves(demands: TreeDemands, ratios: Floats) -> Floats:
    """Return factors of the groups' weights, one for each level of each hierarchy, that bring errors closer.

    Factors by level, and not by group, keep the weights of several hierarchies a product, for which the bound is close.

    `ratios` are the groups' errors over their mean. The mean of the logarithms at a level is the logarithm of the
    level's factor, divided among the hierarchies and damped.
    """
    total = np.zeros(len(ratios))
    for place in range(len(demands.hierarchies)):
        levels = np.array([group.levels[place] for group in demands.groups])
        means = np.bincount(levels, np.log(ratios)) / np.maximum(np.bincount(levels), 1)
        total += means[levels] / len(demands.hierarchies)
    return np.exp(DAMPING * total)


def _solutions(
    problem: PlanningProblem, demands: TreeDemands, tools: Tools, solve: Solve
) -> dict[AttributeSet, tuple[Solution, Subworkload]]:
    """Return the strategy of every residual of the other attributes, with the Gram matrix that it is the best for.

    All groups together give one workload on the other attributes, `merged`, whose residuals are solved. The result has,
    by residual, the solution and the subworkload of `merged` that it solves.
    """
    merged = Workload(problem.workload.domain.without_totals)
    for group in demands.groups:
        # the workload of a group has the queries of one node of its levels, and its weight is that of the queries of
        # all nodes; times nodes / weight, each group counts by its mean variance, as at the first step of balancing
        nodes = math.prod(tree.sizes[level] for tree, level in zip(demands.trees, group.levels, strict=True))
        merged.parts.extend(part.scaled(nodes / group.weight) for part in group.workload.parts)

    solved, _ = solve_residuals(replace(problem, workload=merged), tools, solve)
    solutions = {}
    for sub in decompose(merged):
        solution = solved.get(sub.attributes)
        assert solution is not None
        if len(solution.factors) < len(sub.attributes):  # a joint strategy has no axes to combine with a tree
            product = solve_product(sub, solve, problem.noise)
            # its coefficient is for trace 1, those of `solved` for the trace `sub.scale`
            solution = Solution(product.factors, product.coefficient * sub.scale, product.bound * sub.scale)
        solutions[sub.attributes] = solution, sub

    return solutions


@dataclass(frozen=True, eq=False)
class _Planner:
    """Strategies of all residuals for given weights of the groups."""

    problem: PlanningProblem
    demands: TreeDemands
    solutions: Mapping[AttributeSet, tuple[Solution, Subworkload]]
    known: dict[tuple[int, Levels, int], TreeFactor] = field(default_factory=dict)
    shares: dict[tuple[int, Levels], list[Integers]] = field(default_factory=dict)
    starts: dict[tuple[int, int], Floats] = field(default_factory=dict)
    classes: dict[tuple[int, int], NodeClasses] = field(default_factory=dict)

    @property
    def noise(self) -> str:
        return self.problem.noise

    @cached_property
    def coefficients(self) -> dict[Key, list[float]]:
        """Error of each term at full budget and unit variance of the nodes, for the strategy of its residual."""
        return {key: [self._coefficient(key[0], term) for term in terms] for key, terms in self.demands.terms.items()}

    def _coefficient(self, names: AttributeSet, term: TreeTerm) -> float:
        """Return the error of a term at the whole budget.

        It is scaled from the solution if the term has the queries that were solved, else computed.
        """
        solution, merged = self.solutions[names]
        if term.sub.signature() == merged.signature():
            return term.sub.scale / merged.scale * solution.coefficient
        return _error(term.sub, solution.factors, self.noise)

    def errors(self, weights: Floats) -> Floats:
        """Return the mean variance of the queries of each group at privacy cost 1.

        With share s a residual's error is total/s (Gaussian) or total/s² (Laplace): the power 1/p − 1 for p of
        `rooted`. A residual is measured by a strategy with trees (`factors`), `totals` are the variances of its terms
        at the whole budget, and each group's sum is divided by its weight.
        """
        factors = {key: self.trees(key, weights) for key in self.demands.terms}
        totals = {key: self._totals(key, factor, weights) for key, factor in factors.items()}
        shares, _ = allocate([self._weighted(key, totals[key], weights) for key in factors], self.noise)

        variances, power = np.zeros(len(weights)), 1 / rooted(self.noise) - 1
        for key, share in zip(factors, shares, strict=True):
            for term, total in zip(self.demands.terms[key], totals[key], strict=True):
                variances[term.group] += total / share**power
        return variances / np.array([group.weight for group in self.demands.groups])

    def _weighted(self, key: Key, totals: Sequence[float], weights: Floats) -> float:
        return sum(weights[term.group] * total for term, total in zip(self.demands.terms[key], totals, strict=True))

    def _totals(self, key: Key, trees: Mapping[int, TreeFactor], weights: Floats) -> list[float]:
        """Return the error of each term at full budget for the trees of its residual.

        A term's error is that of the other attributes (`coefficients`) times the squared sensitivity of the trees, the
        variance at its levels and the square of the spreading weights.
        """
        sensitivity = math.prod(tree.squared_sensitivity(self.noise) for tree in trees.values())
        return [coefficient * sensitivity * self._spread_square(key[0], term, weights)
                * math.prod(_summed(trees[place], term.levels[place]) for place in trees)
                for coefficient, term in zip(self.coefficients[key], self.demands.terms[key], strict=True)]  # fmt: skip

    def trees(self, key: Key, weights: Floats) -> dict[int, TreeFactor]:
        """Return the strategies on the trees of a residual, by the position of their hierarchy.

        With several hierarchies, the tree of each is the best for given trees of the others, for SWEEPS rounds. The
        first place alone can have a level that is known, and no spreading weights; `levels` are the weights ω_l of the
        levels of one tree.
        """
        depths = self.demands.depths(key)
        places = [place for place, depth in enumerate(depths) if depth]
        factors: dict[int, TreeFactor] = {}
        for _ in range(SWEEPS if len(places) > 1 else 1):
            for place in places:
                spread = self.spreads(key[0], place, weights)[depths[place]] if place else None
                levels = self._level_weights(key, place, factors, weights)
                known = -1 if place else self.demands.known.get(key[0], -1)
                factors[place] = self._tree(place, depths[place], levels, spread, known)

        return factors

    def _level_weights(self, key: Key, place: int, others: Mapping[int, TreeFactor], weights: Floats) -> list[float]:
        """Return ω_l of one hierarchy: the weights of the terms at its level, times their errors on all other axes.

        A term counts with its group's weight, its coefficient, the variances of the other trees and the spreading
        weights.
        """
        level_weights = [0.0] * (self.demands.depths(key)[place] + 1)
        for coefficient, term in zip(self.coefficients[key], self.demands.terms[key], strict=True):
            rest = math.prod(_summed(tree, term.levels[other]) for other, tree in others.items() if other != place)
            spread = self._spread_square(key[0], term, weights)
            level_weights[term.levels[place]] += weights[term.group] * coefficient * rest * spread
        return level_weights

    def _spread_square(self, names: AttributeSet, term: TreeTerm, weights: Floats) -> float:
        """Return Π Σ_v u_v² over the hierarchies of which a term needs only the total.

        u_v are the shares, of sum 1, by which the total is spread over the nodes v of the term's level.
        """
        product = 1.0
        for place, level in enumerate(term.spread):
            if level:  # 0: the term needs the level itself
                shares = self.spreads(names, place, weights)[level]
                product *= float((shares.astype(np.float64) ** 2).sum()) / float(shares.sum()) ** 2
        return product

    def spreads(self, names: AttributeSet, place: int, weights: Floats) -> list[Integers]:
        """Return integer weights n_v of the nodes by which the total is spread over a hierarchy, by level.

        They are C1 of the module for the best strategy that is not centred; the grid of level weights is the key of the
        cache.
        """
        terms = self.demands.whole_terms(names)
        levels = [0.0] * (max(term.levels[place] for term in terms) + 1)
        for term in terms:
            nodes = (tree.sizes[level] for tree, level in zip(self.demands.trees, term.levels, strict=True))
            rest = math.prod(nodes) / self.demands.trees[place].sizes[term.levels[place]]
            levels[term.levels[place]] += weights[term.group] * self._coefficient(names, term) * rest

        grid = _on_grid(levels)
        if (place, grid) not in self.shares:
            classes = self.tree_classes(place, len(grid) - 1)
            optimum = best_precisions(classes, _off_grid(grid), self.starts.get((place, len(grid) - 1)))
            self.shares[place, grid] = classes.tree.sums(spread_of(classes, optimum))

        return self.shares[place, grid]

    def _tree(
        self, place: int, depth: int, weights: Sequence[float], spread: Integers | None, known: int
    ) -> TreeFactor:
        """Return the best strategy on the tree of a hierarchy down to `depth`, for weights on its levels.

        Strategies are kept by weights on a grid; `known` is the number of the last level that needs no measurement.
        `place` is the number of the hierarchy; the first (0) measures its root, and the others are centred by the
        weights `spread`. Each search starts at the logits of the one before.
        """
        grid = _on_grid(weights)
        key = place, grid, id(spread) if place else known
        if key not in self.known:
            classes = self.tree_classes(place, depth)
            best = best_precisions(classes, _off_grid(grid), self.starts.get((place, depth)), known)
            self.starts[place, depth] = best.logits
            multipliers = tuple(integer_multipliers(classes, best.precisions, root=not place))
            self.known[key] = TreeFactor(
                "tree", classes.tree.sizes[-1:], tree=classes.tree, multipliers=multipliers, spread=spread, known=known
            )

        return self.known[key]

    def tree_classes(self, place: int, depth: int) -> NodeClasses:
        """Return the classes of the nodes of a hierarchy down to a level."""
        if (place, depth) not in self.classes:
            tree = self.demands.trees[place]
            self.classes[place, depth] = classes_of(tree.above(depth) if depth < tree.depth else tree)
        return self.classes[place, depth]

    def plan(self, name: str, weights: Floats, notes: tuple[str, ...]) -> Plan:
        """Return the plan for given weights of the groups.

        The bound holds for all weights, so it may exceed the error of these ones by rounding; the plan states the
        smaller number.
        """
        trees = {key: self.trees(key, weights) for key in self.demands.terms}
        values = [self._weighted(key, self._totals(key, tree, weights), weights) for key, tree in trees.items()]
        shares, error = allocate(values, self.noise)
        blocks = [self._block(key, tree, share) for (key, tree), share in zip(trees.items(), shares, strict=True)]
        blocks.sort(key=lambda block: len(block.attributes))
        bound, floor = self.bounds(weights) if self.noise == GAUSSIAN else (0.0, 0.0)
        return Plan(
            workload=self.problem.workload,
            mechanism=name,
            blocks=Blocks.of(self.problem.workload.domain.axis_names, blocks),
            error=error,
            bound=min(bound, error),
            notes=notes,
            floor=min(floor, error),
        )

    def _block(self, key: Key, trees: Mapping[int, TreeFactor], share: float) -> Block:
        """Return the block of a residual space: optimised factors of its axes, and trees for its hierarchies.

        A factor with a tree is named by the level of the hierarchy down to which it measures.
        """
        factors: dict[str, Factor] = dict(zip(key[0], self.solutions[key[0]][0].factors, strict=True))
        for place, depth in enumerate(self.demands.depths(key)):
            if depth:
                factors[self.demands.hierarchies[place].names[depth - 1]] = trees[place]
        names = self.problem.workload.domain.ordered(factors)
        return Block(names, tuple(factors[name] for name in names), share, noise=self.noise)

    def bounds(self, weights: Floats) -> tuple[float, float]:
        """Return lower bounds on the error: of these plans, and of all matrix mechanisms (0 if unknown).

        Plans measure each residual alone, at a cost that is the same for all leaves. With several hierarchies only the
        bound of these plans is known. `known` is the last level that needs no measurement.
        """
        sets = list(dict.fromkeys(names for names, _ in self.demands.terms))
        tables = [self._tables(names, weights) for names in sets]  # the tables of each residual
        classes = [self.tree_classes(place, tree.depth) for place, tree in enumerate(self.demands.trees)]
        if len(classes) > 1:
            of_residuals = [sum(product_bound(classes, table) for table in of_residual) for of_residual in tables]
            return math.fsum(map(math.sqrt, of_residuals)) ** 2, 0.0

        known = [self.demands.known.get(names, -1) for names in sets]
        grams = [
            [TreeGram(tuple(table), known=level) for table in of_residual]
            for of_residual, level in zip(tables, known, strict=True)
        ]
        alone = math.fsum(math.sqrt(tree_bound(classes[0], [gram])) for gram in grams) ** 2
        return alone, min(tree_bound(classes[0], grams), alone)

    def _tables(self, names: AttributeSet, weights: Floats) -> list[Floats]:
        """Return the Kronecker terms of a residual: weights by level of each tree, one table for each Gram matrix.

        A term with the Gram matrix that was solved has the bound of the solution, scaled to the term. Another one, and
        one of a product strategy, which has no bound, has a bound at uniform weights.
        """
        solution, merged = self.solutions[names]
        tables: dict[str, Floats] = {}
        for term in self.demands.whole_terms(names):
            key = term.sub.signature()
            solved = key == merged.signature() and solution.bound > 0
            scale = solution.bound * term.sub.scale / merged.scale if solved else _uniform_bound(term.sub)
            table = tables.setdefault(key, np.zeros([tree.depth + 1 for tree in self.demands.trees]))
            table[term.levels] += weights[term.group] * scale
        return list(tables.values())

    def notes(self, errors: Floats) -> tuple[str, ...]:
        """Return the error of every level at privacy cost 1, for the user."""
        named = [
            f"{self.level_name(group)} {math.sqrt(error):.4g}"
            for group, error in zip(self.demands.groups, errors, strict=True)
        ]
        return (f"root mean square error by level at privacy cost 1: {', '.join(named)}",)

    def level_name(self, group: LevelGroup) -> str:
        """Return the names of a group's levels."""
        pairs = zip(self.demands.hierarchies, group.levels, strict=True)
        return " x ".join(hierarchy.names[level - 1] for hierarchy, level in pairs if level) or "without a level"


def _on_grid(weights: Sequence[float]) -> Levels:
    """Return the logarithms of level weights relative to the largest, in steps of 1 / GRID; NOWHERE for 0.

    Level weights that differ by less than a step share one strategy.
    """
    largest = max(weights)
    return tuple(
        max(round(GRID * math.log(weight / largest)), NOWHERE + 1) if weight > 0 else NOWHERE for weight in weights
    )


def _off_grid(grid: Levels) -> list[float]:
    return [0.0 if step == NOWHERE else math.exp(step / GRID) for step in grid]


def _summed(tree: TreeFactor, level: int) -> float:
    return float(tree.passes.variances[level].sum())


def _error(sub: Subworkload, factors: Sequence[Factor], noise: str) -> float:
    """Return tr(G ⊗ (KᵀK)⁺) Δ² with the variance of the noise, for a product strategy of another Gram matrix."""
    sensitivity = math.prod(factor.squared_sensitivity(noise) for factor in factors)
    total = sum(weight * math.prod(float((sub.factors[part].gram * factor.covariance).sum())
                                   for part, factor in zip(key, factors, strict=True))
                for key, weight in sub.terms.items())  # fmt: skip
    return variance_factor(noise) * sensitivity * total


def _uniform_bound(sub: Subworkload) -> float:
    """Return Σ weight · (tr (G/n)^½)² over the Kronecker terms, a bound at uniform weights of the cells."""
    if any(sub.is_joint(key) for key in sub.terms):
        raise PlanError("workload", f"a joint family over {', '.join(sub.attributes)} at levels of a hierarchy",
                        "product families", "use marginals, prefixes or ranges")  # fmt: skip

    roots = {
        key: float(np.linalg.svd(factor.rows, compute_uv=False).sum()) / math.sqrt(factor.rows.shape[1])
        for key, factor in sub.factors.items()
    }
    return math.fsum(weight * math.prod(roots[part] ** 2 for part in key) for key, weight in sub.terms.items())
