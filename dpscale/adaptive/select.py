"""Selection: the exponential mechanism on whole-number scores of exact sensitivity.

score_γ = w_γ (‖μ_γ − μ̂_γ‖₁ − penalty_γ). Estimates are rounded to 1/SCALE first (they are released, so that is free);
then the distance is a whole number of 1/SCALE, computed in integers from exact counts, and a record moves it by at
most SCALE: no floating-point error touches the sensitivity. True scores are private: only `draw_distinct` meets them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpscale.adaptive.setting import Names
from dpscale.privacy.selection import draw_distinct, scale_for
from dpscale.privacy.staircase import Words
from dpscale.residual.groups import Groups, coarsened

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
SCALE = 256
NOISE_L1 = math.sqrt(2 / math.pi)


@dataclass(frozen=True, eq=False)
class Selection:
    """A round's choice, a function of released values: `count` distinct candidates, each draw costing `rho`.

    `estimates[γ]`: what is believed of it, over groups; `step`: ρ of one measurement.
    """

    round: int
    candidates: tuple[Names, ...]
    weights: Mapping[Names, int]
    estimates: Mapping[Names, Array]
    groups: Mapping[str, Groups]
    count: int
    rho: Fraction
    step: Fraction
    penalty: float
    rows_per_unit: int

    @property
    def sensitivity(self) -> int:
        """How far one unit moves any score."""
        return SCALE * self.rows_per_unit * max(self.weights[names] for names in self.candidates)

    @property
    def deviation(self) -> float:
        """σ_t: the noise of a measurement of this round, if it were one of a whole marginal."""
        return self.rows_per_unit / math.sqrt(2 * float(self.step))

    def offset(self, names: Names) -> int:
        """The penalty in units of 1/SCALE: from public numbers only."""
        return round(SCALE * self.penalty * NOISE_L1 * self.deviation * self.estimates[names].size)

    def record(self, rank: int) -> dict[str, Any]:
        """What names the draw, besides release and snapshot."""
        return {"mechanism": "aim-grem/1", "round": self.round, "rank": rank, "rho": str(self.rho),
                "candidates": len(self.candidates), "sensitivity": str(self.sensitivity)}  # fmt: skip


def distance(counts: Counts, estimate: Array) -> int:
    """‖μ − μ̂‖₁ in units of 1/SCALE. Exact, hence private."""
    rounded = np.rint(np.clip(estimate, -(2.0**52), 2.0**52) * SCALE).astype(np.int64)
    return int(np.abs(counts * SCALE - rounded).sum())


class Scorer:
    """Distances of candidates from exact counts over cells, kept until an estimate changes. Private; never shown.

    counts_of: exact counts over the cells of a set. They are put into groups once.
    """

    def __init__(self, counts_of: Callable[[Names], Counts]) -> None:
        self._counts_of = counts_of
        self._counts: dict[Names, Counts] = {}
        self._known: dict[Names, tuple[Array, int]] = {}

    def scores(self, selection: Selection) -> list[int]:
        return [
            selection.weights[names] * (self._distance(selection, names) - selection.offset(names))
            for names in selection.candidates
        ]

    def _distance(self, selection: Selection, names: Names) -> int:
        estimate = selection.estimates[names]
        if names not in self._known or self._known[names][0] is not estimate:
            if names not in self._counts:
                groups = [selection.groups[name] for name in names]
                self._counts[names] = np.asarray(coarsened(self._counts_of(names), groups), dtype=np.int64)
            self._known[names] = (estimate, distance(self._counts[names], estimate))
        return self._known[names][1]

    def __repr__(self) -> str:
        return "Scorer(counts hidden)"


def draw_chosen(selection: Selection, scores: list[int], stream_of: Callable[[dict[str, Any]], Words]) -> list[Names]:
    """`count` candidates, one exponential mechanism after the other, each among those left."""
    streams = (stream_of(selection.record(rank)) for rank in range(selection.count))
    chosen = draw_distinct(streams, scores, scale_for(selection.rho, selection.sensitivity))
    return [selection.candidates[index] for index in chosen]
