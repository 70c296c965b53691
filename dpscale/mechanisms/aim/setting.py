"""Public parameters of an adaptive run, fixed before it starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import accumulate, chain, combinations, islice

from dpscale.base.errors import PlanError
from dpscale.base.numerics import AttributeSet
from dpscale.mechanisms.aim.estimators import EntropyEstimator, Estimator
from dpscale.mechanisms.aim.schedule import BatchedSchedule, RoundSchedule
from dpscale.plans.factor import Factor
from dpscale.workload.query_classes import CellClasses, QueryCandidates
from dpscale.workload.residual.in_axis import Groups

MOST_CANDIDATES = 4 * 10**6  # about 2 GB in the driver; all pairs of 2,828 attributes
MOST_LARGER, MOST_LARGER_CELLS = 1 << 12, 1 << 25  # all are compared with the estimates in every round
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

    def __post_init__(self) -> None:
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
        used = {one for names in self.targets for name in names for one in (name, *self.above.get(name, ()))}
        return tuple(name for name in self.sizes if name in used)

    @cached_property
    def candidates(self) -> tuple[AttributeSet, ...]:
        """Subsets of the targets with sizes of the schedule, smallest first, then in the order of `sizes`.

        Of the larger sets, only those with the fewest cells: at most MOST_LARGER, with MOST_LARGER_CELLS in total.
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
        return tuple(names for names in ordered if len(names) <= self._always) + self._small(ordered)

    @cached_property
    def _position(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.sizes)}

    def place(self, names: AttributeSet) -> tuple[int, list[int]]:
        """Return the sort key of a candidate."""
        return len(names), [self._position[name] for name in names]

    def _small(self, ordered: Sequence[AttributeSet]) -> tuple[AttributeSet, ...]:
        """Return the larger sets with few cells, in order."""
        larger = [names for names in ordered if len(names) > self._always]
        cells = {names: math.prod(self.sizes[name] for name in names) for names in larger}
        fewest = sorted(larger, key=cells.__getitem__)[:MOST_LARGER]
        chosen = {names for names, sofar in zip(fewest, accumulate(cells[names] for names in fewest), strict=True)
                if sofar <= MOST_LARGER_CELLS}  # fmt: skip
        return tuple(names for names in larger if names in chosen)

    @property
    def _always(self) -> int:
        """Largest number of attributes of a set that is a candidate regardless of its cells."""
        return self.schedule.sizes(len(self.names))[1]

    @cached_property
    def _most(self) -> int:
        """Largest number of attributes of any candidate, such that the candidates can be enumerated."""
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
        """Return the subsets of a target that have the size of a candidate."""
        least = self.schedule.sizes(len(self.names))[0]
        ordered = self.ordered([one for name in target for one in (name, *self.above.get(name, ()))])
        found = chain.from_iterable(combinations(ordered, size) for size in range(least, self._most + 1))
        return found if len(ordered) == len(target) else (names for names in found if not self._has_two_levels(names))

    def _has_two_levels(self, names: AttributeSet) -> bool:
        return any(one in names for name in names for one in self.above.get(name, ()))

    @cached_property
    def weights(self) -> dict[AttributeSet, int]:
        """Weight of each candidate over all targets."""
        each = self.target_weights or (1,) * len(self.targets)
        targets = dict(zip(self.targets, each, strict=True))
        return self.schedule.weights(self.candidates, targets, self.inside)

    def classes(self, groups: Mapping[str, Groups]) -> dict[AttributeSet, CellClasses]:
        """Return the classes of cells over groups that no query distinguishes, of the candidates that have such."""
        return {} if self.queries is None else self.queries.over(self.candidates, groups)

    def runs(self, name: str) -> Groups | None:
        """Return the runs of cells that no query distinguishes; None if all cells are."""
        return None if self.queries is None else self.queries.runs(name)

    @cached_property
    def one_way_cost(self) -> Fraction:
        """β of each 1-way."""
        return self.schedule.one_way_cost(self.beta, len(self.names), len(self.candidates))

    @cached_property
    def first_step(self) -> Fraction:
        """β of a measurement with its selection in the first round."""
        return self.schedule.first_step(self.beta, len(self.names), self.candidates)

    def batch(self, step: Fraction) -> int:
        """Return the number of measurements per round if each costs `step` including its selection."""
        return min(self.schedule.batch(self.candidates, step / self.first_step), len(self.candidates))

    def ordered(self, names: Sequence[str]) -> AttributeSet:
        return tuple(sorted(self._places.keys() & names, key=self._places.__getitem__))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.sizes)}
