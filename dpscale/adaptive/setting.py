"""What an adaptive run is asked: public, fixed before it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import chain, combinations, islice

from dpscale.errors import PlanError

Names = tuple[str, ...]
DEGREE = 2
MOST_CANDIDATES = 10**5


@dataclass(frozen=True)
class Options:
    """How the loop goes about it. The defaults are our own best on evidence (benchmarks/adaptive.py).

    published: AIM+GReM as in the paper; nothing below then matters. ones: share of ρ for the 1-ways. selecting: share
    of a round's budget for its selections. grain: groups have √(grain · σ · N) counts at least, σ the noise of a pair
    if all were measured once. penalty: how much of the noise's expected L1 error a score gives up. patience: a round
    whose measurements moved the estimates by less than this share of their noise is a vain one. growth: how the budget
    of a measurement grows after it. rounds: how many rounds would take all candidates once. degree: of the largest
    set measured. chains: passes of `low_order`.
    """

    published: bool = False
    ones: Fraction = Fraction(3, 10)
    selecting: Fraction = Fraction(1, 10)
    grain: float = 0.45
    penalty: float = 0.375
    patience: float = 0.5
    growth: int = 2
    rounds: int = 9
    degree: int = DEGREE
    chains: int = 1


@dataclass(frozen=True, eq=False)
class Setting:
    """Attributes with their sizes, the marginals wanted, and ρ (zCDP).

    rows_per_unit: how many records one protected unit may hold: sensitivities grow by it. target_weights: whole numbers
    above 0, one for each target; () for 1 each.
    """

    sizes: Mapping[str, int]
    targets: tuple[Names, ...]
    rho: Fraction
    rows_per_unit: int = 1
    options: Options = Options()
    target_weights: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        small = next((name for name in self.names if self.sizes[name] < 2), None)
        if small is not None:
            raise PlanError("workload", f"{small}, an attribute of one cell", "attributes of two cells and more",
                            "leave it out: it tells nothing")  # fmt: skip
        if not self.targets or not any(self.targets):
            raise PlanError("workload", "no attribute set", "one marginal at least", "add a family to the workload")
        if not isinstance(self.rho, Fraction) or self.rho <= 0:
            raise PlanError("privacy", f"a budget of {self.rho}", "an exact fraction above 0", "give more budget")

    @cached_property
    def names(self) -> Names:
        """The attributes that any target uses, in the order of `sizes`."""
        used = {name for names in self.targets for name in names}
        return tuple(name for name in self.sizes if name in used)

    @cached_property
    def candidates(self) -> tuple[Names, ...]:
        """What may be selected: as published, all of W↓ but the total; else its sets of 2 … degree attributes.

        Smallest first, and in the order of `sizes`.
        """
        least, most = (1, len(self.names)) if self.options.published else (2, self.options.degree)
        found: set[Names] = set()
        for names in self.targets:
            found.update(islice(self._inside(names, least, most), MOST_CANDIDATES + 1))
            if len(found) > MOST_CANDIDATES:
                raise PlanError("workload", f"over {MOST_CANDIDATES:,} sets to choose among", "fewer",
                                "ask for smaller marginals, or set mechanism.degree = 2")  # fmt: skip
        position = {name: index for index, name in enumerate(self.sizes)}
        return tuple(sorted(found, key=lambda kept: (len(kept), [position[name] for name in kept])))

    def _inside(self, names: Sequence[str], least: int, most: int) -> Iterator[Names]:
        """The subsets of a target of least … most attributes."""
        ordered = self.ordered(names)
        return chain.from_iterable(combinations(ordered, size) for size in range(least, most + 1))

    @cached_property
    def weights(self) -> dict[Names, int]:
        """As published w_γ = Σ_π w_π |γ ∩ π|; else Σ w_π over the targets π ⊇ γ."""
        each = self.target_weights or (1,) * len(self.targets)
        if self.options.published:  # Σ_π w_π |γ ∩ π| is a sum over γ's attributes
            alone = {name: 0 for name in self.names}
            for target, weight in zip(self.targets, each, strict=True):
                for name in target:
                    alone[name] += weight
            return {names: sum(alone[name] for name in names) for names in self.candidates}
        counted = dict.fromkeys(self.candidates, 0)
        for target, weight in zip(self.targets, each, strict=True):
            for kept in self._inside(target, 2, self.options.degree):
                counted[kept] += weight
        return counted

    @property
    def first_step(self) -> Fraction:
        """The budget of a measurement with its selection in the first round."""
        if self.options.published:
            return self.one_way_cost / (1 - self.options.selecting)
        return (self.rho - len(self.names) * self.one_way_cost) / max(len(self.candidates), 1)

    @property
    def one_way_cost(self) -> Fraction:
        """ρ of each 1-way: as published 1/(2σ0²) with σ0² = |W↓|/(0.9 ρ); all of it where nothing else is wanted."""
        if self.options.published:
            return Fraction(9, 20) * self.rho / (len(self.candidates) + 1)
        share = self.options.ones if self.candidates else Fraction(1)
        return share * self.rho / len(self.names)

    @property
    def batch(self) -> int:
        """Measurements a round."""
        return 1 if self.options.published else -(-len(self.candidates) // self.options.rounds)

    def ordered(self, names: Sequence[str]) -> Names:
        return tuple(name for name in self.sizes if name in names)
