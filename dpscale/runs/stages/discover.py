"""The discover stage: a private measurement finds the cells that are not public, and writes the domain.

The order of the steps is that of the measure stage (`runs.charge`): read and check the rows, so that refused data cost
nothing; charge the whole cost of all searches, which the job determines; draw the noise; write the domain; commit. The
noise key stays until the table is measured. A stage that was interrupted is repeated: the same key, data and records
give the same noise, also where a later step of a search depends on an earlier one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from dpscale.base.numerics import one_thread
from dpscale.discovery.reading import SearchRows, check_columns, types_of
from dpscale.domain import Attribute
from dpscale.engine.counting import partition_groups
from dpscale.privacy.accounting import Cost
from dpscale.records.judging import refused_of
from dpscale.runs.charge import SEARCHES, journal_of
from dpscale.runs.preflight import unit_plan
from dpscale.runs.searches import SearchPlan, SearchReader, SearchTerms, perform_search, plan_search
from dpscale.runs.source import Source, attributes_read, decision, rows_beyond_bound, unit_lookup
from dpscale.runs.stages.plan import check_searched
from dpscale.runs.table import SEARCH_FILE, TablePart
from dpscale.storage.files import flush_names, remove_partial, write_whole

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine


@dataclass(frozen=True, eq=False)
class CheckedSearches:
    """Searches of a run whose rows are checked and whose charge is not refused; nothing is charged or drawn yet.

    Attributes
    ----------
    plans : mapping of str to SearchPlan
        Plans by attribute.
    source : Source
    reader : SearchReader
    """

    plans: Mapping[str, SearchPlan]
    source: Source
    reader: SearchReader


def prepare(run: TablePart, engine: Engine) -> CheckedSearches:
    """Read and check the rows, and refuse what later stages would refuse. Nothing is charged or drawn."""
    plans = plan_searches(run)
    unit_plan(run.job, run.declared, run.declared)  # refuses a job whose units could not be counted later
    check_searched(run, engine)
    names = attributes_read(run)
    source = Source.of(run, names, engine)
    run.secret.read()  # refuses a missing or another noise key before the charge
    with one_thread():
        return CheckedSearches(plans, source, _reader(run, engine, source, names))


def perform(run: TablePart, engine: Engine) -> None:
    """Search for the cells that are not public, after the charge, and write the domain with the found cells."""
    checked, run.prepared = run.prepared or prepare(run, engine), None
    assert isinstance(checked, CheckedSearches)
    plans, journal = checked.plans, journal_of(run, SEARCHES)
    with one_thread():
        journal.decide(0, decision(run, checked.source, [plan.record for plan in plans.values()], run.declared))
        found = {name: perform_search(run.declared[name], plan, checked.reader) for name, plan in plans.items()}
    checked.source.check_unchanged()

    results = {name: {**released, "measurement": plans[name].record} for name, (_, released) in found.items()}
    record = json.dumps(results, indent=1, ensure_ascii=False).encode()
    journal.record(1, hashlib.sha256(record).hexdigest())  # refuses another copy of the run that found something else
    write_whole(run.path / SEARCH_FILE, record)
    run.write_domain(run.declared.with_found({name: attribute for name, (attribute, _) in found.items()}))
    remove_partial(run.path / "domain")
    flush_names(run.path / "domain")


def terms(run: TablePart) -> tuple[Cost, list[dict[str, Any]]]:
    """Return the cost of all searches, and the records that determine their draws."""
    plans = plan_searches(run).values()
    return Cost.total([plan.cost for plan in plans]).coarsened(), [plan.record for plan in plans]


def plan_searches(run: TablePart) -> dict[str, SearchPlan]:
    """Return the plans of all searches by attribute; they follow from the job."""
    budget, privacy = run.job.search_budget(run.declared), run.job.privacy
    rows, remaining = run.job.data.max_rows_per_unit or 1, Fraction(run.job.row_budget(run.declared).amount)
    plans = {}
    for attribute in run.declared.searches:
        terms = SearchTerms(
            share=budget.each,
            delta=budget.delta,
            rows_per_unit=rows,
            public_rows=privacy.public_rows,
            groups=_groups(run, attribute),
            remaining=remaining,
        )
        plans[attribute.name] = plan_search(attribute, terms)
    return plans


def _groups(run: TablePart, attribute: Attribute) -> int:
    """Return the largest number of groups by which the job sums a number: cells of the other attributes of a set.

    It is 1 for an attribute that is not summed by groups.
    """
    largest = 1
    for part in run.workload.parts:
        for names in part.sets:
            if attribute.name in names:
                grouping = [name for name in names if name not in run.declared.number_names]
                largest = max(largest, run.declared.cells(grouping))
    return largest


def _reader(run: TablePart, engine: Engine, source: Source, names: list[str]) -> SearchReader:
    """Check all columns and return the reader of the searches."""
    table = source.table.split()
    groups = partition_groups(table.partitions, engine.workers)
    domain = engine.broadcast(run.declared, "check")
    checked = engine.map(check_columns, [(group, domain, names) for group in groups], "check")
    refused = refused_of(run.declared, names, [columns.worst for columns in checked])
    if refused is not None:
        raise refused
    dropped = rows_beyond_bound(run, engine, table, groups, names) or {}
    rows, memory = SearchRows.of(run.declared, names), run.job.engine.bytes
    unit, through = run.job.data.unit_column, unit_lookup(run, engine)
    return SearchReader(
        engine=engine,
        rows=rows,
        groups=groups,
        dropped=dropped,
        types=types_of(checked),
        secret=run.secret,
        head=source.head,
        memory=memory,
        unit=unit,
        through=through,
    )
