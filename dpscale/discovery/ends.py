"""Search for the ends of a number's range (kind "ends"): a noisy histogram of the column, and a choice from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from dpscale.base.errors import DomainError
from dpscale.base.numerics import Integers
from dpscale.discovery.end_choice import GROUP, ChosenEnds, choose_ends
from dpscale.discovery.threshold import search_draw
from dpscale.domain import MOST_PARTS, Number
from dpscale.domain.attribute import EXACT
from dpscale.domain.number import read_numbers
from dpscale.domain.search import PRIVATE, EndSearch
from dpscale.privacy.accounting import Cost
from dpscale.privacy.draws import GaussianDraw
from dpscale.privacy.secret import SecretFile
from dpscale.privacy.streams import open_stream

LARGEST = 10**40  # ratio of steps


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
        return {"search": "ends", "version": 2, "attribute": self.number.name, "column": self.number.column,
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


def measure_ends(plan: EndPlan, counts: Integers, secret: SecretFile, head: Mapping[str, Any]) -> ChosenEnds | None:
    """Return the range chosen from exact counts of the dyadic bins after noise is added; None if no values are seen."""
    stream = open_stream(secret.read(), "noise", {**head, **plan.record})
    noisy = (plan.draw.multiplier * counts + plan.draw.words(stream, len(counts))) / plan.draw.multiplier
    error = plan.draw.lattice_variance**0.5
    limit = int(EXACT / 2 / max(plan.number.unit, Fraction(1)))  # ends of a domain file are exact as floats
    return choose_ends(np.asarray(noisy), error, plan.groups, plan.precision, plan.search.low, plan.search.high, limit)


def found_ends(plan: EndPlan, ends: ChosenEnds | None) -> tuple[Number, dict[str, Any]]:
    """Return the number with the range that was found, and the released record.

    Raises
    ------
    DomainError
        If no values were seen, and the domain states no fallback.
    """
    number, fallback = plan.number, plan.search.fallback
    if ends is None and fallback is None:
        end = plan.search.searched[-1]
        raise DomainError(f"numbers.{number.name}.{end}", f'"{PRIVATE}", but no values beside 0 are seen in the noise'
                          " of the search", "a public number, or a fallback that is used in this case",
                          "state one of them, or increase discover.share. The rest of the budget is not"
                          " charged")  # fmt: skip
    if ends is None:
        assert fallback is not None
        closed = _closed(plan, *fallback)
        return closed, {"ends": list(closed.ends), "fallback": True, "clipped": None, "records": None,
                        "step": float(closed.unit)}  # fmt: skip
    closed, step = _closed(plan, ends.low, ends.high), float(number.unit)
    limits = (GROUP * ends.below_limit * step, GROUP * ends.above_limit * step)
    return replace(closed, clipped=limits), {
        "ends": list(closed.ends), "clipped": ends.clipped, "clipped_limit": ends.clipped_limit,
        "below": ends.below * step, "below_limit": ends.below_limit * step,
        "above": ends.above * step, "above_limit": ends.above_limit * step,
        "clipped_mean": ends.mean * step, "records": ends.records, "step": float(closed.unit)}  # fmt: skip


def _closed(plan: EndPlan, least: int, largest: int) -> Number:
    """Return the number with ends that a domain file can state, and few enough steps for exact sums.

    The step is the own one of the number, or 10 times larger, or 100, …, as far as public ends are multiples of it.
    With the last of these steps, a private end that is too far from the public one is nearer to it.
    """
    number, search = plan.number, plan.search
    most = (math.isqrt(MOST_PARTS) if number.squares else MOST_PARTS) // 4  # rounder ends may be further apart
    factor, last = 1, False
    while not last:
        last = factor >= LARGEST or any((one or 0) % (10 * factor) for one in (search.low, search.high))
        low, high = least // factor, -(-largest // factor)
        if high - low > most - 2 and last:
            low, high = (high - most, high) if search.high is not None else (low, low + most)
        if high - low <= most:
            closed = replace(number, low=low, high=high, unit=number.unit * factor, search=None)
            if (found := _readable(closed, search)) is not None:
                return found
        factor *= 10
    raise DomainError(f"numbers.{number.name}", "a range that no domain file can state", "a step of fewer digits",
                      "change the step")  # fmt: skip


def _readable(number: Number, search: EndSearch) -> Number | None:
    """Return the number with private ends at rounder numbers, which the floats of a domain file state exactly."""
    public = number.low if search.low is not None else number.high if search.high is not None else 0
    for scale, origin in product([10**digits for digits in range(20)], dict.fromkeys((public, 0))):
        low = number.low if search.low is not None else origin + (number.low - origin) // scale * scale
        high = number.high if search.high is not None else origin - (origin - number.high) // scale * scale
        rounder = replace(number, low=low, high=high)
        with suppress(DomainError):
            if read_numbers({number.name: rounder.describe()}) == [rounder]:
                return rounder
    return None
