"""Division of a budget between searches for cells that are not public, numbers of units, and numbers of rows.

The searches use a share of the squared mu. If some of them have an additive delta, which adds to that of the noise,
the squared mu of a job with epsilon and delta is that of the remaining delta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from dpscale.base.errors import JobError
from dpscale.domain import Attribute, Domain
from dpscale.job.sections import BELOW_ONE, DiscoverTable, Part, Privacy
from dpscale.privacy.accounting import GAUSSIAN, Budget, gdp_mu
from dpscale.workload import MARGINAL, Workload


@dataclass(frozen=True)
class SearchBudget:
    """Budget of the searches of a domain.

    Attributes
    ----------
    each : Fraction
        Squared mu of one search; 0 without searches.
    delta : Fraction
        Additive delta of one search that has one.
    remaining : Budget
        Budget of the measurements after the searches.
    total : Budget
        Budget of both.
    total_delta : Fraction
        Additive delta of all searches.
    """

    each: Fraction
    delta: Fraction
    remaining: Budget
    total: Budget
    total_delta: Fraction = Fraction(0)


def search_budget(privacy: Privacy, settings: DiscoverTable, searches: Sequence[Attribute]) -> SearchBudget:
    """Return the budget of searches. Raises JobError for a budget that permits none."""
    if not searches:
        return SearchBudget(Fraction(0), Fraction(0), privacy.budget, privacy.budget)
    if privacy.noise != GAUSSIAN:
        raise JobError("privacy.delta", f"missing, but the cells of {searches[0].name} are not public",
                       "Gaussian noise for the search", "add a delta, for example 1e-9")  # fmt: skip
    listed = [one for one in searches if one.search is not None and one.search.uses_delta]
    delta = _additive_delta(privacy, settings) if listed else 0.0
    total = privacy.budget
    if delta and privacy.epsilon is not None and privacy.delta is not None:
        total = replace(total, amount=gdp_mu(privacy.epsilon, privacy.delta - delta) ** 2 * BELOW_ONE)
    each = Fraction(total.amount) * Fraction(settings.share) / len(searches)
    remaining = replace(total, amount=total.amount * (1 - settings.share) * BELOW_ONE)
    return SearchBudget(each, Fraction(delta) / max(len(listed), 1), remaining, total, Fraction(delta))


def _additive_delta(privacy: Privacy, settings: DiscoverTable) -> float:
    """Return the additive delta of all searches for values."""
    if settings.delta is None:
        if privacy.delta is None:
            raise JobError("discover.delta", "missing, but values are searched", "an additive delta, because the job"
                           " has none", "add it, for example 1e-9, or state epsilon and delta")  # fmt: skip
        return privacy.delta / 2
    if privacy.delta is not None and settings.delta >= privacy.delta:
        raise JobError("discover.delta", f"{settings.delta:g}", f"less than privacy.delta = {privacy.delta:g}",
                       "lower it, or leave it out")  # fmt: skip
    return settings.delta


def check_unit_needed(domain: Domain, has_unit: bool) -> None:
    """Raise JobError if the unit is a row, but a domain bounds totals of units or has values that units vote for."""
    fields = [f"numbers.{one.name}.per_unit: 'total'" for one in domain.totals]
    fields += [
        f"attributes.{one.name}.count: 'units'"
        for one in domain.searches
        if one.search is not None and one.search.has_votes
    ]
    if fields and not has_unit:
        field, _, value = fields[0].partition(": ")
        raise JobError(field, f"{value}, but the unit is a row", "a privacy unit",
                       "set data.privacy_unit and max_rows_per_unit, or leave it out")  # fmt: skip


def unit_workload(parts: Sequence[Part], has_unit: bool, domain: Domain) -> Workload | None:
    """Return the sets whose distinct units are counted; None if there are none.

    Raises JobError without a privacy unit, or for another family than marginal.
    """
    counted = [part for part in parts if part.count == "units"]
    if not counted:
        return None
    if not has_unit:
        raise JobError("workload.count", "'units', but the unit is a row", "rows",
                       "set data.privacy_unit and max_rows_per_unit, or leave it out")  # fmt: skip
    workload = Workload(domain)
    for part in counted:
        unknown = part.given or part.record_weight or not part.weight or isinstance(part.weight, list)
        if part.family != MARGINAL.name or unknown:
            raise JobError("workload.count", f"'units' for family {part.family!r}, or with other keys",
                           f"family {MARGINAL.name} with degree or attributes, and one weight above 0",
                           "leave it out")  # fmt: skip
        workload.add(part.family, part.degree, part.attributes, part.weight)
    return workload
