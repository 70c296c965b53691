"""Public parameters of an adaptive run and its schedule, fixed before it starts.

*Schedules* have the candidates, the cost of the 1-ways and of each step, and the sets per round. `PublishedSchedule` is
that of the papers of AIM and AIM+GReM (algorithm 7). `BatchedSchedule` is our own: pairs in batches, so that about nine
rounds measure every pair once, at a budget that would be even if all pairs were measured. Sets measured in one round
divide its budget by cells: n cells with noise σ have an L1 error of n σ, and Σ n σ is least for a given Σ 1/σ² if 1/σ²
∝ n^⅔. Five rules, functions of weights and released numbers, change this default:

- *Leading pairs.* If at most half of the pairs have at least a quarter of the largest weight, as those of a target,
  the first round measures them without a selection. Budgets are even over Σ w² of the pairs: (Σ w)² / Σ w² steps, which
  is the number of pairs if all have the same weight.
- *Larger sets.* The noise of a pair is √(2/π) σ · groups over the records. If it is low, larger sets can be estimated:
  steps are cheaper, down to a quarter, and a round measures up to three times as many sets. A larger set is offered if
  its own noise is at most 10 % of the records, or up to 20 % if pairs are estimated precisely.
- *Empty selection.* While all measurements so far were uninformative, the empty set may also be selected.
- *Uninformative rounds.* If most measurements of a round changed the estimates by less than their noise, the next step
  costs twice as much.
- *Repeated 1-ways.* If the 1-ways are noisy, a part of the remaining budget is spent on them again; if all measurements
  were uninformative, regardless of their noise. For v uninformative measurements of n the part is
  (v − (n − v)) / (n + 2), so few measurements have less influence.

*Laws* of four and more attributes have selections of their own (`law_degrees`): they could not compete with pairs, of
which each is in many targets, and they are seen best when smaller sets are estimated. Beyond MOST_ATTRIBUTES attributes
this holds for sets of three as well, if a target has three. The share LAW_SHARE of the budget is reserved for each such
degree k, and TRIPLE_SHARE for sets of three, which pairs explain in part. It is divided by LAW_STEPS. A step selects
one set of k attributes, or none, by its distance less the expected noise and less ln(number of sets) / scale, the price
of so many candidates. The degree ends if no set is selected. What is left is spent by further rounds.

The candidates of a degree are all its sets while these are at most MOST_LAWS. If there are more, they are the sets of
the attributes with the fewest cells, and those that *grow* from a confirmed set of k − 1 attributes by one attribute
(`grown_laws`). A set is confirmed if its measurement changed the estimates by more than its noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, chain, combinations, islice
from typing import Any, Protocol

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet
from dpscale.mechanisms.aim.estimators import EntropyEstimator, Estimator
from dpscale.plans.factor import Factor
from dpscale.workload.query_classes import CellClasses, QueryCandidates
from dpscale.workload.residual import Groups

DEGREE = 3  # most attributes of a set that competes with pairs; larger sets are laws
FEWER = "use marginals over fewer attributes"
# noise of a larger set, as a share of the records, up to which it is offered at even steps; noise of pairs for which
# the first step is even; least first step, as a share of an even one; factor of the pairs of a round at the cheapest
# steps
OFFERED, EVEN, CHEAPEST, WIDEST = 0.1, 0.025, Fraction(1, 4), 3
# least weight of a leading pair, as a share of the largest weight; most of the budget of even steps for leading pairs
LEADING, LEADING_SHARE = Fraction(1, 4), Fraction(3, 4)
# noise, as a share of the records, above which 1-ways are noisy; measurements that are added to n in the share of
# 1-ways; parts of 1 to which the first share is rounded; share of a set of one cell, before they are scaled to 1
NOISY_ONES, DOUBT, SIXTEENTHS, PART = 0.05, 2, 16, 1 << 12
# of the budget, for the laws of a degree, and for those of three attributes; steps of a degree; share of a step for its
# selection; noise of a law, as a share of the records, up to which it is a candidate
LAW_SHARE, TRIPLE_SHARE, LAW_STEPS, LAW_SELECTING, LAW_NOISE = Fraction(1, 10), Fraction(1, 40), 8, Fraction(1, 4), 0.25
Targets = Mapping[AttributeSet, int]
Inside = Callable[[AttributeSet], Iterable[AttributeSet]]


class RoundSchedule(Protocol):
    """Division of the budget over rounds.

    Attributes
    ----------
    selecting : Fraction
        Share of a round that pays for its selections.
    penalty : float
        Multiple of the expected noise that is subtracted from a distance.
    isotropic : bool
        Whether a set is measured with equal noise in every cell, not by conditional ResidualPlanner.
    """

    @property
    def isotropic(self) -> bool: ...
    @property
    def selecting(self) -> Fraction: ...
    @property
    def penalty(self) -> float: ...
    @property
    def fewer_candidates(self) -> str:
        """Advice in error messages on how to reduce the number of candidates."""

    def sizes(self, attributes: int) -> tuple[int, int]:
        """Return the smallest and the largest number of attributes of a candidate."""

    def one_way_cost(self, beta: Fraction, attributes: int, candidates: int) -> Fraction:
        """Return β of each 1-way."""

    @property
    def largest(self) -> int:
        """Largest number of attributes of candidates with few cells, beyond those of `sizes`."""

    def law_degrees(self, attributes: int, largest: int) -> range:
        """Return the numbers of attributes of the sets that have selections of their own.

        `attributes` is the number of attributes, `largest` that of the largest target.
        """

    def law_cells(self, largest: int) -> int:
        """Return the most cells of a law; `largest` are those of the largest candidate of the rounds."""

    @property
    def grows(self) -> bool:
        """Whether laws grow from confirmed sets."""

    def first_step(self, beta: Fraction, attributes: int, weights: Targets, reserved: Fraction) -> Fraction:
        """Return β of a measurement with its selection if all steps are even.

        `weights` are those of the candidates, `reserved` is the share of β for laws.
        """

    def leading(self, weights: Targets) -> tuple[AttributeSet, ...]:
        """Return the candidates that the first round measures without a selection."""

    def weights(self, candidates: Sequence[AttributeSet], targets: Targets, inside: Inside) -> dict[AttributeSet, int]:
        """Return the weight of each candidate from those of the targets; `inside` gives the candidates in a target."""

    def first_share(self, noise: float) -> Fraction:
        """Return the first step as a share of an even one, for pairs with such noise (L1 over records)."""

    def offers_larger(self, noise: float, share: Fraction) -> bool:
        """Return whether a larger set with such noise is offered; `share` is that of the first step."""

    def allows_empty(self, moved: Iterable[float], noise: Iterable[float]) -> bool:
        """Return whether the empty set may be selected, given the effects of all measurements so far."""

    def one_way_share(self, moved: Iterable[float], noise: Iterable[float], ones: float) -> Fraction:
        """Return the share of the remaining budget for repeated 1-ways; `ones` is the noise of the 1-ways."""

    def batch(self, weights: Targets, share: Fraction) -> int:
        """Return the number of measurements per round, at steps of such a share of an even one."""

    def shares(self, cells: Sequence[int]) -> list[Fraction]:
        """Return the shares of the budget of measurements with such numbers of cells."""

    def next_step(self, step: Fraction, moved: Iterable[float], noise: Iterable[float]) -> Fraction:
        """Return β of the next step: more after a round that changed the estimates by no more than its noise."""


class EvenSchedule:
    """Schedule with even steps and shares that offers all candidates and does not repeat 1-ways."""

    largest = 0
    isotropic = False
    grows = False

    def law_degrees(self, attributes: int, largest: int) -> range:
        return range(0)

    def law_cells(self, largest: int) -> int:
        return 0

    def leading(self, weights: Targets) -> tuple[AttributeSet, ...]:
        return ()

    def shares(self, cells: Sequence[int]) -> list[Fraction]:
        return [Fraction(1, len(cells))] * len(cells)

    def first_share(self, noise: float) -> Fraction:
        return Fraction(1)

    def offers_larger(self, noise: float, share: Fraction) -> bool:
        return True

    def allows_empty(self, moved: Iterable[float], noise: Iterable[float]) -> bool:
        return False

    def one_way_share(self, moved: Iterable[float], noise: Iterable[float], ones: float) -> Fraction:
        return Fraction(0)


@dataclass(frozen=True)
class PublishedSchedule(EvenSchedule):
    """Schedule of AIM and AIM+GReM: one set per round; any subset of a target is a candidate.

    The weights are Σ_π w_π |γ ∩ π|. The 1-ways and every round have an even part of the budget for T rounds, which
    grows after an uninformative round: T = 16 d for d attributes in AIM, T = 2 |W↓| in AIM+GReM, where |W↓| is the
    number of candidates and the empty set.

    Attributes
    ----------
    selecting : Fraction
    penalty : float
    isotropic : bool
    rounds_per_attribute : int
        T divided by the number of attributes; 0 for 2 |W↓| rounds.
    fewer_candidates : str
    """

    selecting: Fraction = Fraction(1, 10)
    penalty: float = 1.0
    isotropic: bool = False
    rounds_per_attribute: int = 0
    fewer_candidates: str = "use smaller marginals, or set mechanism.published = false"

    def sizes(self, attributes: int) -> tuple[int, int]:
        return 1, attributes

    def one_way_cost(self, beta: Fraction, attributes: int, candidates: int) -> Fraction:
        """Return 1/σ0² with σ0² = T/(1.8 ρ), ρ = β/2."""
        rounds = self.rounds_per_attribute * attributes or 2 * (candidates + 1)
        return (1 - self.selecting) * beta / rounds

    def first_step(self, beta: Fraction, attributes: int, weights: Targets, reserved: Fraction) -> Fraction:
        return self.one_way_cost(beta, attributes, len(weights)) / (1 - self.selecting)

    def weights(self, candidates: Sequence[AttributeSet], targets: Targets, inside: Inside) -> dict[AttributeSet, int]:
        return by_overlap(candidates, targets)

    def batch(self, weights: Targets, share: Fraction) -> int:
        return 1

    def next_step(self, step: Fraction, moved: Iterable[float], noise: Iterable[float]) -> Fraction:
        return 4 * step if count_uninformative(moved, noise, 1.0) else step


@dataclass(frozen=True)
class BatchedSchedule:
    """Schedule of pairs in `rounds` batches, and sets of up to `degree` attributes; defaults chosen by benchmarks.

    Attributes
    ----------
    ones : Fraction
        Share of β for the 1-ways.
    selecting : Fraction
    penalty : float
    patience : float
        A measurement is uninformative if it changes the estimates by at most this share of its noise.
    growth : int
        Factor of the step after an uninformative round.
    rounds : int
    degree : int
    revision : int
        1 is that of older plans: it has no leading pairs, an even step for every pair whatever its weight, no
        selections of sets of three beyond MOST_ATTRIBUTES attributes, and no laws that grow.
    fewer_candidates : str
    """

    ones: Fraction = Fraction(3, 10)
    selecting: Fraction = Fraction(1, 10)
    penalty: float = 0.375
    patience: float = 0.5
    growth: int = 2
    rounds: int = 9
    degree: int = DEGREE
    revision: int = 2
    fewer_candidates: str = FEWER
    isotropic: bool = False

    @property
    def largest(self) -> int:
        return min(self.degree, DEGREE)

    @property
    def grows(self) -> bool:
        return self.revision > 1

    def law_degrees(self, attributes: int, largest: int) -> range:
        """Return the degrees above DEGREE; DEGREE too where its sets could not compete and a target has so many."""
        competing = attributes <= MOST_ATTRIBUTES or largest < DEGREE or self.revision == 1
        return range(DEGREE + competing, self.degree + 1)

    def law_cells(self, largest: int) -> int:
        return MOST_LARGER_CELLS if self.revision == 1 else max(largest, LAW_CELLS)

    def sizes(self, attributes: int) -> tuple[int, int]:
        return 2, 2

    def one_way_cost(self, beta: Fraction, attributes: int, candidates: int) -> Fraction:
        """Return an even part of the 1-ways' share, or of all of β if there are no candidates."""
        return (self.ones if candidates else Fraction(1)) * beta / attributes

    def first_step(self, beta: Fraction, attributes: int, weights: Targets, reserved: Fraction) -> Fraction:
        """Return an even part of the budget that the 1-ways and the laws leave, for the effective number of pairs."""
        spent = attributes * self.one_way_cost(beta, attributes, len(weights)) + reserved * beta
        return (beta - spent) / self.effective_pairs(weights)

    def effective_pairs(self, weights: Targets) -> int:
        """Return (Σ w)² / Σ w² of the weights of pairs, rounded: their number if all weights are equal.

        It is at least 1, and so many that the leading pairs cost at most three quarters of even steps.
        """
        pairs = [weight for names, weight in weights.items() if len(names) == 2]
        if not pairs or self.revision == 1:
            return max(len(pairs), 1)
        effective = round(Fraction(sum(pairs) ** 2, sum(weight**2 for weight in pairs)))
        return max(effective, math.ceil(len(self.leading(weights)) / LEADING_SHARE))

    def leading(self, weights: Targets) -> tuple[AttributeSet, ...]:
        """Return the pairs of at least LEADING of the largest weight, if they are at most half of the pairs."""
        pairs = {names: weight for names, weight in weights.items() if len(names) == 2}
        least = LEADING * max(pairs.values(), default=0)
        heavy = tuple(names for names, weight in pairs.items() if weight >= least)
        return heavy if 2 * len(heavy) <= len(pairs) and self.revision > 1 else ()

    def weights(self, candidates: Sequence[AttributeSet], targets: Targets, inside: Inside) -> dict[AttributeSet, int]:
        """Return Σ w_π over the targets π that contain γ."""
        summed = dict.fromkeys(candidates, 0)
        for target, weight in targets.items():
            for names in inside(target):
                if names in summed:
                    summed[names] += weight
        return summed

    def first_share(self, noise: float) -> Fraction:
        """Return the share rounded to sixteenths, so that the last bits of floating point numbers rarely matter."""
        return max(CHEAPEST, min(Fraction(1), Fraction(round(SIXTEENTHS * noise / EVEN), SIXTEENTHS)))

    def offers_larger(self, noise: float, share: Fraction) -> bool:
        """Return whether the noise is at most OFFERED at even steps, up to twice that at the cheapest."""
        return noise <= OFFERED * float(1 + (1 - share) / (1 - CHEAPEST))

    def allows_empty(self, moved: Iterable[float], noise: Iterable[float]) -> bool:
        moved = list(moved)
        return count_uninformative(moved, noise, self.patience) == len(moved)

    def one_way_share(self, moved: Iterable[float], noise: Iterable[float], ones: float) -> Fraction:
        """Return a share that grows with the number of measurements that moved estimates by no more than their noise.

        It is 0 unless the 1-ways are noisy (`ones`) or all measurements are such.
        """
        moved = list(moved)
        uninformative = count_uninformative(moved, noise, self.patience)
        wanted = ones > NOISY_ONES or uninformative == len(moved)
        return max(Fraction(0), Fraction(2 * uninformative - len(moved), len(moved) + DOUBT)) * wanted

    def batch(self, weights: Targets, share: Fraction) -> int:
        """Return 1 / `rounds` of the effective pairs at even steps, up to WIDEST times as many at cheap ones."""
        wider = 1 + (WIDEST - 1) * (1 - min(share, Fraction(1))) / (1 - CHEAPEST)
        return max(1, math.ceil(self.effective_pairs(weights) * wider / self.rounds))

    def shares(self, cells: Sequence[int]) -> list[Fraction]:
        """Return shares ∝ n^⅔, rounded to 1/4,096 of the share of one cell.

        PART is the precision of a share; equal numbers of cells have equal shares.
        """
        parts = [round(PART * count ** (2 / 3)) for count in cells]
        whole = sum(parts)
        share_of = {part: Fraction(part, whole) for part in set(parts)}
        return [share_of[part] for part in parts]

    def next_step(self, step: Fraction, moved: Iterable[float], noise: Iterable[float]) -> Fraction:
        moved = list(moved)
        return self.growth * step if 2 * count_uninformative(moved, noise, self.patience) > len(moved) else step


def law_share(degree: int) -> Fraction:
    """Return the share of the budget that is reserved for the laws of a degree."""
    return LAW_SHARE if degree > DEGREE else TRIPLE_SHARE


def by_overlap(candidates: Sequence[AttributeSet], targets: Targets) -> dict[AttributeSet, int]:
    """Return Σ_π w_π |γ ∩ π| of every candidate γ, computed as a sum over its attributes."""
    alone: dict[str, int] = {}
    for target, weight in targets.items():
        for name in target:
            alone[name] = alone.get(name, 0) + weight
    return {names: sum(alone[name] for name in names) for names in candidates}


def count_uninformative(moved: Iterable[float], noise: Iterable[float], patience: float) -> int:
    """Return the number of measurements that changed the estimates by no more than `patience` times their noise."""
    return sum(change <= patience * expected for change, expected in zip(moved, noise, strict=True))


MOST_CANDIDATES = 4 * 10**6  # about 2 GB in the driver; all pairs of 2,828 attributes
MOST_LARGER, MOST_LARGER_CELLS = 1 << 12, 1 << 25  # all are compared with the estimates in every round
MOST_LAWS, LAW_CELLS = 10**5, 1 << 16  # laws of a degree; cells of a law, unless a candidate of the rounds has more
MOST_ATTRIBUTES = 34  # beyond, a pair is in so many targets that no larger set can compete with it
OWN_SCHEDULE, OWN_BELIEFS = BatchedSchedule(), EntropyEstimator()


def _never(names: AttributeSet) -> bool:
    """Return False: no set follows from a public total."""
    return False


@dataclass(frozen=True, eq=False)
class Setting:
    """Public parameters of an adaptive run.

    Attributes
    ----------
    sizes : mapping of str to int
        Number of cells of every attribute.
    targets : tuple of AttributeSet
        Marginals of the workload.
    beta : Fraction
        Budget, squared μ.
    rows_per_unit : int
        Largest number of records of one protected unit; sensitivities are proportional to it.
    schedule : RoundSchedule
    estimator : Estimator
    target_weights : tuple of int
        Positive integers, one for each target; () for 1 each.
    strategies : mapping of str to Factor
        Strategies of the 1-ways that are not measured cell by cell.
    queries : QueryCandidates or None
        Listed queries of the workload; None if there are none.
    above : mapping of str to AttributeSet
        Levels above an attribute in its hierarchy. Candidates inside a target may have one in the place of it.
    is_known : callable
        Whether a set follows from a public total, so that it is no candidate.
    state : callable or None
        Makes the states of the rounds, a subclass of `AimState`; None for `AimState` itself.
    prior : tuple of AttributeSet
        Candidates of a public structure, which the first round measures without a selection.
    """

    sizes: Mapping[str, int]
    targets: tuple[AttributeSet, ...]
    beta: Fraction
    rows_per_unit: int = 1
    schedule: RoundSchedule = OWN_SCHEDULE
    estimator: Estimator = OWN_BELIEFS
    target_weights: tuple[int, ...] = ()
    strategies: Mapping[str, Factor] = field(default_factory=dict)
    queries: QueryCandidates | None = None
    above: Mapping[str, AttributeSet] = field(default_factory=dict)
    is_known: Callable[[AttributeSet], bool] = _never
    state: Callable[..., Any] | None = None
    prior: tuple[AttributeSet, ...] = ()

    def __post_init__(self) -> None:
        """Refuse attributes of one cell, a workload without attributes, and a budget that is no positive fraction."""
        small = next((name for name in self.names if self.sizes[name] < 2), None)
        if small is not None:
            raise PlanError("workload", f"{small}, an attribute of one cell", "attributes of two cells and more",
                            "remove it: it has no information")  # fmt: skip
        if not self.targets or not any(self.targets):
            raise PlanError("workload", "no attribute set", "one marginal at least", "add a family to the workload")
        if not isinstance(self.beta, Fraction) or self.beta <= 0:
            raise PlanError("privacy", f"a budget of {self.beta}", "an exact fraction above 0", "give more budget")

    @cached_property
    def names(self) -> AttributeSet:
        """Attributes of any target and the levels above them, in the order of `sizes`."""
        used = set[str]()
        for names in self.targets:
            for name in names:
                used.update((name, *self.above.get(name, ())))
        return tuple(name for name in self.sizes if name in used)

    @cached_property
    def candidates(self) -> tuple[AttributeSet, ...]:
        """Candidates of the rounds, then the sets that may be selected as laws."""
        return (*self.round_candidates, *(names for sets in self.laws.values() for names in sets))

    @cached_property
    def laws(self) -> dict[int, tuple[AttributeSet, ...]]:
        """Sets that may be selected as laws, by their number of attributes, whether or not they are in a target.

        If there are too many, those of the attributes with the fewest cells: MOST_LAWS sets at most, and the smallest
        of these with MOST_LARGER_CELLS in total. Sets that follow from others (`is_determined`) or are known are left
        out, as are those with two levels of a hierarchy and large ones (`law_cells`). There are no laws without
        candidates of rounds, because the 1-ways then receive the whole budget.
        """
        if not self.round_candidates:
            return {}
        most = self.schedule.law_cells(max(map(self._product, self.round_candidates)))
        return {degree: self._laws_of(degree, most) for degree in self.law_degrees}

    def _laws_of(self, degree: int, most: int) -> tuple[AttributeSet, ...]:
        """Return the laws of a degree with at most `most` cells each."""
        sets = combinations(self.ordered(self._fewest_cells(degree)), degree)
        return self._small(
            [names for names in sets if self._product(names) <= most and self._is_open(names)], MOST_LAWS
        )

    @cached_property
    def law_degrees(self) -> range:
        """Numbers of attributes of the sets that have selections of their own."""
        return self.schedule.law_degrees(len(self.names), max(map(len, self.targets)))

    def _is_open(self, names: AttributeSet) -> bool:
        """Return whether a set has information of its own: it has one level of a hierarchy and follows from nothing."""
        return not (self._has_two_levels(names) or self.estimator.is_determined(names) or self.is_known(names))

    def grown_laws(self, degree: int, confirmed: Iterable[AttributeSet]) -> tuple[AttributeSet, ...]:
        """Return the sets of a degree that are no candidates and have one attribute more than a confirmed set.

        At most MOST_LAWS of them, those with the fewest cells; none has more cells than the largest candidate, for
        which the memory was checked before the run.

        Parameters
        ----------
        degree : int
            Number of attributes of the sets, one of the degrees of laws.
        confirmed : iterable of AttributeSet
            Sets of `degree` − 1 attributes.
        """
        larger = {self.ordered([*names, name]) for names in confirmed for name in self.names if name not in names}
        grown = sorted((names for names in larger if self._may_grow(names)), key=self.place)
        return self._small(grown, MOST_LAWS)

    def _may_grow(self, names: AttributeSet) -> bool:
        is_new = self.schedule.grows and names not in self._known_candidates
        return is_new and self._product(names) <= self._most_cells and self._is_open(names)

    @cached_property
    def _known_candidates(self) -> frozenset[AttributeSet]:
        return frozenset(self.candidates)

    @cached_property
    def _most_cells(self) -> int:
        """Cells of the largest candidate."""
        return max((self._product(names) for names in self.candidates), default=0)

    def may_select(self, names: AttributeSet) -> bool:
        """Return whether a round of some run can select a set: a candidate, or a law that grows from a smaller set."""
        is_law = len(names) in self.laws
        return names in self._known_candidates or (is_law and names == self.ordered(names) and self._may_grow(names))

    def _fewest_cells(self, degree: int) -> list[str]:
        """Return the attributes with the fewest cells, so many that their sets of a degree are at most MOST_LAWS."""
        ordered = sorted(self.names, key=lambda name: (self.sizes[name], self._position[name]))
        most = len(ordered)
        while math.comb(most, degree) > MOST_LAWS:
            most -= 1
        return ordered[:most]

    def _product(self, names: AttributeSet) -> int:
        return math.prod(self.sizes[name] for name in names)

    def law_step(self, degree: int) -> Fraction:
        """Return β of one selection of a law of a degree, with its measurement."""
        return law_share(degree) * self.beta / LAW_STEPS

    @cached_property
    def round_candidates(self) -> tuple[AttributeSet, ...]:
        """Subsets of the targets with sizes of the schedule, smallest first, then in the order of `sizes`.

        Of the larger sets, only those with the fewest cells: at most MOST_LARGER, with MOST_LARGER_CELLS in total.

        Sets that rules determine or that are public are no candidates; `_always` is the degree up to which all are
        offered.
        """
        inside: set[AttributeSet] = set()
        for names in self.targets:
            inside.update(islice(self.inside(names), MOST_CANDIDATES + 1))
            if len(inside) > MOST_CANDIDATES:
                raise PlanError(
                    "workload", f"over {MOST_CANDIDATES:,} candidate sets", "fewer", self.schedule.fewer_candidates
                )

        inside = {names for names in inside if not (self.estimator.is_determined(names) or self.is_known(names))}
        ordered = sorted(inside, key=self.place)
        larger = [names for names in ordered if len(names) > self._always]
        return tuple(names for names in ordered if len(names) <= self._always) + self._small(larger, MOST_LARGER)

    @cached_property
    def _position(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.sizes)}

    def place(self, names: AttributeSet) -> tuple[int, list[int]]:
        """Return the sort key of a candidate."""
        return len(names), [self._position[name] for name in names]

    def _small(self, larger: Sequence[AttributeSet], most: int) -> tuple[AttributeSet, ...]:
        """Return the sets with the fewest cells, in order: at most `most`, with MOST_LARGER_CELLS in total."""
        cells = {names: self._product(names) for names in larger}
        fewest = sorted(larger, key=cells.__getitem__)[:most]
        totals = accumulate(cells[names] for names in fewest)
        chosen = {names for names, total in zip(fewest, totals, strict=True) if total <= MOST_LARGER_CELLS}
        return tuple(names for names in larger if names in chosen)

    @property
    def _always(self) -> int:
        """Largest number of attributes of a set that is a candidate regardless of its cells."""
        return self.schedule.sizes(len(self.names))[1]

    @cached_property
    def _most(self) -> int:
        """Largest number of attributes of any candidate, such that the candidates can be enumerated.

        The number of candidates is counted before any is listed.
        """
        most = self._always
        if len(self.names) > MOST_ATTRIBUTES:
            return most
        while most < self.schedule.largest and self._counted(most + 1) <= MOST_CANDIDATES:
            most += 1
        return most

    def _counted(self, most: int) -> int:
        """Return the number of larger subsets of all targets, counted once per target."""
        sizes = range(self._always + 1, most + 1)
        return sum(math.comb(len(names), size) for names in self.targets for size in sizes)

    def inside(self, target: Sequence[str]) -> Iterator[AttributeSet]:
        """Return the subsets of a target that have the size of a candidate.

        Levels above a level of a hierarchy belong to the target too; a set has at most one level of each.
        """
        least = self.schedule.sizes(len(self.names))[0]
        ordered = self.ordered([level for name in target for level in (name, *self.above.get(name, ()))])
        sets = chain.from_iterable(combinations(ordered, size) for size in range(least, self._most + 1))
        return sets if len(ordered) == len(target) else (names for names in sets if not self._has_two_levels(names))

    def _has_two_levels(self, names: AttributeSet) -> bool:
        return any(level in names for name in names for level in self.above.get(name, ()))

    @cached_property
    def weights(self) -> dict[AttributeSet, int]:
        """Weight of each candidate over all targets."""
        each = self.target_weights or (1,) * len(self.targets)
        targets = dict(zip(self.targets, each, strict=True))
        return self.schedule.weights(self.round_candidates, targets, self.inside)

    def classes(self, groups: Mapping[str, Groups]) -> dict[AttributeSet, CellClasses]:
        """Return the classes of cells over groups that no query distinguishes, of the candidates that have such."""
        return {} if self.queries is None else self.queries.over(self.round_candidates, groups)

    def runs(self, name: str) -> Groups | None:
        """Return the runs of cells that no query distinguishes; None if all cells are."""
        return None if self.queries is None else self.queries.runs(name)

    @cached_property
    def one_way_cost(self) -> Fraction:
        """β of each 1-way."""
        return self.schedule.one_way_cost(self.beta, len(self.names), len(self.round_candidates))

    @cached_property
    def first_step(self) -> Fraction:
        """β of a measurement with its selection in the first round."""
        reserved = sum(map(law_share, self.law_degrees), Fraction(0)) if self.weights else Fraction(0)
        return self.schedule.first_step(self.beta, len(self.names), self.weights, reserved)

    @cached_property
    def first_sets(self) -> tuple[AttributeSet, ...]:
        """Sets that the first round measures without a selection: those of a public structure, or the leading pairs."""
        return self.prior or self.schedule.leading(self.weights)

    def batch(self, step: Fraction) -> int:
        """Return the number of measurements per round if each costs `step` including its selection."""
        return min(self.schedule.batch(self.weights, step / self.first_step), len(self.round_candidates))

    def ordered(self, names: Sequence[str]) -> AttributeSet:
        return tuple(sorted(self._places.keys() & names, key=self._places.__getitem__))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.sizes)}
