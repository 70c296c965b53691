"""Search for the values of a column that occur often (kind "values").

The count of every value is measured with Gaussian noise, and the values above the threshold are cells
(`dpscale.discovery.threshold`). One row changes one count by one, so a unit of k rows costs k² times the squared mu of
one row. The found cells are measured again with the rest of the budget, so their answers need no correction for the
selection. With `count = "units"` the votes of units are measured instead (`dpscale.discovery.value_counts`), whose
sensitivity does not grow with k.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from dpscale.base.errors import JobError
from dpscale.discovery.threshold import VOTE, Threshold, search_draw, threshold_for
from dpscale.domain.attribute import Attribute
from dpscale.domain.search import ValueSearch
from dpscale.privacy.accounting import Cost

NONE_FOUND = "(no value found)"


@dataclass(frozen=True)
class ValuePlan:
    """Measurement of the counts of a column's values.

    Attributes
    ----------
    attribute : Attribute
    threshold : Threshold
    """

    attribute: Attribute
    threshold: Threshold

    @property
    def cost(self) -> Cost:
        return Cost(gaussian=self.threshold.draw.cost, delta=self.threshold.delta)

    @property
    def record(self) -> dict[str, Any]:
        """Everything that determines the draws, in text and integers."""
        draw = self.threshold.draw
        votes = {"vote": str(self.threshold.steps)} if self.votes else {}
        return {"search": "values", "version": 2, "attribute": self.attribute.name, "column": self.attribute.column,
                "multiplier": str(draw.multiplier), **draw.noise_spec, **votes,
                "threshold": str(self.threshold.value)}  # fmt: skip

    @property
    def votes(self) -> bool:
        """Whether units vote for their values."""
        return self.attribute.search is not None and self.attribute.search.has_votes


def plan_values(
    attribute: Attribute, share: Fraction, delta: Fraction, rows_per_unit: int, public_rows: int | None = None
) -> ValuePlan:
    """Return the measurement of a search for values.

    Parameters
    ----------
    attribute : Attribute
        With a ValueSearch.
    share : Fraction
        Squared mu.
    delta : Fraction
        Largest additive delta.
    rows_per_unit : int
    public_rows : int, optional
        Number of rows, if it is public.

    Raises
    ------
    JobError
        If no value can have as many rows as the threshold requires.
    """
    what = f"the values of {attribute.name}"
    votes = attribute.search is not None and attribute.search.has_votes
    draw = search_draw(share, 1, what, VOTE**2) if votes else search_draw(share, rows_per_unit, what)
    threshold = threshold_for(draw, delta, rows_per_unit, votes)
    if public_rows is not None and threshold.records > public_rows:
        raise JobError("privacy", f"a budget with which only values of {threshold.records:,.0f} rows are found in"
                       f" {attribute.name}", "a threshold below the number of rows",
                       "increase the budget or discover.share")  # fmt: skip
    return ValuePlan(attribute, threshold)


def found_values(plan: ValuePlan, counts: Mapping[str, int], kind: str) -> tuple[Attribute, dict[str, Any]]:
    """Return the attribute with the values that were found, and the released record.

    Parameters
    ----------
    plan : ValuePlan
    counts : mapping of str to int
        Released measurement of each value above the threshold, in steps.
    kind : {"text", "integer"}
        Type of the column.
    """
    search = plan.attribute.search
    assert isinstance(search, ValueSearch)
    public = [str(value) for value in search.values]
    found = sorted(set(counts) - set(public), key=(lambda text: (int(text), text)) if kind == "integer" else None)
    listed = [*public, *found] or ([NONE_FOUND] if kind == "text" else ["0"])
    values = tuple(map(int, listed)) if kind == "integer" else tuple(listed)
    threshold = plan.threshold
    steps = threshold.draw.multiplier * threshold.steps
    measured = [{"value": one, "count": counts[one] / steps} for one in found]
    closed = replace(plan.attribute, values=_padded(plan.attribute, values), search=None)
    error = threshold.draw.lattice_variance**0.5 / threshold.steps

    return closed, {"found": measured, "public": public, "error": error, "threshold": threshold.records}


def _padded(attribute: Attribute, values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the values, with one that never occurs if the attribute would have a single cell."""
    more = (attribute.outside == "category") + (attribute.nulls == "category")
    if len(values) + more >= 2:
        return values
    return (*values, f"(other than {values[0]})" if isinstance(values[0], str) else -1 if values[0] >= 0 else 0)
