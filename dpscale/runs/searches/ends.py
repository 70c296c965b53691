"""Search for the ends of a number's range on an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpscale.discovery.dyadic_bins import dyadic_bins
from dpscale.discovery.ends import EndPlan, found_ends, measure_ends, plan_ends
from dpscale.discovery.step_counts import BinRequest, count_steps
from dpscale.domain import Number
from dpscale.runs.searches import Found, SearchReader, SearchSummary, SearchTerms


def plan(number: Number, terms: SearchTerms) -> EndPlan:
    """Return the measurement of a histogram."""
    return plan_ends(number, terms.share, terms.remaining, terms.groups, terms.rows_per_unit)


def search(plan: EndPlan, reader: SearchReader) -> Found:
    """Return the number with the range that was found."""
    counts = reader.total(count_steps, BinRequest(reader.rows, plan.number, dyadic_bins().first), "count-bins")
    return found_ends(plan, measure_ends(plan, counts, reader.secret, reader.head))


def summarize(number: Number, released: Mapping[str, Any]) -> SearchSummary:
    """Return the range that was found."""
    low, high = released["ends"]
    if not released["records"]:
        return SearchSummary("ends of the range", (f"No values were found; the range is {low:g} to {high:g}.",))
    facts = (
        f"Values are clipped to {low:g} … {high:g}; about {100 * released['clipped']:.2g} % of the records lie beyond.",
        f"Clipping lowers the mean by about {released['above'] - released['below']:.3g}.",
    )
    return SearchSummary("ends of the range", facts)
