"""Stage `allocate`: the first measurement of a run, and the division of its budget.

Everything that can be refused is checked before the charge: plans, keys, links and public tables. The division is
stored before its digest is recorded on the ledger; after a stop in between, the stored one is recorded.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from dpscale.job.allocation import Divisible, expected_job, is_open, with_bounds
from dpscale.job.join_job import join_jobs
from dpscale.job.neighbours import neighbour_relation, table_jobs
from dpscale.records.origin import Stamps
from dpscale.runs.charge import ALLOCATION, charge, check_unchanged, ensure_noise_key, publish_entry
from dpscale.runs.linked_tables import STARTED, LinkedTables
from dpscale.runs.links.first_measurement import (
    FirstMeasurement,
    division_digest,
    division_journal,
    job_of_public_cells,
)
from dpscale.runs.links.link_data import check_orders
from dpscale.runs.links.link_parts import LinksByName
from dpscale.runs.links.measuring import check_tables_have_rows, close_all, read_all, snapshot_of
from dpscale.runs.links.public_tables import check_public
from dpscale.runs.run import Run
from dpscale.runs.stages.plan import make_plan

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine


def perform(run: Run, engine: Engine) -> None:
    """Measure, divide the budget, and record the shares, which the run then has.

    ALLOCATION names the entry of the first measurement on the ledger. A division that is recorded is not measured
    again.
    """
    whole = run.content
    assert isinstance(whole, LinkedTables)
    whole.pin_versions()
    if not whole.is_allocated:
        _measure_and_divide(FirstMeasurement(whole, job_of_public_cells(whole.job)), engine)
    charge(run, ALLOCATION)
    division_journal(run).record(0, division_digest(run))
    publish_entry(run, ALLOCATION)


def _measure_and_divide(first: FirstMeasurement, engine: Engine) -> None:
    """Charge and make the first measurement (sizes of tables and links), and record the shares that follow from it.

    Everything that can refuse the data is checked before the first draw. Bounds of links that the job leaves open are
    chosen from a measurement of degrees, after which the links are read again with these bounds.
    """
    whole, run = first.run, first.run.run
    charge(run, ALLOCATION, reserve=False)
    check_plans(whole, engine)
    ensure_noise_key(run)
    before = whole.file_stamps()
    snapshot_of(whole, engine)
    check_public(whole.job)
    check_tables_have_rows(whole, engine)
    check_orders(engine, whole.job)
    if any(domain.searches for domain in whole.job.declared.values()):
        # later stages read the links with attributes whose cells are not known yet
        close_all(read_all(whole.job, whole.neighbours, engine))
    with ExitStack() as ending:
        exact = _read(first, engine, before, ending)
        whole.run.update(divides=STARTED)
        if first.open_bounds:
            first = first.with_private_bounds(engine, lambda: check_unchanged(run, before))
            ending.close()
            exact = _read(first, engine, before, ending)
        known, cut = first.measure(exact), first.cut_shares(exact)

    bounds = {link.called: link.bound for link in first.job.link if is_open(whole.job, link)}
    divisible = Divisible(with_bounds(whole.job, bounds), first.neighbours)
    content = divisible.divide(known, measured=True).to_dict()
    whole.record_allocation(content | {"bounds": bounds, "cut": cut})


def _read(first: FirstMeasurement, engine: Engine, before: list[Stamps], ending: ExitStack) -> LinksByName:
    """Read and check all links, and let them be removed at the end.

    `before` are size and time of the files before the reading; a file that changed since is refused. `ending` closes
    the links at its end.
    """
    exact = read_all(first.job, first.neighbours, engine)
    ending.callback(close_all, exact)
    check_unchanged(first.run.run, before)
    return exact


def check_plans(run: LinkedTables, engine: Engine) -> None:
    """Raise an error for tables and joins that cannot be planned, before the first measurement is charged.

    They are planned for the expected shares; cells that are not public are those that the domain files assume.
    """
    job, _ = expected_job(run.job)
    for part in (*table_jobs(job).values(), *join_jobs(job, neighbour_relation(job)).values()):
        make_plan(part, part.planning_problem(part.build_workload(part.read_domain())), engine)
