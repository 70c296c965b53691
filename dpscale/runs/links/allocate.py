"""Stage `allocate`: the first measurement of a run, and the division of its budget.

Everything that can be refused is checked before the charge: plans, keys, links and public tables. The division is
stored before its digest is recorded on the ledger; after a stop in between, the stored one is recorded.
"""

from __future__ import annotations

from contextlib import ExitStack

from dpscale.engine import Engine
from dpscale.job.allocation import Divisible, expected_job, is_open, with_bounds
from dpscale.job.join_job import join_jobs
from dpscale.job.neighbours import neighbour_relation, table_jobs
from dpscale.records.origin import Stamps
from dpscale.runs.composite import STARTED, CompositeRun
from dpscale.runs.links.first_measurement import FirstMeasurement, job_of_public_cells
from dpscale.runs.links.link_data import check_orders
from dpscale.runs.links.link_parts import LinksByName
from dpscale.runs.links.measuring import (
    check_tables_have_rows,
    check_unchanged,
    close_all,
    current_stamps,
    read_all,
    snapshot_of,
)
from dpscale.runs.links.public_tables import check_public
from dpscale.runs.stages.budget import ensure_noise_key
from dpscale.runs.stages.plan import make_plan


def perform(run: CompositeRun, engine: Engine) -> None:
    """Measure, divide the budget, and record the shares, which the run then has."""
    run.pin_versions()
    first = FirstMeasurement(run, job_of_public_cells(run.job))
    if not run.is_allocated:
        first = _measure_and_divide(first, engine)
    first.record_division()
    first.publish()


def _measure_and_divide(first: FirstMeasurement, engine: Engine) -> FirstMeasurement:
    """Measure and store the division; return the measurement with the bounds that it has chosen."""
    run = first.run
    first.charge(reserve=False)
    check_plans(run, engine)
    ensure_noise_key(run)
    stamps_before = current_stamps(run)
    snapshot_of(run, engine)
    check_public(run.job)
    check_tables_have_rows(run, engine)
    check_orders(engine, run.job)
    if run.discovery:  # later stages read the links with attributes whose cells are not known yet
        close_all(read_all(run.job, run.neighbours, engine))
    with ExitStack() as ending:
        exact = _read(first, engine, stamps_before, ending)
        run.update(divides=STARTED)
        if first.open_bounds:
            first = first.with_private_bounds(engine, lambda: check_unchanged(run, stamps_before))
            ending.close()
            exact = _read(first, engine, stamps_before, ending)
        known, cut = first.measure(exact), first.cut_shares(exact)
    bounds = {link.called: link.bound for link in first.job.link if is_open(run.job, link)}
    divisible = Divisible(with_bounds(run.job, bounds), first.neighbours)
    content = divisible.divide(known, measured=True).to_dict()
    run.record_allocation(content | {"bounds": bounds, "cut": cut})
    return first


def _read(first: FirstMeasurement, engine: Engine, stamps_before: list[Stamps], ending: ExitStack) -> LinksByName:
    """Read and check all links, and let them be removed at the end."""
    exact = read_all(first.job, first.neighbours, engine)
    ending.callback(close_all, exact)
    check_unchanged(first.run, stamps_before)
    return exact


def check_plans(run: CompositeRun, engine: Engine) -> None:
    """Raise an error for tables and joins that cannot be planned, before the first measurement is charged.

    They are planned for the expected shares; cells that are not public are those that the domain files assume.
    """
    job = expected_job(run.job)[0]
    for own in (*table_jobs(job).values(), *join_jobs(job, neighbour_relation(job)).values()):
        make_plan(own, own.planning_problem(own.build_workload(own.read_domain())), engine)
