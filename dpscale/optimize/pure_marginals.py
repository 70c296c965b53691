"""Marginals to measure under Laplace noise, over any number of attributes: search for the sets and their weights θ.

OPT_M (`opt_marginals`) varies the weights of all 2^d marginals. Under Laplace noise its optimum uses few of them, each
a union of several sets of the workload, and there are many local optima. This search therefore varies the list of
marginals: it starts from random covers of the workload, and replaces, merges, enlarges, reduces and drops marginals as
long as the error decreases. For every list the weights follow from a fixed point, in a compiled loop.

Estimates are the least squares estimates from all marginals. On a residual space τ their precision is, at L1
sensitivity Σθ = 1 and noise variance 2 for ε = 1,
    λ_τ = Σ over S ⊇ τ of θ_S² / Π over S∖τ of n_i,   error = 2 Σ_τ t_τ/λ_τ,
where t_τ is the trace of the workload's Gram matrix on τ (`workload.decompose`). With a strategy A of L1 sensitivity 1
in place of the identity on an attribute, ν replaces n_i and the traces are those of `opt_marginals`.

The result is the best local optimum found. No lower bound over all lists is known. Marginals and residual spaces are
sets of attributes, written as bit masks: bit i is attribute i.

*Strategies on attributes.*
Traces of a workload on its residual spaces are for marginals measured by a strategy on each attribute, which is
descended. A strategy A of L1 sensitivity 1 on an attribute is represented by its lens (`opt_marginals`). The error
of marginals with weights θ is Σ_τ t_τ/λ_τ. On one attribute i, with the others in a residual space τ, the precision is
a 11ᵀ + b AᵀA. Its inverse, and so the error, is a concave function of C = (AᵀA)⁻¹ (a parallel sum). The linear upper
bound at the present C is tr(Ĝ C) with     Ĝ = Σ (c/b) P G Pᵀ,   P = I − κ 1 1ᵀC,   κ = (1 − λ_{τ+i}/(ν λ_τ))/ν, so OPT0
on Ĝ cannot increase the error.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from dpscale.base.compilation import compiled
from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet, Flags, Floats
from dpscale.optimize.implicit_workload import Implicit, Product, implicit
from dpscale.optimize.opt_explicit import FIRST_STEPS, Strategy, descend, inverse_gram, is_symmetric, optimise_explicit
from dpscale.optimize.opt_marginals import OF_TOTAL, Lens, lens_of
from dpscale.workload import Workload, decompose

SURELY, NEGLIGIBLE = 1e-6, 1e-4  # relative gain of a move; weight relative to the largest below which a set is dropped
# steps of the fixed point in a fit, and for a tried move; moves tried together
FIT_STEPS, MOVE_STEPS, BATCH = 100, 8, 256
MOST_COVERS, FEWEST_COVERS, COVERED = 150, 4, 20_000  # random starts; their number times the sets to cover
CONTINUED, ROUNDS = 16, 40  # starts that are continued, and moves of each
WORK = 5e8  # operations of all moves; a bound on time that does not depend on the machine
GROUP_CELLS = (4, 8, 16, 32, 64, 128, 256, 1024)  # most cells of a group of attributes; one start for each
SPREAD, PARTLY = 0.5, 0.3  # of the random gains of a cover; gain of a set that is covered in part
MOST_DENSE, DENSE_STARTS, CONCENTRATED = 8, 24, 0.7  # attributes and number of starts with all marginals
Allowed = Callable[[int], bool]  # sets of attributes are bit masks
LEAST = 1e-80  # precision at or below which a space counts as not measured

MOST_TERMS = 20_000  # sets of the workload times their subsets, for strategies of attributes
NOTHING = 1e-13  # share of the largest trace below which a trace is a rounding error


@dataclass(frozen=True, eq=False)
class ResidualTraces:
    """Residual spaces of a workload: members (spaces, attributes), traces t, and n or ν of each attribute."""

    names: AttributeSet
    members: Flags
    traces: Floats
    totals: Floats
    sets: tuple[int, ...]  # of the workload

    def mask(self, names: Iterable[str]) -> int:
        """Return some attributes as a bit mask."""
        return sum(1 << self.names.index(name) for name in names)

    def named(self, marginal: int) -> AttributeSet:
        """Return the attributes of a bit mask."""
        return tuple(name for i, name in enumerate(self.names) if marginal >> i & 1)

    @cached_property
    def largest(self) -> tuple[int, ...]:
        """Sets of the workload that are not inside another one."""
        return _maximal(self.sets)

    def flags(self, marginal: int) -> Flags:
        return np.array([marginal >> i & 1 for i in range(len(self.names))], np.bool_)

    def precision(self, marginal: int) -> Floats:
        """Return the precision p_τS = 1 / Π over S∖τ of n_i that a marginal S of weight 1 adds to each space τ.

        It is 0 for spaces that are not inside the marginal. Logarithms keep products of many sizes within the range of
        floats.
        """
        inside, logs = self.flags(marginal), np.log(self.totals)
        contained = ~self.members[:, ~inside].any(axis=1)
        log_space, log_marginal = self.members @ (logs * inside), logs @ inside  # Σ log n_i over τ and over S
        return np.where(contained, np.exp(log_space - log_marginal), 0.0)


@dataclass(frozen=True, eq=False)
class WeightedSets:
    """Marginals as bit masks with weights θ of sum 1, and their error coefficient Σ t/λ."""

    marginals: tuple[int, ...]
    weights: Floats
    error: float


@dataclass(eq=False)
class MarginalSearch:
    """Search for the marginals of one workload.

    Attributes
    ----------
    spaces : ResidualTraces
    allowed : callable
        Whether a marginal may be measured.
    seed : int
    """

    spaces: ResidualTraces
    allowed: Allowed
    seed: int = 0
    work: float = 0.0
    places: dict[int, int] = field(default_factory=dict)
    columns: Floats = field(default_factory=lambda: np.zeros((0, 0)))

    def search(self, starts: Sequence[WeightedSets] = ()) -> WeightedSets:
        """Return the best marginals found from the workload's sets, groups of attributes, random covers and `starts`.

        Starts are lists of marginals: plain ones, random covers, then `starts` and random dense weights. Each is
        fitted; of the ends with distinct errors the CONTINUED best are improved by moves.

        Parameters
        ----------
        starts : sequence of WeightedSets
        """
        generator = np.random.default_rng(self.seed)
        covers = int(np.clip(COVERED // len(self.spaces.largest), FEWEST_COVERS, MOST_COVERS))
        lists = dict.fromkeys([*self._plain_starts(), *(self._cover(generator) for _ in range(covers))])
        ends = [self.fitted(marginals) for marginals in lists if all(map(self.allowed, marginals))]
        weighted_starts = [*starts, *self._dense_starts(generator)]
        ends += [self.fitted(start.marginals, start.weights) for start in weighted_starts]

        distinct = {f"{end.error:.8e}": end for end in sorted(ends, key=lambda end: -end.error)}
        best = sorted(distinct.values(), key=lambda end: end.error)[:CONTINUED]
        return min((self._descended(end) for end in best), key=lambda end: end.error)

    def fitted(self, marginals: Sequence[int], weights: Floats | None = None, steps: int = FIT_STEPS) -> WeightedSets:
        """Return some marginals with locally optimal weights, without those of negligible weight.

        Marginals whose weight is below NEGLIGIBLE of the largest are dropped, and the others are fitted again.
        """
        start = np.full(len(marginals), 1.0) if weights is None else weights
        (fitted,), (error,) = self._fit([(marginals, start)], steps)
        chosen = np.flatnonzero(fitted > NEGLIGIBLE * fitted.max())
        if len(chosen) < len(fitted):
            return self.fitted([marginals[i] for i in chosen.tolist()], fitted[chosen], steps)
        return WeightedSets(tuple(marginals), fitted, float(error))

    def _fit(self, lists: Sequence[tuple[Sequence[int], Floats]], steps: int) -> tuple[list[Floats], Floats]:
        """Return the weights of several lists of marginals after some steps of the fixed point, and the errors.

        A list has its marginals as bit masks, and their starting weights.

        All lists are padded to the longest with −1, the mark of the end in `fit_weights`. Weights are at least a
        fraction of the largest, because the fixed point multiplies them and cannot leave 0. `work` counts the
        operations of all fits.
        """
        longest = max(len(marginals) for marginals, _ in lists)
        rows, weights = np.full((len(lists), longest), -1, np.int32), np.zeros((len(lists), longest))
        for i, (marginals, start) in enumerate(lists):
            rows[i, : len(marginals)] = [self._place(marginal) for marginal in marginals]
            weights[i, : len(marginals)] = np.maximum(start, NEGLIGIBLE * start.max())

        errors = np.empty(len(lists))
        fit_weights(self.columns, self.spaces.traces, rows, weights, steps, errors)
        self.work += float(steps + 1) * len(self.spaces.traces) * float((rows >= 0).sum()) * 2
        return [fitted[: len(marginals)] for fitted, (marginals, _) in zip(weights, lists, strict=True)], errors

    def _place(self, marginal: int) -> int:
        """Return the row of a marginal in the table of precisions, which grows as needed.

        `places` maps a marginal to its row of `columns`, shape (rows, spaces), which has p_τS of every space τ. The
        table doubles when it is full.
        """
        if marginal not in self.places:
            place = len(self.places)
            if place >= len(self.columns):
                larger = np.zeros((max(64, 2 * place), len(self.spaces.traces)))
                if place:
                    larger[:place] = self.columns
                self.columns = larger
            self.places[marginal] = place
            self.columns[place] = self.spaces.precision(marginal)
        return self.places[marginal]

    def _descended(self, best: WeightedSets) -> WeightedSets:
        """Return the end of moves from one list, each the best of a batch."""
        generator = np.random.default_rng(self.seed)
        for _ in range(ROUNDS):
            better = self._better(best, generator)
            if better is None:
                break
            best = better
        return best

    def _better(self, best: WeightedSets, generator: np.random.Generator) -> WeightedSets | None:
        """Return the result of the best move of the first batch that has one; None if there is none.

        Moves are tried in random order by batches of BATCH. A move counts if its error is lower by the fraction SURELY
        after a few steps, and again after the weights are fitted. `weights` and `errors` are those of the batch; the
        search ends without a move when `work` exceeds WORK.
        """
        moves = list(self._moves(best))
        order = generator.permutation(len(moves)).tolist()
        for start in range(0, len(order), BATCH):
            if self.work > WORK:
                return None
            tried = [moves[i] for i in order[start : start + BATCH]]
            weights, errors = self._fit(tried, MOVE_STEPS)
            place = int(np.argmin(errors))
            if errors[place] < best.error * (1 - SURELY):
                marginals, _ = tried[place]
                moved = self.fitted(marginals, weights[place])
                if moved.error < best.error * (1 - SURELY):
                    return moved

        return None

    def _moves(self, present: WeightedSets) -> Iterator[tuple[Sequence[int], Floats]]:
        """Yield lists that differ by one move from a given one, with starting weights.

        A replacement gives the marginal that it adds the weight of those that it removes, or an even share if it
        removes none. After the replacements, each marginal is left out in turn.
        """
        weight_of = dict(zip(present.marginals, present.weights.tolist(), strict=True))
        for removed, added in self._replacements(present.marginals):
            if added in weight_of or not self.allowed(added):
                continue
            weights = {marginal: weight for marginal, weight in weight_of.items() if marginal not in removed}
            weights[added] = sum(weight_of[marginal] for marginal in removed) or 1 / len(weight_of)
            yield list(weights), np.array(list(weights.values()))

        for dropped in present.marginals if len(weight_of) > 1 else ():
            weights = {marginal: weight for marginal, weight in weight_of.items() if marginal != dropped}
            yield list(weights), np.array(list(weights.values()))

    def _replacements(self, marginals: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yield the marginals that a move removes, and the one that it adds, as bit masks.

        Two marginals become their union; one gains, loses or exchanges an attribute, or such a marginal is added to
        it.
        """
        for first, second in combinations(marginals, 2):
            yield (first, second), first | second
        bits = [1 << i for i in range(len(self.spaces.names))]
        for marginal in marginals:
            for bit in bits:
                yield (marginal,), marginal ^ bit
                yield (), marginal ^ bit
                if marginal & bit:
                    yield from (((marginal,), marginal ^ bit | other) for other in bits if not marginal & other)

    def _plain_starts(self) -> Iterator[tuple[int, ...]]:
        """Yield the sets of the workload, all attributes together, and unions of groups of small attributes.

        Groups join attributes, from the smallest size, while their cells number at most `most_cells`. A start has, for
        every largest set of the workload, the union of the groups that share an attribute with it. `spaces.totals` has
        the number of cells of each attribute, n or ν.
        """
        yield self.spaces.sets
        yield self.spaces.largest
        yield (sum(1 << i for i in range(len(self.spaces.names))),)
        order = np.argsort(self.spaces.totals, kind="stable").tolist()

        for most_cells in GROUP_CELLS:
            groups, cells = [0], 1.0
            for i in order:
                cells *= self.spaces.totals[i]
                if groups[-1] and cells > most_cells:
                    groups.append(0)
                    cells = self.spaces.totals[i]
                groups[-1] |= 1 << i
            yield _maximal(sum(group for group in groups if group & largest) for largest in self.spaces.largest)

    def _dense_starts(self, generator: np.random.Generator) -> Iterator[WeightedSets]:
        """Yield random weights of all marginals that are products over the attributes, for few attributes.

        The weight of a set is Π over its attributes of x_i times Π over the others of 1 − x_i, for random x_i. Weights
        are ordered by bit mask: after each attribute, the second half has the sets that contain it.
        """
        number = len(self.spaces.names)
        if number > MOST_DENSE:
            return

        marginals = tuple(marginal for marginal in range(1 << number) if self.allowed(marginal))
        for _ in range(DENSE_STARTS):
            weights = np.ones(1)
            for outside, inside in generator.dirichlet((CONCENTRATED, CONCENTRATED), number):
                weights = np.concatenate([weights * outside, weights * inside])
            yield WeightedSets(marginals, weights[list(marginals)] + NEGLIGIBLE / len(weights), math.inf)

    def _cover(self, generator: np.random.Generator) -> tuple[int, ...]:
        """Return random marginals of at most a random number of cells that cover the sets of the workload.

        `flags` has a row for each largest set of the workload, with its attributes; `missing` is the number of
        attributes of each set that the new marginal lacks. The limit is on Σ log n_i, drawn between the smallest set
        and 1,000 times it.
        """
        flags = np.stack([self.spaces.flags(largest) for largest in self.spaces.largest])
        logs = np.log(np.maximum(self.spaces.totals, 1.001))  # of the numbers of cells
        sizes = flags @ logs
        limit = generator.uniform(sizes.min(), min(sizes.min() + math.log(1000), logs.sum()))
        degrees, uncovered, marginals = flags.sum(axis=1), np.ones(len(flags), np.bool_), list[int]()

        while uncovered.any():
            # begin with a set that is not covered, and add attributes while the limit permits
            chosen = flags[generator.choice(np.flatnonzero(uncovered))].copy()
            while True:
                free = np.flatnonzero(~chosen & (chosen @ logs + logs <= limit))
                if not len(free):
                    break
                # gains: sets that an attribute completes, and how near it brings the others; random, by its size
                missing = degrees - flags @ chosen
                shares = ((flags[:, free] + degrees[:, None] - missing[:, None]) / degrees[:, None]) ** 2
                gains = ((missing == 1) & uncovered) @ flags[:, free] + PARTLY * shares[uncovered].mean(axis=0)
                noise = np.exp(generator.normal(0, SPREAD, len(free)))
                chosen[free[int(np.argmax(gains / logs[free] * noise))]] = True

            marginals.append(sum(1 << i for i in np.flatnonzero(chosen).tolist()))
            uncovered &= (flags & ~chosen).any(axis=1)

        return tuple(dict.fromkeys(marginals))


def _maximal(sets: Iterable[int]) -> tuple[int, ...]:
    """Return the distinct sets, as bit masks, that are not inside another one."""
    distinct = sorted(set(sets), key=lambda mask: -mask.bit_count())
    largest: list[int] = []
    for mask in distinct:
        if not any(mask & ~other == 0 for other in largest):
            largest.append(mask)
    return tuple(sorted(largest))


@compiled("void(float64[:,::1], float64[::1], int32[:,::1], float64[:,::1], int64, float64[::1])", checked=False)
def fit_weights(
    precisions: Floats,
    coefficients: Floats,
    lists: NDArray[np.int32],
    weights: Floats,
    steps: int,
    errors: Floats,
) -> None:
    """Improve the weights of every list by some steps of the fixed point θ ← θ (θ d)^⅓, and evaluate its error.

    d_S = Σ_τ t_τ p_τS / λ_τ² with λ_τ = Σ_S p_τS θ_S². At a minimum of the error on Σθ = 1 all θ_S d_S are equal. The
    step is exact if no space is measured by two marginals.

    `level` is λ, `ratio` t/λ² and `slope` d; c is a list, k one of its marginals and t a space. The error is 2 Σ t/λ
    without the factor 2.

    Parameters
    ----------
    precisions : ndarray, shape (marginals, spaces)
        p_τS of every known marginal.
    coefficients : ndarray, shape (spaces,)
        t_τ.
    lists : ndarray of int32, shape (lists, most)
        Marginals of every list, −1 after the last.
    weights : ndarray, shape (lists, most)
        θ, changed in place; the sum of each row becomes 1.
    steps : int
    errors : ndarray, shape (lists,)
        Σ_τ t_τ/λ_τ at the last weights; infinite if a space is not measured.
    """
    spaces = len(coefficients)
    level, ratio = np.empty(spaces), np.empty(spaces)
    for c in range(len(lists)):
        number = 0
        while number < lists.shape[1] and lists[c, number] >= 0:
            number += 1
        # the last pass only evaluates the error
        for step in range(steps + 1):
            total = 0.0
            for k in range(number):
                total += weights[c, k]
            level[:] = 0.0
            for k in range(number):
                weights[c, k] /= total
                square, row = weights[c, k] ** 2, precisions[lists[c, k]]
                for t in range(spaces):
                    level[t] += square * row[t]

            error = 0.0
            for t in range(spaces):
                part = coefficients[t] / level[t] if level[t] > LEAST else np.inf
                error += part
                ratio[t] = part / level[t] if level[t] > LEAST else 0.0

            errors[c] = error
            if step == steps or not error < np.inf:
                break

            for k in range(number):
                slope, row = 0.0, precisions[lists[c, k]]
                for t in range(spaces):
                    slope += row[t] * ratio[t]
                # Σ θ² d is the error, so θ d / error is 1 for every marginal of a minimum; 1e-12 keeps θ positive
                weights[c, k] *= (weights[c, k] * slope / error + 1e-12) ** (1 / 3)


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
                strategies = list(current.strategies)
                strategies[axis] = after
                current = replace(current, strategies=tuple(strategies))

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
    return [position for position, axis in enumerate(product.axes) if not axis.is_total]


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
