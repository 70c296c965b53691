"""Schedules of AIM runs: the candidates, the cost of the 1-ways and of each step, and the sets per round.

`PublishedSchedule` is that of the papers of AIM and AIM+GReM (algorithm 7). `BatchedSchedule` is our own: pairs in
batches, so that about nine rounds measure every pair once, at a budget that would be even if all pairs were measured.
Sets measured in one round divide its budget by cells: n cells with noise σ have an L1 error of n σ, and Σ n σ is least
for a given Σ 1/σ² if 1/σ² ∝ n^⅔. Four rules, functions of released numbers, change this default:

- *Larger sets.* The noise of a pair is √(2/π) σ · groups over the records. If it is low, larger sets can be estimated:
  steps are cheaper, down to a quarter, and a round measures up to three times as many sets. A larger set is offered if
  its own noise is at most 10 % of the records, or up to 20 % if pairs are estimated precisely.
- *Empty selection.* While all measurements so far were uninformative, the empty set may also be selected.
- *Uninformative rounds.* If most measurements of a round changed the estimates by less than their noise, the next step
  costs twice as much.
- *Repeated 1-ways.* If the 1-ways are noisy, a part of the remaining budget is spent on them again; if all measurements
  were uninformative, regardless of their noise. For v uninformative measurements of n the part is
  (v − (n − v)) / (n + 2), so few measurements have less influence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from dpscale.base.numerics import AttributeSet

DEGREE = 3
FEWER = "use marginals over fewer attributes"
OFFERED, EVEN, CHEAPEST, WIDEST = 0.1, 0.025, Fraction(1, 4), 3
NOISY_ONES, DOUBT, SIXTEENTHS, PART = 0.05, 2, 16, 1 << 12
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

    def first_step(self, beta: Fraction, attributes: int, candidates: Sequence[AttributeSet]) -> Fraction:
        """Return β of a measurement with its selection if all steps are even."""

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

    def batch(self, candidates: Sequence[AttributeSet], share: Fraction) -> int:
        """Return the number of measurements per round, at steps of such a share of an even one."""

    def shares(self, cells: Sequence[int]) -> list[Fraction]:
        """Return the shares of the budget of measurements with such numbers of cells."""

    def next_step(self, step: Fraction, moved: Iterable[float], noise: Iterable[float]) -> Fraction:
        """Return β of the next step: more after a round that changed the estimates by no more than its noise."""


class EvenSchedule:
    """Schedule with even steps and shares that offers all candidates and does not repeat 1-ways."""

    largest = 0
    isotropic = False

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

    def first_step(self, beta: Fraction, attributes: int, candidates: Sequence[AttributeSet]) -> Fraction:
        return self.one_way_cost(beta, attributes, len(candidates)) / (1 - self.selecting)

    def weights(self, candidates: Sequence[AttributeSet], targets: Targets, inside: Inside) -> dict[AttributeSet, int]:
        return by_overlap(candidates, targets)

    def batch(self, candidates: Sequence[AttributeSet], share: Fraction) -> int:
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
    fewer_candidates : str
    """

    ones: Fraction = Fraction(3, 10)
    selecting: Fraction = Fraction(1, 10)
    penalty: float = 0.375
    patience: float = 0.5
    growth: int = 2
    rounds: int = 9
    degree: int = DEGREE
    fewer_candidates: str = FEWER
    isotropic: bool = False

    @property
    def largest(self) -> int:
        return self.degree

    def sizes(self, attributes: int) -> tuple[int, int]:
        return 2, 2

    def one_way_cost(self, beta: Fraction, attributes: int, candidates: int) -> Fraction:
        """Return an even part of the 1-ways' share, or of all of β if there are no candidates."""
        return (self.ones if candidates else Fraction(1)) * beta / attributes

    def first_step(self, beta: Fraction, attributes: int, candidates: Sequence[AttributeSet]) -> Fraction:
        """Return an even part for every pair of the budget that the 1-ways leave."""
        return (beta - attributes * self.one_way_cost(beta, attributes, len(candidates))) / max(_pairs(candidates), 1)

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
        moved = list(moved)
        uninformative = count_uninformative(moved, noise, self.patience)
        wanted = ones > NOISY_ONES or uninformative == len(moved)
        return max(Fraction(0), Fraction(2 * uninformative - len(moved), len(moved) + DOUBT)) * wanted

    def batch(self, candidates: Sequence[AttributeSet], share: Fraction) -> int:
        """Return 1 / `rounds` of the pairs at even steps, up to WIDEST times as many at cheap ones."""
        wider = 1 + (WIDEST - 1) * (1 - min(share, Fraction(1))) / (1 - CHEAPEST)
        return max(1, math.ceil(_pairs(candidates) * wider / self.rounds))

    def shares(self, cells: Sequence[int]) -> list[Fraction]:
        """Return shares ∝ n^⅔, rounded to 1/4,096 of the share of one cell."""
        parts = [round(PART * count ** (2 / 3)) for count in cells]
        whole = sum(parts)
        share_of = {part: Fraction(part, whole) for part in set(parts)}
        return [share_of[part] for part in parts]

    def next_step(self, step: Fraction, moved: Iterable[float], noise: Iterable[float]) -> Fraction:
        moved = list(moved)
        return self.growth * step if 2 * count_uninformative(moved, noise, self.patience) > len(moved) else step


def _pairs(candidates: Sequence[AttributeSet]) -> int:
    return sum(len(names) == 2 for names in candidates)


def by_overlap(candidates: Sequence[AttributeSet], targets: Targets) -> dict[AttributeSet, int]:
    """Return Σ_π w_π |γ ∩ π| of every candidate γ, computed as a sum over its attributes."""
    alone: dict[str, int] = {}
    for target, weight in targets.items():
        for name in target:
            alone[name] = alone.get(name, 0) + weight
    return {names: sum(alone[name] for name in names) for names in candidates}


def count_uninformative(moved: Iterable[float], noise: Iterable[float], patience: float) -> int:
    """Return the number of measurements that changed the estimates by no more than `patience` times their noise."""
    return sum(one <= patience * other for one, other in zip(moved, noise, strict=True))
