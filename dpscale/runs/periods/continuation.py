"""Growing table that continues after the horizon of an earlier run: cumulative answers start from its final estimate.

[time] after names the directory of the earlier run, which is complete or ended. Its final cumulative values are copied
into the new run, in folder `earlier`, with the budget whose noise they have. Both runs have the same plan, so a
cumulative answer is the sum of both, and variances add: with budgets a and b of the two parts (squared mu) the sum has
the noise of a budget 1/(1/a + 1/b). Rows of the earlier run were charged there; a row is in one period of one of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from dpscale.base.errors import JobError
from dpscale.domain import Domain
from dpscale.measurement import MeasurementStore
from dpscale.plans.time_plan import CUMULATIVE
from dpscale.privacy.accounting import GAUSSIAN
from dpscale.runs.run import Run
from dpscale.storage.files import listed, present, read_bytes, read_text

EARLIER, INDEX = "earlier", "earlier.json"


def earlier_files(run: Run, domain: Domain, period_low: int) -> dict[str, bytes]:
    """Return the files of the final cumulative values of an earlier run, to be copied into a new one.

    The facts `release` and `snapshot` are labels of the values; `amount` is the squared μ of which they have the noise.

    Parameters
    ----------
    run : Run
        Earlier run.
    domain : Domain
        Domain of the new run.
    period_low : int
        Number of the first period of the new run.

    Raises
    ------
    JobError
        If the earlier run has periods to come, another domain, or no cumulative answers of a fixed plan.
    """
    directory = str(run.path)
    if not run.content.periods or not run.table.released:
        raise _refused(directory, "which is not the run of a growing table with released periods")
    table = run.table
    if not run.ended and len(table.released) < len(table.labels):
        raise _refused(directory, "which has periods to come", f"end it first: dpscale job end {directory}")
    if CUMULATIVE not in table.kinds or not table.job.method.data_independent or run.job.privacy.noise != GAUSSIAN:
        raise _refused(directory, "which has no cumulative answers of a fixed plan with Gaussian noise")
    if table.declared.digest != domain.digest:
        raise _refused(directory, "which has another domain")
    last = table.released[-1]
    if table.period.low + table.number_of(last) >= period_low:
        raise _refused(directory, f"whose last period is {last}", "let the new horizon begin after it")
    answers = table.answers_at(last, CUMULATIVE)
    store = answers.measurements
    facts = {"release": store.release, "snapshot": store.snapshot, "amount": answers.planning_problem.budget.amount,
             "plan": table.measurement_plan.digest, "last": last}  # fmt: skip
    names = [name for name in listed(store.folder) if name.endswith(".parquet")]
    files = {f"{EARLIER}/{name}": read_bytes(store.folder / name) for name in names}
    return files | {f"{EARLIER}/{INDEX}": json.dumps(facts).encode()}


def _refused(directory: str, why: str, remedy: str = "name another run, or leave it out") -> JobError:
    takes = "the run of an earlier horizon that is complete or ended, with the same domain"
    return JobError("time.after", f"{directory}, {why}", takes, remedy)


@dataclass(frozen=True, eq=False)
class EarlierValues:
    """Final cumulative values of an earlier run.

    Attributes
    ----------
    store : MeasurementStore
    amount : float
        Budget of one table whose noise they have.
    """

    store: MeasurementStore
    amount: float


def read_earlier(run: Any) -> EarlierValues | None:
    """Return the earlier values of a growing table; None if it has none. Raises JobError if its plan is another one."""
    folder = run.path / EARLIER
    if not present(folder / INDEX):
        return None
    facts: dict[str, Any] = json.loads(read_text(folder / INDEX))
    if facts["plan"] != run.measurement_plan.digest:
        raise JobError("time.after", "a run with another plan of one table", "the same workload and mechanism",
                       "use the workload of the earlier run, or leave it out")  # fmt: skip
    problem = run.planning_problem
    plan = run.read_measurement_plan(replace(problem, budget=replace(problem.budget, amount=facts["amount"])))
    rows = problem.rows_per_unit
    return EarlierValues(
        MeasurementStore(
            folder=folder,
            release=facts["release"],
            snapshot=facts["snapshot"],
            measurement_plan=plan,
            rows_per_unit=rows,
        ),
        facts["amount"],
    )
