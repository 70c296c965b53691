"""How an AIM run spends: what is a candidate, what the 1-ways and each step cost, how many sets a round takes.

`Published` is that of AIM+GReM's paper (algorithm 7); `Batched` is our own: pairs in batches, so that about nine rounds
would take every pair once, at a budget that would be even if all pairs were measured. What is measured together shares
its budget by cells: n cells with noise σ miss n σ in L1, and Σ n σ is least at a given Σ 1/σ² where 1/σ² ∝ n^⅔. Four
rules, all of released numbers, say when to leave that path:

- *Larger sets.* The less noise a pair has, √(2/π) σ · groups over the records, the more can be known of larger sets: a
  step is cheaper then, down to a quarter, and a round takes more of them, up to three times as many. One is offered if
  its own noise would be no more than 15 % of the records, or, where pairs are that well known, up to 30 %.
- *Nothing.* As long as all that was measured was in vain, a choice may also be of nothing.
- *Vain rounds.* Where most of a round moved the estimates by less than their noise, the next step is twice as much.
- *Back to the 1-ways.* And where the 1-ways are noisy themselves, of what is left a part goes to them, the larger the
  more was in vain of all that was measured so far: (v − (n − v)) / (n + 2) for v of n, so that little decides less;
  whatever their noise, where all was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from dpscale.base.display import AttributeSet

DEGREE = 3
FEWER = "ask for marginals over fewer attributes"
OFFERED, EVEN, CHEAPEST, WIDEST = 0.15, 0.025, Fraction(1, 4), 3
NOISY_ONES, DOUBT, SIXTEENTHS, PART = 0.05, 2, 16, 1 << 12
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

    @property
    def largest(self) -> int:
        """The most attributes of a set that is a candidate if it has few cells, beyond those of `sizes`."""

    def first_step(self, beta: Fraction, attributes: int, candidates: Sequence[AttributeSet]) -> Fraction:
        """β of a measurement with its selection, were it even."""

    def weights(self, candidates: Sequence[AttributeSet], targets: Targets, inside: Inside) -> dict[AttributeSet, int]:
        """How much each candidate counts, by the weights of the targets. `inside`: the candidates within a target."""

    def cheaper(self, noise: float) -> Fraction:
        """The share of an even step that is taken first, where pairs have so much noise (L1 over records)."""

    def offers(self, noise: float, share: Fraction) -> bool:
        """Whether a larger set may be chosen whose measurement would bring so much noise; `share`: of `cheaper`."""

    def doubtful(self, moved: Iterable[float], noise: Iterable[float]) -> bool:
        """Whether a choice may be of nothing, after all that was measured so far."""

    def again(self, moved: Iterable[float], noise: Iterable[float], ones: float) -> Fraction:
        """The share of what is left that goes back to the 1-ways after a round; `ones`: their noise, as of `offers`."""

    def batch(self, candidates: Sequence[AttributeSet], share: Fraction) -> int:
        """Measurements a round, at steps of such a share of an even one."""

    def shares(self, cells: Sequence[int]) -> list[Fraction]:
        """How measurements of so many cells share what they are given together."""

    def annealed(self, step: Fraction, moved: Iterable[float], noise: Iterable[float]) -> Fraction:
        """The next step's β: more after a round that moved the estimates by no more than its noise."""


class Plainly:
    """All candidates are offered at even steps, all is shared evenly, and nothing goes back to the 1-ways."""

    largest = 0

    def shares(self, cells: Sequence[int]) -> list[Fraction]:
        return [Fraction(1, len(cells))] * len(cells)

    def cheaper(self, noise: float) -> Fraction:
        return Fraction(1)

    def offers(self, noise: float, share: Fraction) -> bool:
        return True

    def doubtful(self, moved: Iterable[float], noise: Iterable[float]) -> bool:
        return False

    def again(self, moved: Iterable[float], noise: Iterable[float], ones: float) -> Fraction:
        return Fraction(0)


@dataclass(frozen=True)
class Published(Plainly):
    """One set a round; any subset of a target is a candidate; weights Σ_π w_π |γ ∩ π|."""

    selecting: Fraction = Fraction(1, 10)
    penalty: float = 1.0
    fewer: str = "ask for smaller marginals, or set mechanism.published = false"

    def sizes(self, attributes: int) -> tuple[int, int]:
        return 1, attributes

    def one_way_cost(self, beta: Fraction, attributes: int, candidates: int) -> Fraction:
        """1/σ0² with σ0² = |W↓|/(0.9 ρ), ρ = β/2."""
        return Fraction(9, 20) * beta / (candidates + 1)

    def first_step(self, beta: Fraction, attributes: int, candidates: Sequence[AttributeSet]) -> Fraction:
        return self.one_way_cost(beta, attributes, len(candidates)) / (1 - self.selecting)

    def weights(self, candidates: Sequence[AttributeSet], targets: Targets, inside: Inside) -> dict[AttributeSet, int]:
        return by_overlap(candidates, targets)

    def batch(self, candidates: Sequence[AttributeSet], share: Fraction) -> int:
        return 1

    def annealed(self, step: Fraction, moved: Iterable[float], noise: Iterable[float]) -> Fraction:
        return 4 * step if vain(moved, noise, 1.0) else step


@dataclass(frozen=True)
class Batched:
    """Pairs in `rounds` batches, and sets of up to `degree` attributes. The defaults are our best on evidence.

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
    fewer: str = FEWER

    @property
    def largest(self) -> int:
        return self.degree

    def sizes(self, attributes: int) -> tuple[int, int]:
        return 2, 2

    def one_way_cost(self, beta: Fraction, attributes: int, candidates: int) -> Fraction:
        """An even part of their share; of all where nothing else is wanted."""
        return (self.ones if candidates else Fraction(1)) * beta / attributes

    def first_step(self, beta: Fraction, attributes: int, candidates: Sequence[AttributeSet]) -> Fraction:
        """What the 1-ways leave, a part for every pair."""
        return (beta - attributes * self.one_way_cost(beta, attributes, len(candidates))) / max(_pairs(candidates), 1)

    def weights(self, candidates: Sequence[AttributeSet], targets: Targets, inside: Inside) -> dict[AttributeSet, int]:
        """Σ w_π over the targets π that hold γ."""
        summed = dict.fromkeys(candidates, 0)
        for target, weight in targets.items():
            for names in inside(target):
                if names in summed:
                    summed[names] += weight
        return summed

    def cheaper(self, noise: float) -> Fraction:
        """In sixteenths, so that last bits of floats hardly ever matter."""
        return max(CHEAPEST, min(Fraction(1), Fraction(round(SIXTEENTHS * noise / EVEN), SIXTEENTHS)))

    def offers(self, noise: float, share: Fraction) -> bool:
        """From OFFERED at even steps to twice that at the cheapest, where pairs are so well known."""
        return noise <= OFFERED * float(1 + (1 - share) / (1 - CHEAPEST))

    def doubtful(self, moved: Iterable[float], noise: Iterable[float]) -> bool:
        moved = list(moved)
        return vain(moved, noise, self.patience) == len(moved)

    def again(self, moved: Iterable[float], noise: Iterable[float], ones: float) -> Fraction:
        moved = list(moved)
        in_vain = vain(moved, noise, self.patience)
        wanted = ones > NOISY_ONES or in_vain == len(moved)
        return max(Fraction(0), Fraction(2 * in_vain - len(moved), len(moved) + DOUBT)) * wanted

    def batch(self, candidates: Sequence[AttributeSet], share: Fraction) -> int:
        """A ninth of the pairs (1 / `rounds`) at even steps, up to WIDEST times as many at cheap ones."""
        wider = 1 + (WIDEST - 1) * (1 - min(share, Fraction(1))) / (1 - CHEAPEST)
        return max(1, math.ceil(_pairs(candidates) * wider / self.rounds))

    def shares(self, cells: Sequence[int]) -> list[Fraction]:
        """∝ n^⅔, in 4,096ths of a cell's."""
        parts = [round(PART * count ** (2 / 3)) for count in cells]
        return [Fraction(part, sum(parts)) for part in parts]

    def annealed(self, step: Fraction, moved: Iterable[float], noise: Iterable[float]) -> Fraction:
        moved = list(moved)
        return self.growth * step if 2 * vain(moved, noise, self.patience) > len(moved) else step


def _pairs(candidates: Sequence[AttributeSet]) -> int:
    return sum(len(names) == 2 for names in candidates)


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
