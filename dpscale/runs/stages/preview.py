"""Expected errors of a job before any data are read: by family and set, over ε, and by mechanism.

Errors of a non-adaptive plan follow from its noise: at squared μ (or ε²) c they are those at 1 divided by √c. The error
at any ε and the ε for a target error are therefore conversions. The measurements of an adaptive mechanism are not known
in advance, so no errors are reported for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dpscale.answers.selections import expected_column_errors
from dpscale.answers.tables import Answered
from dpscale.base.errors import DpscaleError, JobError
from dpscale.base.numerics import AttributeSet
from dpscale.domain import Domain, Hierarchy
from dpscale.domain.public_totals import condition_of
from dpscale.job import TableJob
from dpscale.job.periods import promise
from dpscale.mechanisms import COMPOSITE, mechanism, mechanism_names, plan_problem
from dpscale.mechanisms.contract import PlanningProblem, Tools, user_store
from dpscale.plans.factor import MOST as MOST_CELLS
from dpscale.plans.measurement_plan import MeasurementPlan, budget_shares, largest_counted
from dpscale.privacy.accounting import LAPLACE, STATED_DELTA, Budget, Cost
from dpscale.privacy.attack_risk import AttackRisk
from dpscale.privacy.conversion import epsilon_of_mu, gdp_mu
from dpscale.runs.stages.plan import plan_once_by
from dpscale.workload import RECORDS, Workload, WorkloadPart
from dpscale.workload.sql.selection import select

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

# error relative to the mean count above which a fixed plan is usually less accurate than aim-grem, and below which it
# is more accurate
LESS_ACCURATE, MORE_ACCURATE = 0.1, 0.01
LESS_ACCURATE_SUMS, MORE_ACCURATE_SUMS = 0.05, 0.005  # the same if all queries are cumulative
SAMPLED_SETS = 200  # sets of each part, at regular intervals


def mean_share(workload: Workload) -> float:
    """Return the mean share of all records that a query counts if records are spread evenly over the cells.

    It is the mean over the queries of sampled sets.
    """
    # queries of each set, and the mean share that they count
    pairs = [(part.count(names), part.mean_entry(names)) for part in workload.parts for names in _sample_sets(part)]
    return sum(count * share for count, share in pairs) / sum(count for count, _ in pairs)


def _sample_sets(part: WorkloadPart) -> list[AttributeSet]:
    return [names for names in part.sets[:: max(1, len(part.sets) // SAMPLED_SETS)] if names] or [()]


def accuracy_thresholds(workload: Workload) -> tuple[float, float]:
    """Return two thresholds of the error of a query relative to its mean count.

    Above the first, a fixed plan is usually less accurate than `aim-grem`; below the second, more accurate.
    """
    sizes = [size for part in workload.parts for names in part.sets for size in part.domain.shape(names)]
    of_sums = all(part.cumulative for part in workload.parts) and max(sizes, default=0) <= MOST_CELLS
    return (LESS_ACCURATE_SUMS, MORE_ACCURATE_SUMS) if of_sums else (LESS_ACCURATE, MORE_ACCURATE)


def compare_with_adaptive(workload: Workload, error: float, rows: int | None) -> list[str]:
    """Return advice on the choice between this fixed plan and `aim-grem`.

    The thresholds are errors relative to the mean count, at which experiments found one of the mechanisms better. With
    the mean share s of all records that a query counts, the error e is at threshold t for e / (t s) records.

    Parameters
    ----------
    workload : Workload
    error : float
        Error of a query, in records.
    rows : int or None
        Number of rows, if it is public.

    Returns
    -------
    list of str
        Empty if all sets have one attribute.
    """
    share = mean_share(workload)
    if not share or max(map(len, workload.sets), default=0) < 2:
        return []
    few, many = (_two_digits(error / (threshold * share)) for threshold in accuracy_thresholds(workload))
    if rows is None:
        return [f"With fewer than about {few:,} records, `aim-grem` is usually more accurate than this plan; with more"
                f" than {many:,} records, this plan is. In between, either can be."]  # fmt: skip
    if rows > many:
        return []
    likely = "is usually" if rows < few else "may be"
    return [f"With {rows:,} public_rows, `aim-grem` {likely} more accurate than this plan; this plan is usually more"
            f" accurate with more than about {many:,} records."]  # fmt: skip


def _two_digits(records: float) -> int:
    """Return a number rounded to two digits."""
    return int(float(f"{records:.2g}"))


EPSILONS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)  # of the curve of errors
USUAL_ROWS = 100_000  # guessed records for errors that depend on them
# best and worst sets of a family; sets whose errors are computed; rules that are named
SHOWN, MOST, SHOWN_RULES = 5, 2000, 10
LARGE_SHARE = 0.5  # share of the budget for sets of one degree from which on it is mentioned
MANY_SETS, LARGE_NOISE, LEAST_COST = 50, 100.0, 1e-12  # of a target: sets, and records of noise if each set is measured


def expected_errors(measurement_plan: MeasurementPlan, budget: Budget) -> dict[str, list[dict[str, Any]]]:
    """Return expected errors by family and degree, and by level of each hierarchy.

    Both lists are empty for an adaptive mechanism.

    Returns
    -------
    dict
        `families`: for each family and degree, sets, queries, the root mean square error, and the best and worst sets.
        `levels`: for each level of a hierarchy in the workload, nodes, sets, queries, and the root mean square error of
        counts; the level of sets without one is None.
    """
    by_set = measurement_plan.forecast(budget).errors(MOST)
    names = dict.fromkeys(errors["name"] for errors in by_set)
    families = [_family(name, [errors for errors in by_set if errors["name"] == name]) for name in names]
    counts = [errors for errors in by_set if errors["unit"] == RECORDS]
    levels = [row for hierarchy in measurement_plan.workload.domain.hierarchies for row in _levels(hierarchy, counts)]
    return {"families": families, "levels": levels}


COLUMN_ERRORS = ["statement", "column", "rows", "error", "worst", "missing"]


def column_errors(
    job: TableJob, measurement_plan: MeasurementPlan, budget: Budget, rows: int | None = None
) -> dict[str, Any] | None:
    """Return the expected errors of ratios, variances and quantiles of SELECT statements; None without any.

    Parameters
    ----------
    job : TableJob
    measurement_plan : MeasurementPlan
    budget : Budget
    rows : int, optional
        Guessed number of records. Default: the public number of rows of the job, or 100,000.

    Returns
    -------
    dict or None
        `records`, which are spread evenly over the cells, and `columns` with the errors of each.
    """
    statements = [statement for part in job.workload for statement in part.statements]
    records = rows or job.privacy.public_rows or USUAL_ROWS
    estimates = measurement_plan.forecast(budget).estimates_of_guess(records) if statements else None
    if estimates is None:
        return None
    answered, domain = Answered(estimates, ""), measurement_plan.workload.domain
    columns = []
    for statement in statements:
        columns += expected_column_errors(answered, select(statement, domain, job.unit_columns))
    return {"records": records, "columns": columns} if columns else None


def _levels(hierarchy: Hierarchy, sets: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for every level of a hierarchy that a set has, the top first; empty without any.

    A set with several levels is in the row of the deepest one, a set without any in that of None, the total.
    """
    by_level: dict[str | None, list[Mapping[str, Any]]] = {None: []} | {name: [] for name in hierarchy.names}
    for errors in sets:
        deepest = next((name for name in reversed(hierarchy.names) if name in errors["attributes"]), None)
        by_level[deepest].append(errors)
    if not any(by_level[name] for name in hierarchy.names):
        return []

    nodes = dict(zip((None, *hierarchy.names), (1, *hierarchy.sizes), strict=True))
    return [{"hierarchy": hierarchy.leaf, "level": name, "nodes": nodes[name], "sets": len(of_level),
             "queries": sum(errors["queries"] for errors in of_level), "error": _rms(of_level)}
            for name, of_level in by_level.items() if of_level]  # fmt: skip


def _rms(rows: Sequence[Mapping[str, Any]]) -> float:
    """Return the root mean square error of the queries of some sets or families."""
    squares = math.fsum(row["queries"] * row["error"] ** 2 for row in rows)
    return math.sqrt(squares / sum(row["queries"] for row in rows))


def _family(name: str, sets: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the errors of a family: of all its sets together, and of the sets with the smallest and largest error."""
    queries = sum(of_set["queries"] for of_set in sets)
    errors = []  # of each set, the smallest first
    for of_set in sorted(sets, key=lambda of_set: of_set["error"]):
        errors.append(
            {"attributes": list(of_set["attributes"]), "queries": of_set["queries"], "error": of_set["error"]}
        )
    return {"family": name, "sets": len(sets), "queries": queries, "error": _rms(sets),
            "unit": sets[0].get("unit", RECORDS),
            "best": errors[:SHOWN], "worst": errors[::-1][:SHOWN]}  # fmt: skip


def rms_error(families: Sequence[Mapping[str, Any]]) -> float:
    """Return the root mean square error over the families of the main unit."""
    return _rms([family for family in families if family["unit"] == main_unit(families)])


def main_unit(families: Sequence[Mapping[str, Any]]) -> str:
    """Return "records" if there are counts, otherwise the unit of the first family."""
    units = [family["unit"] for family in families]
    return RECORDS if RECORDS in units else str(units[0])


def error_curve(job: TableJob, error: float) -> list[dict[str, float]]:
    """Return the root mean square error at several ε, computed from the error at the job's budget.

    δ is that of the job, or 10⁻⁹ if its budget is in another unit.
    """
    budget, curve = job.privacy.budget, []
    for epsilon in EPSILONS:
        other = _budget_at(budget.noise, epsilon, _delta(job))
        # the variance is inversely proportional to the cost
        curve.append({"epsilon": epsilon, "error": error * math.sqrt(budget.privacy_cost / other.privacy_cost)})
    return curve


def _delta(job: TableJob) -> float:
    return job.privacy.delta or STATED_DELTA


def _budget_at(noise: str, epsilon: float, delta: float) -> Budget:
    return Budget(noise, epsilon if noise == LAPLACE else gdp_mu(epsilon, delta) ** 2)


def required_epsilon(job: TableJob, error: float, target: float) -> dict[str, float]:
    """Return the ε at which the root mean square error is `target`, and the budget in the unit of the job.

    `error` is that at the budget of the job.
    """
    if not 0 < target < math.inf:
        raise JobError("--error", f"{target:g}", "a number of records above 0", "set a positive number")
    budget = job.privacy.budget
    # the error is inversely proportional to the root of the privacy cost, which is μ² or ε²
    cost = budget.privacy_cost * (error / target) ** 2
    if budget.noise == LAPLACE:
        return {"error": target, "epsilon": math.sqrt(cost)}
    return {"error": target, "epsilon": epsilon_of_mu(math.sqrt(cost), _delta(job)), "delta": _delta(job),
            "rho": cost / 2, "privacy_cost": cost}  # fmt: skip


def planned_risk(job: TableJob) -> AttackRisk:
    """Return the attack risk of a release that uses the whole budget of a job."""
    domain = job.read_domain()
    searches = job.search_budget(domain)
    protects = promise(job.data, job.periods, job.read_period()) if job.data.period else job.data.protects
    cost = searches.total.cost + Cost(delta=searches.total_delta)
    return AttackRisk.of(cost, protects, bool(condition_of(domain.public_totals)), job.engine.seed is None)


def compare_mechanisms(
    job: TableJob, measurement_plan: MeasurementPlan, engine: Engine, most_cells: int
) -> list[dict[str, Any]]:
    """Return the root mean square error of every mechanism with default options, lowest first, or why it has none."""
    domain = job.read_domain()
    problem = replace(job.planning_problem(measurement_plan.workload, domain), budget=job.answer_budget(domain))
    tools = Tools(engine.each("solve-attribute"), user_store(), most_cells)
    lines = [_mechanism_error(name, job, problem, tools) for name in mechanism_names() if name != COMPOSITE]
    return sorted(lines, key=lambda line: line["error"] if line["error"] is not None else math.inf)


def _mechanism_error(name: str, job: TableJob, problem: PlanningProblem, tools: Tools) -> dict[str, Any]:
    """Return the expected error of a job with another mechanism; None, and `why`, if it has none."""
    try:
        named = mechanism(name)
    except JobError as error:  # of another distribution, which cannot be imported
        return {"mechanism": name, "error": None, "why": str(error)}
    if not named.data_independent:
        return {"mechanism": name, "error": None, "why": "adaptive: its errors depend on the data"}
    no_options = dict[str, Any]()
    is_of_job = name == job.mechanism.name
    options, given = (job.options, job.mechanism.given) if is_of_job else (named.Options(), no_options)
    try:
        plan = plan_once_by(named, given, options, problem, tools.most_cells,
                            lambda planned: plan_problem(planned, problem, options, tools))  # fmt: skip
    except DpscaleError as error:
        return {"mechanism": name, "error": None, "why": f"not applicable to this job ({error})"}
    return {"mechanism": name, "error": plan.forecast(problem.budget).summary["rmse"], "why": ""}


def list_advice(job: TableJob, measurement_plan: MeasurementPlan, families: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the conclusions from the expected errors as sentences."""
    domain = measurement_plan.workload.domain
    return [
        *_on_rules(domain),
        *_on_assumed_cells(measurement_plan),
        *_on_errors(job, measurement_plan, families),
        *_on_target(job, measurement_plan),
    ]


def _on_rules(domain: Domain) -> list[str]:
    """Return the sentence on the rules between attributes; empty without rules."""
    count = len(domain.rule_texts)
    if not count:
        return []
    return [f"{count} {'rule' if count == 1 else 'rules'} between attributes {'is' if count == 1 else 'are'} taken as"
            f" public: {'; '.join(domain.rule_texts[:SHOWN_RULES])}{'; …' if count > SHOWN_RULES else ''}. All rows and"
            " maximum-entropy estimates satisfy them, at no cost."]  # fmt: skip


def _on_assumed_cells(measurement_plan: MeasurementPlan) -> list[str]:
    """Return sentences on what is assumed where cells are not public."""
    domain = measurement_plan.workload.domain
    assumed = [f"{axis.name} ({axis.size})" for axis in domain.searches if axis.name not in domain.number_names]
    ends = [axis.name for axis in domain.searches if axis.name in domain.number_names]
    lines = []
    if assumed:
        lines.append(f"The cells of {', '.join(assumed)} are not public: the numbers in brackets are assumed, and the"
                     " stage `discover` finds the cells before the release is planned.")  # fmt: skip
    if ends:
        lines.append(f"The range of {', '.join(ends)} is not public: errors in units of the column are those of an"
                     " assumed range, and are proportional to the one that the stage `discover` finds.")  # fmt: skip
    return lines


def _on_errors(job: TableJob, measurement_plan: MeasurementPlan, families: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return sentences on the expected errors: the largest, and what would halve them; on their absence if adaptive."""
    if not families:
        simulated = getattr(job.estimating, "errors", "none") == "simulated"
        later = "The release has approximate standard errors, by simulation." if simulated else "The release has none."
        return [f"The mechanism selects its measurements from the data, so errors are not known in advance. {later}"]
    unit = main_unit(families)
    worst = max((family for family in families if family["unit"] == unit), key=lambda family: family["error"])
    what = "count" if unit == RECORDS else "answer"
    sentences = [
        # two standard errors, about the 95 % level
        f"A true {what} below about {2 * worst['error']:.3g} cannot be distinguished from 0 in {worst['family']}, the"
        " family with the largest error.",
        *_by_rows(job, measurement_plan),
        *_by_share(measurement_plan),
    ]
    error = rms_error(families)
    fixed = measurement_plan.rounds is None and not measurement_plan.workload.numbers
    if fixed and job.privacy.budget.noise != LAPLACE:
        sentences += compare_with_adaptive(measurement_plan.workload, error, job.privacy.public_rows)
    half = required_epsilon(job, error, error / 2)
    sentences.append(
        f"Half the error ({error / 2:.3g} {unit}) needs epsilon = {half['epsilon']:.3g}. At the same budget, fewer"
        " families or a lower degree reduce the error of the other queries."
    )
    return sentences


def _on_target(job: TableJob, measurement_plan: MeasurementPlan) -> list[str]:
    """Propose a target for the rows of a job that has many sets at a small budget."""
    sets, has_target = len(measurement_plan.workload.sets), any(part.target is not None for part in job.workload)
    if job.synthesize is None or has_target or sets < MANY_SETS:
        return []
    cost = measurement_plan.cost
    # standard error of a count if all sets have equal shares of the budget: √(sets / μ²), or sets / ε for pure noise
    noise = math.sqrt(sets / float(cost.gaussian)) if cost.gaussian else sets / max(float(cost.pure), LEAST_COST)
    if noise < LARGE_NOISE:
        return []
    return [f"The budget is small for {sets:,} sets. If models of the rows shall predict an attribute,"
            ' `target = "NAME"` in [synthesize] measures its pairs and triples more precisely.']  # fmt: skip


def _by_rows(job: TableJob, measurement_plan: MeasurementPlan) -> list[str]:
    """Return the average count of a cell, if the number of rows is public."""
    rows = job.privacy.public_rows
    if not rows:
        return []
    cells, names = largest_counted(measurement_plan)
    return [f"A cell of the largest counted table ({cells:,} cells of {', '.join(names)}) contains"
            f" {rows / cells:.3g} of the public_rows on average."]  # fmt: skip


def _by_share(measurement_plan: MeasurementPlan) -> list[str]:
    """Return the number of attributes of the sets that use most of the budget."""
    shares: dict[int, float] = {}
    for attributes, share in budget_shares(measurement_plan).items():
        shares[len(attributes)] = shares.get(len(attributes), 0.0) + share
    degree = max(shares, key=shares.__getitem__, default=0)
    if shares.get(degree, 0.0) < LARGE_SHARE or degree < 2:
        return []
    return [f"{100 * shares[degree]:.0f} % of the budget is used to measure sets of {degree} attributes."]
