"""Division of a budget between searches for cells that are not public, numbers of units, and numbers of rows.

The searches use a share of the squared mu. If some of them have an additive delta, which adds to that of the noise,
the squared mu of a job with epsilon and delta is that of the remaining delta.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from dpscale.base.errors import JobError
from dpscale.domain import Attribute, Domain
from dpscale.domain.search import ValueSearch
from dpscale.job.sections import BELOW_ONE, Privacy, WorkloadSection
from dpscale.privacy.accounting import GAUSSIAN, Budget, Cost, gdp_mu
from dpscale.workload import MARGINAL, Workload
from dpscale.workload.sql.selection import select, unit_sets


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


SHARE = 0.05  # of the squared mu, for all searches of a job
COUNTING_SHARE = 0.999  # of a search whose counts are the estimates: the rest measures the other values


def search_budget(
    privacy: Privacy, stated_delta: float | None, searches: Sequence[Attribute], share: float = SHARE
) -> SearchBudget:
    """Return the budget of searches that use a share of the squared mu. Raises JobError for one that permits none.

    The result has the squared μ of each search, the δ of each search by values, what
    remains, the total, and the sum of δ.
    """
    if not searches:
        return SearchBudget(each=Fraction(0), delta=Fraction(0), remaining=privacy.budget, total=privacy.budget)
    if privacy.noise != GAUSSIAN:
        raise JobError("privacy.delta", f"missing, but the cells of {searches[0].name} are not public",
                       "Gaussian noise for the search", "add a delta, for example 1e-9")  # fmt: skip
    of_values = [attribute for attribute in searches if attribute.search is not None and attribute.search.uses_delta]
    delta = sum(table_deltas(privacy, {of_values[0].name: stated_delta}).values()) if of_values else 0.0
    total = budget_with_delta(privacy, delta)
    each = Fraction(total.amount) * Fraction(share) / len(searches)
    remaining = replace(total, amount=total.amount * (1 - share) * BELOW_ONE)
    return SearchBudget(
        each=each,
        delta=Fraction(delta) / max(len(of_values), 1),
        remaining=remaining,
        total=total,
        total_delta=Fraction(delta),
    )


def counts_all_cells(attribute: Attribute) -> bool:
    """Return whether a search measures numbers of rows of all cells but that of other values.

    It measures neither nulls nor public values that few rows have, and votes are not numbers of rows.
    """
    search = attribute.search
    return isinstance(search, ValueSearch) and not (search.has_votes or search.values or attribute.nulls == "category")


def budget_with_delta(privacy: Privacy, delta: float) -> Budget:
    """Return the budget of a job of which searches have this additive delta.

    `delta` is subtracted from the δ of the job before its conversion to μ. BELOW_ONE is a factor that covers rounding.
    Budgets without ε and δ stay unchanged.
    """
    total = privacy.budget
    if not delta or privacy.epsilon is None or privacy.delta is None:
        return total
    return replace(total, amount=gdp_mu(privacy.epsilon, privacy.delta - delta) ** 2 * BELOW_ONE)


def table_deltas(privacy: Privacy, stated: Mapping[str, float | None]) -> dict[str, float]:
    """Return the additive delta of the searches of each table, to a unit of the job.

    Parameters
    ----------
    privacy : Privacy
        Budget of the job.
    stated : mapping of str to float
        Deltas of the tables of which values are searched. Those that state none share half of the job's delta equally.

    Raises
    ------
    JobError
        If the job has no delta and a table states none, or if the sum is not below that of the job.
    """
    unstated = [name for name, delta in stated.items() if delta is None]
    if unstated and privacy.delta is None:
        raise JobError("budget.discover_delta", f"missing, but values of {unstated[0]} are searched",
                       "an additive delta, because the job has none",
                       "add it, for example 1e-9, or state epsilon and delta")  # fmt: skip
    usual = (privacy.delta or 0.0) / 2 / max(len(unstated), 1)
    deltas = {name: usual if delta is None else delta for name, delta in stated.items()}
    total = sum(deltas.values())
    if privacy.delta is not None and stated and total >= privacy.delta:
        raise JobError("budget.discover_delta", f"{total:g} in total", f"less than privacy.delta ="
                       f" {privacy.delta:g}", "lower it, or leave it out")  # fmt: skip
    return deltas


LEAST_DELTA = 1e-300  # least additive delta, from which the bisection begins


def step_delta(delta: float, squared_mu: float, steps: int) -> float:
    """Return the additive delta to one neighbour step of which `steps` have at most `delta` (`Cost.for_group`).

    Raises JobError for a budget with which there is none.
    """

    def fits(of_step: float) -> bool:
        cost = Cost(gaussian=Fraction(squared_mu), delta=Fraction(of_step))
        return cost.for_group(steps).delta <= Fraction(delta)

    if fits(delta):
        return delta
    if not fits(LEAST_DELTA):
        raise JobError("budget.discover", f"a search with μ² = {squared_mu:.3g} to each of {steps} steps",
                       f"one whose additive delta can be below {delta:g}", "lower it")  # fmt: skip
    low, high = math.log(LEAST_DELTA), math.log(delta)
    for _ in range(60):  # bisection to the precision of a float
        middle = (low + high) / 2
        low, high = (middle, high) if fits(math.exp(middle)) else (low, middle)
    return math.exp(low) if fits(math.exp(low)) else LEAST_DELTA


def check_unit_needed(domain: Domain, has_unit: bool) -> None:
    """Raise JobError if the unit is a row, but a domain bounds totals of units or has values that units vote for."""
    fields = [f"numbers.{number.name}.per_unit: 'total'" for number in domain.totals]
    for attribute in domain.searches:
        if attribute.search is not None and attribute.search.has_votes:
            fields.append(f"attributes.{attribute.name}.count: 'units'")
    if fields and not has_unit:
        field, _, value = fields[0].partition(": ")
        raise JobError(field, f"{value}, but the unit is a row", "a privacy unit",
                       "set data.privacy_unit and max_rows_per_unit, or leave it out")  # fmt: skip


def unit_workload(parts: Sequence[WorkloadSection], unit: Sequence[str], domain: Domain, max_sets: int) -> Workload:
    """Return the sets whose distinct units are counted by some parts of a workload.

    Raises JobError without a privacy unit, or for another family than marginal.
    """
    if not unit:
        raise JobError("workload.count", "'units', but the unit is a row", "rows",
                       "set data.privacy_unit and max_rows_per_unit, or leave it out")  # fmt: skip
    workload = Workload(domain, max_sets)
    for part in parts:
        if part.statements:
            sets = list[tuple[str, ...]]()
            for statement in part.statements:
                sets += unit_sets(select(statement, domain, unit))
            workload.add(MARGINAL.name, attributes=list(dict.fromkeys(sets)), weight=part.single_weight)
            continue
        unknown = part.given or part.record_weight or not part.weight or isinstance(part.weight, list)
        if part.family != MARGINAL.name or unknown:
            raise JobError("workload.count", f"'units' for family {part.family!r}, or with other keys",
                           f"family {MARGINAL.name} with degree or attributes, and one weight above 0",
                           "leave it out")  # fmt: skip
        workload.add(part.family, part.degree, part.attributes, part.weight)
    return workload
