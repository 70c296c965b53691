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
from fractions import Fraction

from dpscale.base.errors import BudgetError
from dpscale.base.numerics import one_thread
from dpscale.discovery.reading import SearchRows, check_columns, types_of
from dpscale.domain import Attribute
from dpscale.engine import Engine
from dpscale.engine.counting import partition_groups
from dpscale.privacy.accounting import Cost
from dpscale.records import Table
from dpscale.records.judging import refused_of
from dpscale.runs.searches import SearchPlan, SearchReader, SearchTerms, perform_search, plan_search
from dpscale.runs.stages.budget import (
    Charge,
    charge_release,
    check_noise_key,
    ensure_noise_key,
    open_ledger,
    public_hashes,
    search_release,
)
from dpscale.runs.stages.measure import all_stamps, changed_files, open_table, rows_beyond_bound, snapshot_of
from dpscale.runs.stages.preflight import unit_plan
from dpscale.runs.table import SEARCHES, TableRun
from dpscale.storage.files import flush_names, write_whole


def perform(run: TableRun, engine: Engine) -> None:
    """Check the rows, charge, search, and write the domain."""
    plans = plan_searches(run)
    unit_plan(run.job, run.declared, run.declared)  # refuses a job whose units could not be counted later
    names = read_names(run)
    table = open_table(run, names, engine).split()
    engine.check_file_access(run.path, table.files)
    ensure_noise_key(run)
    check_noise_key(run)
    before = all_stamps(run, table)
    snapshot = snapshot_of(run, table, engine)
    charge(run, plans, snapshot, reserve=False)
    with one_thread():
        reader = _reader(run, engine, table, names, snapshot)
        charge(run, plans, snapshot)
        found = {name: perform_search(run.declared[name], plan, reader) for name, plan in plans.items()}
    if all_stamps(run, table) != before:
        raise changed_files("the files changed while they were read")
    results = {name: {**released, "measurement": plans[name].record} for name, (_, released) in found.items()}
    record = json.dumps(results, indent=1, ensure_ascii=False)
    _record_result(run, record)
    write_whole(run.path / SEARCHES, record.encode())
    run.write_domain(run.declared.with_found({name: attribute for name, (attribute, _) in found.items()}))
    flush_names(run.path / "domain")
    publish(run, charge(run, plans, snapshot))


def read_names(run: TableRun) -> list[str]:
    """Return the attributes whose columns are read: those of the workload and those that are searched."""
    used = {name for part in run.workload.parts for attributes in part.sets for name in attributes}
    used |= {one.name for one in run.declared.searches}
    used |= {name for part in (run.unit_counts.parts if run.unit_counts else ()) for own in part.sets for name in own}
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


def _reader(run: TableRun, engine: Engine, table: Table, names: list[str], snapshot: str) -> SearchReader:
    """Check all columns and return the reader of the searches."""
    groups = partition_groups(table.partitions, engine.workers)
    domain = engine.broadcast(run.declared, "check")
    checked = engine.map(check_columns, [(group, domain, names) for group in groups], "check")
    if (refused := refused_of(run.declared, names, [one.worst for one in checked])) is not None:
        raise refused
    dropped = rows_beyond_bound(run, engine, table, groups, names) or {}
    head = {"release": run.manifest["release"], "snapshot": snapshot}
    rows, memory = SearchRows.of(run.declared, names), run.job.engine.bytes
    return SearchReader(engine, rows, groups, dropped, types_of(checked), run.secret, head, memory)


def total_cost(plans: Mapping[str, SearchPlan]) -> Cost:
    """Return the cost of all searches."""
    return Cost.total([plan.cost for plan in plans.values()]).coarsened()


def charge(run: TableRun, plans: Mapping[str, SearchPlan], snapshot: str, reserve: bool = True) -> str:
    """Reserve the cost of all searches; a repeated charge costs nothing."""
    content = [[plan.record for plan in plans.values()], run.declared.digest, snapshot, run.manifest["secret_tag"],
               search_release(run), run.manifest["job_sha256"]]  # fmt: skip
    digest, cost = hashlib.sha256(json.dumps(content).encode()).hexdigest(), total_cost(plans)
    privacy, protects = run.job.privacy, run.job.data.protects
    terms = Charge(search_release(run), cost, digest, privacy.epsilon, privacy.delta, protects, public_hashes(run))
    entry = {"dataset": run.job.dataset, "cost": cost.to_dict(), "searches": list(plans)}
    state = charge_release(run, terms, entry, reserve, "discovery")
    if reserve and state == "admitted":
        raise BudgetError("privacy.ledger", "the charge of the searches was not recorded", "a writable ledger",
                          "run again to resume")  # fmt: skip
    return state


def _record_result(run: TableRun, record: str) -> None:
    """Record a digest of the result on the ledger; another copy of the run that found something else is refused."""
    with open_ledger(run) as ledger:
        ledger.decide(search_release(run), 0, hashlib.sha256(record.encode()).hexdigest())


def publish(run: TableRun, state: str) -> None:
    """Commit and publish the release of the searches, which has a state on the ledger."""
    release = search_release(run)
    with open_ledger(run) as ledger:
        if state == "reserved":
            ledger.commit(release)
        if state != "released":
            ledger.publish(release)
