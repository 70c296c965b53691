"""The discover stage: a private measurement finds the cells that are not public, and writes the domain.

The order of the steps is that of the measure stage (`budget`): read and check the rows, so that refused data cost
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
from typing import Any

from dpscale.base.numerics import one_thread
from dpscale.discovery.reading import SearchRows, check_columns, types_of
from dpscale.domain import Attribute
from dpscale.engine import Engine
from dpscale.engine.counting import partition_groups
from dpscale.privacy.accounting import Cost
from dpscale.records.judging import refused_of
from dpscale.runs.searches import SearchPlan, SearchReader, SearchTerms, perform_search, plan_search
from dpscale.runs.stages.budget import SEARCHES, PartRelease
from dpscale.runs.stages.measure import OpenData
from dpscale.runs.stages.plan import check_numbers
from dpscale.runs.stages.preflight import unit_plan
from dpscale.runs.stages.unit_bounds import rows_beyond_bound, unit_lookup
from dpscale.runs.table import SEARCH_FILE, TableRun
from dpscale.storage.files import flush_names, remove_partial, write_whole


@dataclass(frozen=True, eq=False)
class CheckedSearches:
    """Searches of a run whose rows are checked and whose charge is not refused; nothing is charged or drawn yet.

    Attributes
    ----------
    plans : mapping of str to SearchPlan
        Plans by attribute.
    data : OpenData
    reader : SearchReader
    release : PartRelease
    """

    plans: Mapping[str, SearchPlan]
    data: OpenData
    reader: SearchReader
    release: PartRelease


def prepare(run: TableRun, engine: Engine) -> CheckedSearches:
    """Read and check the rows, and ask the ledger whether it admits the charge."""
    plans = plan_searches(run)
    unit_plan(run.job, run.declared, run.declared)  # refuses a job whose units could not be counted later
    check_numbers(run, engine)
    names = read_names(run)
    data = OpenData.of(run, names, engine)
    release = release_of(run, plans, data.snapshot)
    release.query()
    with one_thread():
        return CheckedSearches(plans, data, _reader(run, engine, data, names), release)


def perform(run: TableRun, engine: Engine) -> None:
    """Check the rows unless a run of several tables has done so, charge, search, and write the domain."""
    run.check_alone()
    checked, run.prepared = run.prepared or prepare(run, engine), None
    assert isinstance(checked, CheckedSearches)
    plans, release = checked.plans, checked.release
    with one_thread():
        release.charge()
        found = {name: perform_search(run.declared[name], plan, checked.reader) for name, plan in plans.items()}
    checked.data.check_unchanged()
    results = {name: {**released, "measurement": plans[name].record} for name, (_, released) in found.items()}
    record = json.dumps(results, indent=1, ensure_ascii=False).encode()
    release.record_result(hashlib.sha256(record).hexdigest())
    write_whole(run.path / SEARCH_FILE, record)
    run.write_domain(run.declared.with_found({name: attribute for name, (attribute, _) in found.items()}))
    remove_partial(run.path / "domain")
    flush_names(run.path / "domain")
    release.publish()


def release_of(run: TableRun, plans: Mapping[str, SearchPlan], snapshot: str) -> PartRelease:
    """Return the release of all searches of a run."""
    return PartRelease(run, SEARCHES, *_terms(plans), run.declared.digest, snapshot, {"searches": list(plans)})


def part_terms(run: TableRun) -> tuple[Cost, list[dict[str, Any]]]:
    """Return the cost of all searches, and the records that determine their draws."""
    return _terms(plan_searches(run))


def _terms(plans: Mapping[str, SearchPlan]) -> tuple[Cost, list[dict[str, Any]]]:
    return Cost.total([plan.cost for plan in plans.values()]).coarsened(), [plan.record for plan in plans.values()]


def read_names(run: TableRun) -> list[str]:
    """Return the attributes whose columns are read: those of the workload and those that are searched."""
    used = {name for part in run.workload.parts for attributes in part.sets for name in attributes}
    used |= {one.name for one in run.declared.searches}
    used |= {name for own in run.unit_counts or () for name in own}
    return [name for name in run.declared.axis_names if name in used]


def plan_searches(run: TableRun) -> dict[str, SearchPlan]:
    """Return the plans of all searches by attribute; they follow from the job."""
    budget, privacy = run.job.search_budget(run.declared), run.job.privacy
    rows, remaining = run.job.data.max_rows_per_unit or 1, Fraction(run.job.row_budget(run.declared).amount)
    plans = {}
    for one in run.declared.searches:
        terms = SearchTerms(budget.each, budget.delta, rows, privacy.public_rows, _groups(run, one), remaining)
        plans[one.name] = plan_search(one, terms)
    return plans


def _groups(run: TableRun, attribute: Attribute) -> int:
    """Return the largest number of groups by which a number is summed in the job."""
    sets = [names for part in run.workload.parts for names in part.sets if attribute.name in names]
    return max((run.declared.cells([one for one in names if one not in run.declared.number_names]) for names in sets),
               default=1)  # fmt: skip


def _reader(run: TableRun, engine: Engine, data: OpenData, names: list[str]) -> SearchReader:
    """Check all columns and return the reader of the searches."""
    table = data.table.split()
    groups = partition_groups(table.partitions, engine.workers)
    domain = engine.broadcast(run.declared, "check")
    checked = engine.map(check_columns, [(group, domain, names) for group in groups], "check")
    if (refused := refused_of(run.declared, names, [one.worst for one in checked])) is not None:
        raise refused
    dropped = rows_beyond_bound(run, engine, table, groups, names) or {}
    rows, memory = SearchRows.of(run.declared, names), run.job.engine.bytes
    unit, through = run.job.data.unit_column, unit_lookup(run, engine)
    return SearchReader(engine, rows, groups, dropped, types_of(checked), run.secret, data.head, memory, unit, through)
