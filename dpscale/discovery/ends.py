"""Search for the ends of a number's range (kind "ends"): a noisy histogram of the column, and a choice from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpscale.base.errors import JobError
from dpscale.base.numerics import Integers
from dpscale.discovery.dyadic_bins import dyadic_bins
from dpscale.discovery.end_choice import ChosenEnds, choose_ends
from dpscale.domain import MOST_PARTS, Number
from dpscale.domain.search import EndSearch
from dpscale.privacy.accounting import Cost
from dpscale.privacy.draws import GaussianDraw, gaussian_draw
from dpscale.privacy.secret import SecretFile
from dpscale.privacy.streams import open_stream


@dataclass(frozen=True)
class EndPlan:
    """Measurement of a histogram of dyadic bins.

    Attributes
    ----------
    number : Number
    draw : GaussianDraw
    groups : int
        Largest number of groups by which the number is summed.
    precision : float
        1/variance of a group's count, and of its centred sum in units of half the range.
    """

    number: Number
    draw: GaussianDraw
    groups: int
    precision: float

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=self.draw.cost)

    @property
    def search(self) -> EndSearch:
        assert isinstance(self.number.search, EndSearch)
        return self.number.search

    @property
    def record(self) -> dict[str, Any]:
        """Everything that determines the draws, in text and integers."""
        return {"search": "ends", "version": 1, "attribute": self.number.name, "column": self.number.column,
                "low": str(self.search.low), "high": str(self.search.high), "step": str(self.number.unit),
                "multiplier": str(self.draw.multiplier), **self.draw.noise_spec}  # fmt: skip


def plan_ends(number: Number, share: Fraction, remaining: Fraction, groups: int, rows_per_unit: int) -> EndPlan:
    """Return the measurement of a search for ends.

    Parameters
    ----------
    number : Number
        With an EndSearch.
    share, remaining : Fraction
        Squared mu of the search, and of the release after it.
    groups : int
        Largest number of groups by which the number is summed.
    rows_per_unit : int
    """
    draw = gaussian_draw(1, share, rows_per_unit, f"the range of {number.name}")
    if not draw.fits_words:
        raise JobError("privacy", f"a budget too small to find the range of {number.name}", "a larger one",
                       "increase the budget or discover.share, or state public ends")  # fmt: skip
    return EndPlan(number, draw, groups, float(remaining) / 2 / rows_per_unit**2)


def measure_ends(plan: EndPlan, counts: Integers, secret: SecretFile, head: Mapping[str, Any]) -> ChosenEnds:
    """Return the range chosen from exact counts of the dyadic bins after noise is added."""
    stream = open_stream(secret.read(), "noise", {**head, **plan.record})
    noisy = (plan.draw.multiplier * counts + plan.draw.words(stream, len(counts))) / plan.draw.multiplier
    error = plan.draw.lattice_variance**0.5
    return choose_ends(np.asarray(noisy), error, plan.groups, plan.precision, plan.search.low, plan.search.high)


def first_integers() -> Integers:
    """Return the first integer of each dyadic bin."""
    return dyadic_bins().first


def found_ends(plan: EndPlan, ends: ChosenEnds) -> tuple[Number, dict[str, Any]]:
    """Return the number with the range that was found, and the released record.

    If the range has too many steps for exact sums, the step is doubled until it has not.
    """
    number, low, high, unit = plan.number, ends.low, ends.high, plan.number.unit
    most = int(MOST_PARTS**0.5) if number.squares else MOST_PARTS
    while high - low > most or max(abs(low), abs(high)) >= 1 << 53:
        low, high, unit = low // 2, -(-high // 2), unit * 2
    closed = replace(number, low=low, high=high, unit=unit, search=None)
    step = float(number.unit)
    return closed, {"ends": list(closed.ends), "clipped": ends.clipped, "below": ends.below * step,
                    "above": ends.above * step, "clipped_mean": ends.mean * step, "records": ends.records,
                    "step": float(unit)}  # fmt: skip
