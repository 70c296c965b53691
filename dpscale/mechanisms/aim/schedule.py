"""How an AIM run spends: what is a candidate, what the 1-ways and each step cost, how many sets a round takes.

`Published` is that of AIM+GReM's paper (algorithm 7); `Batched` is our own: pairs in batches, so that about nine rounds
would take every candidate once, each at a budget that would be even if all were measured.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from dpscale.names import AttributeSet

DEGREE = 2
Targets = Mapping[AttributeSet, int]
Inside = Callable[[AttributeSet], Iterable[AttributeSet]]


class RoundSchedule(Protocol):
    """`selecting`: the share of a round that pays its selections; `penalty`: how much of its noise a score gives up."""

    @property
    def selecting(self) -> Fraction: ...
    @property
    def penalty(self) -> float: ...
    @property
    def fewer(self) -> str:
        """What makes fewer candidates."""

    def sizes(self, attributes: int) -> tuple[int, int]:
        """The fewest and the most attributes of a candidate."""

    def one_way_cost(self, beta: Fraction, attributes: int, candidates: int) -> Fraction:
        """β of each 1-way."""

    def first_step(self, beta: Fraction, attributes: int, candidates: int) -> Fraction:
        """β of a measurement with its selection in the first round."""

    def weights(self, candidates: Sequence[AttributeSet], targets: Targets, inside: Inside) -> dict[AttributeSet, int]:
        """How much each candidate counts, by the weights of the targets. `inside`: the candidates within a target."""

    def batch(self, candidates: int) -> int:
        """Measurements a round."""

    def annealed(self, step: Fraction, moved: Iterable[float], noise: Iterable[float]) -> Fraction:
        """The next step's β: more after a round that moved the estimates by no more than its noise."""


@dataclass(frozen=True)
class Published:
    """One set a round; any subset of a target is a candidate; weights Σ_π w_π |γ ∩ π|."""

    selecting: Fraction = Fraction(1, 10)
    penalty: float = 1.0
    fewer: str = "ask for smaller marginals, or set mechanism.published = false"

    def sizes(self, attributes: int) -> tuple[int, int]:
        return 1, attributes

    def one_way_cost(self, beta: Fraction, attributes: int, candidates: int) -> Fraction:
        """1/σ0² with σ0² = |W↓|/(0.9 ρ), ρ = β/2."""
        return Fraction(9, 20) * beta / (candidates + 1)

    def first_step(self, beta: Fraction, attributes: int, candidates: int) -> Fraction:
        return self.one_way_cost(beta, attributes, candidates) / (1 - self.selecting)

    def weights(self, candidates: Sequence[AttributeSet], targets: Targets, inside: Inside) -> dict[AttributeSet, int]:
        return by_overlap(candidates, targets)

    def batch(self, candidates: int) -> int:
        return 1

    def annealed(self, step: Fraction, moved: Iterable[float], noise: Iterable[float]) -> Fraction:
        return 4 * step if vain(moved, noise, 1.0) else step


@dataclass(frozen=True)
class Batched:
    """Sets of 2 … `degree` attributes, in `rounds` batches. The defaults are our best on evidence (benchmarks).

    ones: share of β for the 1-ways. patience: a round whose measurements moved the estimates by less than this share of
    their noise is a vain one. growth: how the budget of a measurement grows after it.
    """

    ones: Fraction = Fraction(3, 10)
    selecting: Fraction = Fraction(1, 10)
    penalty: float = 0.375
    patience: float = 0.5
    growth: int = 2
    rounds: int = 9
    degree: int = DEGREE

    @property
    def fewer(self) -> str:
        return fewer(self.degree)

    def sizes(self, attributes: int) -> tuple[int, int]:
        return 2, self.degree

    def one_way_cost(self, beta: Fraction, attributes: int, candidates: int) -> Fraction:
        """An even part of their share; of all where nothing else is wanted."""
        return (self.ones if candidates else Fraction(1)) * beta / attributes

    def first_step(self, beta: Fraction, attributes: int, candidates: int) -> Fraction:
        return (beta - attributes * self.one_way_cost(beta, attributes, candidates)) / max(candidates, 1)

    def weights(self, candidates: Sequence[AttributeSet], targets: Targets, inside: Inside) -> dict[AttributeSet, int]:
        """Σ w_π over the targets π that hold γ."""
        summed = dict.fromkeys(candidates, 0)
        for target, weight in targets.items():
            for names in inside(target):
                summed[names] += weight
        return summed

    def batch(self, candidates: int) -> int:
        return -(-candidates // self.rounds)

    def annealed(self, step: Fraction, moved: Iterable[float], noise: Iterable[float]) -> Fraction:
        moved = list(moved)
        return self.growth * step if 2 * vain(moved, noise, self.patience) > len(moved) else step


def fewer(degree: int) -> str:
    """What makes fewer candidates of sets of up to `degree` attributes."""
    return f"set mechanism.degree = {DEGREE}" if degree > DEGREE else "ask for marginals over fewer attributes"


def by_overlap(candidates: Sequence[AttributeSet], targets: Targets) -> dict[AttributeSet, int]:
    """Σ_π w_π |γ ∩ π| of every candidate γ: a sum over its attributes."""
    alone: dict[str, int] = {}
    for target, weight in targets.items():
        for name in target:
            alone[name] = alone.get(name, 0) + weight
    return {names: sum(alone[name] for name in names) for names in candidates}


def vain(moved: Iterable[float], noise: Iterable[float], patience: float) -> int:
    """How many measurements moved the estimates by no more than `patience` of their noise."""
    return sum(one <= patience * other for one, other in zip(moved, noise, strict=True))
