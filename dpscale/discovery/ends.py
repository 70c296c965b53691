"""Search for the ends of a number's range (kind "ends"): a noisy histogram of the column, and a choice from it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from dpscale.base.errors import DomainError
from dpscale.base.numerics import Integers
from dpscale.discovery.end_choice import ChosenEnds, choose_ends
from dpscale.discovery.threshold import search_draw
from dpscale.domain import MOST_PARTS, Number
from dpscale.domain.attribute import EXACT
from dpscale.domain.number import read_numbers
from dpscale.domain.search import EndSearch
from dpscale.privacy.accounting import Cost
from dpscale.privacy.draws import GaussianDraw
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
    draw = search_draw(share, rows_per_unit, f"the range of {number.name}")
    return EndPlan(number, draw, groups, float(remaining) / 2 / rows_per_unit**2)


def measure_ends(plan: EndPlan, counts: Integers, secret: SecretFile, head: Mapping[str, Any]) -> ChosenEnds:
    """Return the range chosen from exact counts of the dyadic bins after noise is added."""
    stream = open_stream(secret.read(), "noise", {**head, **plan.record})
    noisy = (plan.draw.multiplier * counts + plan.draw.words(stream, len(counts))) / plan.draw.multiplier
    error = plan.draw.lattice_variance**0.5
    limit = int(EXACT / 2 / max(plan.number.unit, Fraction(1)))  # ends of a domain file are exact as floats
    return choose_ends(np.asarray(noisy), error, plan.groups, plan.precision, plan.search.low, plan.search.high, limit)


def found_ends(plan: EndPlan, ends: ChosenEnds) -> tuple[Number, dict[str, Any]]:
    """Return the number with the range that was found, and the released record.

    If the range has too many steps for exact sums, the step is 10 times larger, or 100, …, as far as public ends are
    multiples of it; otherwise the private end is nearer to the public one.
    """
    number, search = plan.number, plan.search
    most = (int(MOST_PARTS**0.5) if number.squares else MOST_PARTS) // 4  # rounder ends may be further apart
    factor = 1
    while (ends.high - ends.low) // factor > most - 2 and all((one or 0) % (10 * factor) == 0
                                                           for one in (search.low, search.high)):  # fmt: skip
        factor *= 10
    low, high = ends.low // factor, -(-ends.high // factor)
    if high - low > most:
        low, high = (high - most, high) if search.high is not None else (low, low + most)
    closed = _readable(replace(number, low=low, high=high, unit=number.unit * factor, search=None), search)
    step = float(number.unit)
    return closed, {"ends": list(closed.ends), "clipped": ends.clipped, "below": ends.below * step,
                    "above": ends.above * step, "clipped_mean": ends.mean * step, "records": ends.records,
                    "step": float(closed.unit)}  # fmt: skip


def _readable(number: Number, search: EndSearch) -> Number:
    """Return the number with private ends at rounder numbers, until the floats of a domain file state it exactly."""
    for digits in range(20):
        scale = 10**digits
        low = number.low if search.low is not None else number.low // scale * scale
        high = number.high if search.high is not None else -(-number.high // scale) * scale
        rounder = replace(number, low=low, high=high)
        with suppress(DomainError):
            if read_numbers({number.name: rounder.describe()}) == [rounder]:
                return rounder
    return number
