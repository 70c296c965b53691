"""Selection: the exponential mechanism on whole-number scores of exact sensitivity.

Estimates are rounded to 1/SCALE first (they are released, so that is free); then a candidate's distance from what is
believed of it is a whole number of 1/SCALE, computed in integers from exact counts: no floating-point error touches the
sensitivity. A candidate of no attributes is nothing: its score is 0 whatever the table. True scores are private: only
an `Urn` meets them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dpscale.base.names import AttributeSet
from dpscale.measurement.adaptive.shard import Distances
from dpscale.plans.believed import SCALE
from dpscale.plans.planned import Selection
from dpscale.privacy.selection import Urn, scale_for
from dpscale.privacy.staircase import Words


class Scores:
    """Distances of candidates, kept until what is believed of them changes. Private; never shown."""

    def __init__(self) -> None:
        self._known: dict[AttributeSet, int] = {}

    def missing(self, candidates: Iterable[AttributeSet]) -> list[AttributeSet]:
        """The candidates whose distance has to be measured out."""
        return [names for names in candidates if names and names not in self._known]

    def learn(self, distances: Distances) -> None:
        self._known.update(distances.found)

    def forget(self, sets: Iterable[AttributeSet]) -> None:
        for names in sets:
            self._known.pop(names, None)

    def of(self, selection: Selection) -> list[int]:
        """The score of every candidate, in their order: weight · (distance − offset), 0 of nothing."""
        known, weights = self._known, selection.weights
        return [weights[names] * (known[names] - selection.offset(names)) if names else 0
                for names in selection.candidates]  # fmt: skip

    def __repr__(self) -> str:
        return "Scores(hidden)"


def sensitivity(selection: Selection, rows_per_unit: int) -> int:
    """How far one unit moves any score: a record moves a distance by SCALE at most."""
    return SCALE * rows_per_unit * max(selection.weights[names] for names in selection.candidates if names)


def draw_chosen(
    selection: Selection,
    scores: Sequence[int],
    rows_per_unit: int,
    stream_of: Callable[[Mapping[str, Any]], Words],
) -> tuple[AttributeSet, ...]:
    """`count` candidates, one exponential mechanism after the other, each among those that may still be chosen, as
    nothing always may."""
    if not selection.count:
        return ()
    urn = Urn(scores, scale_for(selection.beta, sensitivity(selection, rows_per_unit)))
    chosen: list[AttributeSet] = []
    for rank in range(selection.count):
        if chosen:
            urn.take(selection.lost(chosen))
        place = urn.draw(stream_of(selection.label(rank)))
        chosen.append(selection.candidates[place])
        if chosen[-1]:
            urn.take([place])
    return tuple(chosen)
