"""Plan of a multi-table job before data are read: neighbouring relation and expected error of each component.

For a table the expected error of a query in records is that of its plan, or of residual-planner at the same budget if
the mechanism is adaptive. For a link it is the standard deviation of the noise of the number of links, of degree
histograms and of sibling sums. In addition the expected error of counts over both ends is compared with that of random
links, using the planned shares, for several numbers of links. Because no table is read, all kinds of rows are assumed
equally frequent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from dpscale.base.errors import DpscaleError
from dpscale.domain.public_totals import condition_of
from dpscale.engine.schedulers import resolve
from dpscale.job import Job, TableJob
from dpscale.job.allocation import LOSES, LinkBudget, expected_job, first_share
from dpscale.job.join_job import join_jobs
from dpscale.job.neighbours import NeighbourRelation, describe_neighbours, neighbour_relation, table_job
from dpscale.job.sections import MechanismTable
from dpscale.mechanisms import FIXED_MARGINALS
from dpscale.privacy.accounting import Cost
from dpscale.privacy.attack_risk import AttackRisk
from dpscale.relational.allocation import even_side
from dpscale.relational.assignment import PairTables
from dpscale.relational.budget_shares import plan_shares, random_error
from dpscale.relational.features import STEP
from dpscale.runs.stages.plan import make_plan

LINKS = (1_000, 10_000, 100_000, 1_000_000)  # example numbers of links, if the job states none


def overview(job: Job) -> dict[str, Any]:
    """Return the neighbouring relation in words, and share, μ, sensitivity and expected error of every component.

    `expected_job` returns the job with the expected division of its budget, and the errors of links at these shares:
    None if the job is not divided.
    """
    protects, amount = neighbour_relation(job), job.total_budget.amount
    swaps = any(condition_of(domain.public_totals) for domain in job.domains.values())
    cost = job.total_budget.cost + Cost(delta=sum(map(Fraction, job.search_deltas.values()), Fraction(0)))
    job, known = expected_job(job)
    return {
        "first_share": first_share(job) if known else 0.0,
        "linked_rows": None if known is None else {name: {"error": error, "random": known.random[name]}
                                                   for name, error in known.errors.items()},
        "neighbours": describe_neighbours(protects),
        "relation": protects.protects.relation,
        "mu": math.sqrt(amount),
        "attack_risk": AttackRisk.of(cost, protects.protects, swaps, job.engine.seed is None).describe(),
        "dataset": job.dataset,
        "pieces": list(_pieces(job, protects)),
    }  # fmt: skip


def _pieces(job: Job, protects: NeighbourRelation) -> Iterator[dict[str, Any]]:
    """Yield the share of every table and link, then of every join, with the rows that neighbours differ in.

    A share is the part of the job's squared μ, so that the μ of a piece is its root.
    """
    amount, links = job.total_budget.amount, {link.called: link for link in job.link}
    for piece, share in job.shares.items():
        kind, _, name = piece.partition(".")
        if kind == "joins":
            continue
        if kind == "tables":  # neighbours are `steps` units apart, each of which has up to `rows` rows
            moved = protects.steps.get(name, 1) * protects.rows.get(name, 1)
            expected = _of_job(table_job(job, protects, name))
        else:
            moved, expected = protects.moved[name], _of_link(LinkBudget(job, protects, links[name]))
        yield {"name": piece, "share": share, "mu": math.sqrt(amount * share), "moved": moved, "expected": expected}

    for name, join in join_jobs(job, protects).items():
        share = join.budget_share(amount)
        yield {"name": f"joins.{name}", "share": share, "mu": math.sqrt(amount * share),
               "moved": join.data.max_rows_per_unit or 1, "expected": _of_job(join)}  # fmt: skip


def _of_job(job: TableJob) -> dict[str, Any]:
    """Return the expected error of a query in records (`rmse`) and the mechanism that it is for (`by`).

    It is the job's own mechanism, or one of fixed marginals if no error is known for that; None if for neither.
    """
    for mechanism in (job.method.name, FIXED_MARGINALS):
        error = _rmse(job, mechanism)
        if error is not None:
            return {"rmse": error, "by": mechanism}
    return {"rmse": None, "by": job.method.name}


def _rmse(job: TableJob, mechanism: str) -> float | None:
    """Return the root mean square error of a job's queries with a mechanism; None if it cannot be planned."""
    tried = job
    if mechanism != job.method.name:
        data = job.data.model_copy(update={"mechanism": MechanismTable(name=mechanism)})
        tried = replace(job, data=data).checked()
    engine = resolve(scheduler="synchronous")
    try:
        domain = tried.read_domain()
        plan = make_plan(tried, tried.planning_problem(tried.build_workload(domain)), engine)
        error = plan.forecast(tried.row_budget(domain)).summary.get("rmse")
    except DpscaleError:
        return None
    finally:
        engine.close()
    return None if error is None else float(error)


def _of_link(piece: LinkBudget) -> dict[str, Any]:
    """Return the standard deviations of the noise; None if not measured.

    `random` is the expected remaining fraction of random links' error by number of links, for a link whose features are
    measured (`modelled`). `loses` is a sentence on the numbers for which a published loop is expected to be worse than
    random links, "" if there are none.
    """
    pairs = PairTables(piece.sizes(piece.link.child))
    draws = {"links": piece.links_draw() if piece.counted else None,
             "degrees": piece.degrees_draw() if piece.degrees else None}  # fmt: skip
    noise = {name: None if draw is None else math.sqrt(draw.lattice_variance) for name, draw in draws.items()}
    siblings = math.sqrt(piece.siblings_draw(pairs).lattice_variance) * STEP if piece.siblings else None
    history = piece.history  # tables of the steps between consecutive children; None without an order
    steps = None if history is None else math.sqrt(piece.steps_draw(history).lattice_variance)
    relative = _relative_errors(piece) if piece.modelled else None
    lost = [f"{int(links):,}" for links, error in (relative or {}).items() if piece.loops and error > 1]
    loses = f"{LOSES} with {', '.join(lost)} links" if lost else ""
    return {**noise, "siblings": siblings, "steps": steps, "random": relative, "loses": loses}


def _relative_errors(piece: LinkBudget) -> dict[str, float]:
    """Return the expected error of sampled links relative to that of random links, by number of links.

    The number is that of the job, or several examples if the job does not state it.
    """
    numbers = [piece.link.links] if piece.link.links else LINKS
    if piece.loops:
        return {str(links): piece.loop_error(links) for links in numbers}

    sides = even_side(piece.sizes(piece.link.parent)), even_side(piece.sizes(piece.link.child))
    errors = {}
    for links in numbers:
        problem = piece.question(sides, links)
        errors[str(links)] = plan_shares(problem).expected / max(random_error(problem), 1e-9)  # never divided by 0
    return errors
