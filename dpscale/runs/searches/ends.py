"""Search for the ends of a number's range on an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpscale.discovery.dyadic_tree import dyadic_bins
from dpscale.discovery.ends import EndPlan, found_ends, measure_ends, plan_ends
from dpscale.discovery.reading import BinRequest, count_steps
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
    """Return what a search for the ends of a number's range found, in sentences.

    `released` has the noisy results: ends, records seen, share of clipped records and the effect on the mean; runs of
    later versions also have their upper limits.

    `clipped` is the share of records beyond the ends, and `above` and `below` are the effects on the mean at either
    end. Keys with `_limit` are upper limits of them.
    """
    low, high = released["ends"]
    if released.get("fallback"):
        facts: tuple[str, ...] = (
            "The search saw no values beside 0.",
            f"Values are clipped to the fallback of the domain, {low:g} to {high:g}.",
            "Nothing is known about the share beyond, and intervals do not include it.",
        )
        return SearchSummary("ends of the range", facts)
    if not released["records"]:  # of runs before version 2 of the search
        return SearchSummary("ends of the range", (f"No values were found; the range is {low:g} to {high:g}.",))
    share, moved = 100 * released["clipped"], released["above"] - released["below"]
    facts = (f"Values are clipped to {low:g} … {high:g}; about {share:.2g} % of the records lie beyond.",
             f"Clipping lowers the mean by about {moved:.3g}.")  # fmt: skip
    if "clipped_limit" in released:
        least, most = -released["below_limit"], released["above_limit"]
        facts = (
            f"Values are clipped to {low:g} … {high:g}; at most {100 * released['clipped_limit']:.2g} % of the records"
            f" lie beyond (upper limit of 95 %; about {share:.2g} % are estimated).",
            f"Clipping lowers the mean of all records by about {moved:.3g}, between {least:.3g} and {most:.3g}.",
            "Intervals of means include the clipped part, up to twice that of all records; those of sums do not.",
        )
    return SearchSummary("ends of the range", facts)
