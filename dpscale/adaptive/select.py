"""Selection: the exponential mechanism on whole-number scores of exact sensitivity.

score_γ = w_γ (‖μ_γ − μ̂_γ‖₁ − penalty_γ). Estimates are rounded to 1/SCALE first (they are released, so that is free);
then the distance is a whole number of 1/SCALE, computed in integers from exact counts, and a record moves it by at
most SCALE: no floating-point error touches the sensitivity. True scores are private: only `draw_index` meets them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpscale.adaptive.setting import Names
from dpscale.adaptive.shard import SCALE, Distances
from dpscale.privacy.selection import draw_index, scale_for
from dpscale.privacy.staircase import Words

NOISE_L1 = math.sqrt(2 / math.pi)


@dataclass(frozen=True, eq=False)
class Selection:
    """A round's choice, a function of released values: `count` distinct candidates, each draw costing `rho`.

    `cells[γ]`: how many groups' cells a candidate has; `step`: ρ of one measurement.
    """

    round: int
    candidates: tuple[Names, ...]
    weights: Mapping[Names, int]
    cells: Mapping[Names, int]
    count: int
    rho: Fraction
    step: Fraction
    penalty: float
    rows_per_unit: int

    @property
    def sensitivity(self) -> int:
        """How far one unit moves any score."""
        return SCALE * self.rows_per_unit * max(self.weights[names] for names in self.candidates)

    def offset(self, names: Names) -> int:
        """The penalty in units of 1/SCALE: from public numbers only."""
        return round(SCALE * self.penalty * NOISE_L1 * deviation(self.step, self.rows_per_unit) * self.cells[names])

    def record(self, rank: int) -> dict[str, Any]:
        """What names the draw, besides release and snapshot."""
        return {"mechanism": "aim-grem/1", "round": self.round, "rank": rank, "rho": str(self.rho),
                "candidates": len(self.candidates), "sensitivity": str(self.sensitivity)}  # fmt: skip


def deviation(step: Fraction, rows_per_unit: int) -> float:
    """σ_t: the noise of a measurement that costs `step`, if it were one of a whole marginal."""
    return rows_per_unit / math.sqrt(2 * float(step))


class Scores:
    """Distances of candidates, kept until what is believed of them changes. Private; never shown."""

    def __init__(self) -> None:
        self._known: dict[Names, int] = {}

    def missing(self, candidates: Iterable[Names]) -> list[Names]:
        """The candidates whose distance has to be found."""
        return [names for names in candidates if names not in self._known]

    def learn(self, distances: Distances) -> None:
        self._known.update(distances.found)

    def forget(self, sets: Iterable[Names]) -> None:
        for names in sets:
            self._known.pop(names, None)

    def of(self, selection: Selection) -> list[int]:
        """The score of every candidate."""
        return [
            selection.weights[names] * (self._known[names] - selection.offset(names)) for names in selection.candidates
        ]

    def __repr__(self) -> str:
        return "Scores(hidden)"


def draw_chosen(
    selection: Selection, scores: Sequence[int], stream_of: Callable[[dict[str, Any]], Words]
) -> tuple[Names, ...]:
    """`count` candidates, one exponential mechanism after the other, each among those left."""
    left = list(range(len(scores)))
    scale = scale_for(selection.rho, selection.sensitivity)
    chosen = []
    for rank in range(selection.count):
        words = stream_of(selection.record(rank))
        chosen.append(left.pop(draw_index(words, [scores[index] for index in left], scale)))
    return tuple(selection.candidates[index] for index in chosen)
