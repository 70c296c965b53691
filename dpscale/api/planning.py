"""Plans of releases from Python: queries, a domain and a budget, without a file.

A `ReleasePlan` is a job whose files are in the user's data folder: the domain under a name that is the hash of its
content, the runs, and the ledger. It has everything that determines the noise; `dp.run` adds the data.

The data folder is `$DPSCALE_DATA`, else `$XDG_DATA_HOME/dpscale`, else `~/.local/share/dpscale`.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpscale.base.display import figure, glance, safe_repr
from dpscale.base.errors import JobError, PlanError
from dpscale.base.numerics import Floats
from dpscale.domain import Domain
from dpscale.job import Job, TableJob, job_content
from dpscale.job.job import with_structures
from dpscale.mechanisms import DEFAULT, plan as plan_workload
from dpscale.plans.measurement_plan import MeasurementPlan
from dpscale.records.frames import FRAME
from dpscale.storage.files import is_path, write_whole
from dpscale.workload import MARGINAL, Workload
from dpscale.workload.sql.statements import DIALECT, is_select

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from pandas import DataFrame, Series

    from dpscale.plans.measurement_plan import Forecast
    from dpscale.plans.plan import Plan
    from dpscale.privacy.accounting import Budget

DATA_VARIABLE = "DPSCALE_DATA"
DATASET = "default"
ARGUMENTS = ("domain", "mechanism", "epsilon", "delta", "unit", "rows_per_unit", "cut", "dataset", "ledger")
QUERIES = "a Workload, a list of attribute sets, a job, or the path of a job file"
Queries = Workload | Mapping[str, Any] | str | Path | Sequence[str | Sequence[str]]


@dataclass(frozen=True, eq=False)
class ReleasePlan:
    """Plan of a release: queries, budget and protected unit, and the errors that follow. It has seen no data.

    Parameters
    ----------
    content : mapping
        Content of a job file.
    folder : Path
        Folder from which its relative paths start.
    from_python : bool
        Whether `plan` made the job, whose runs are then in the user's data folder.

    Examples
    --------
    >>> dp.plan([["day"]], domain, epsilon=1).errors["queries"].tolist()
    [3]
    """

    content: Mapping[str, Any]
    folder: Path
    from_python: bool = True

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the job alone: the plan follows from it."""
        return type(self), (self.content, self.folder, self.from_python)

    @cached_property
    def job(self) -> TableJob:
        """The job, for a frame if it has no path.

        Examples
        --------
        >>> dp.plan([["day"]], domain, epsilon=1).job.privacy.epsilon
        1.0
        """
        data = self.content.get("data", {})
        return Job.parse({**self.content, "data": {"path": FRAME, **data}}, self.folder).table

    @cached_property
    def measurements(self) -> MeasurementPlan:
        """Measurements and their cost.

        Examples
        --------
        >>> dp.plan([["day"]], domain, epsilon=1).measurements.workload.query_count
        3
        """
        from dpscale.engine.schedulers import resolve
        from dpscale.runs.stages.plan import make_plan

        engine = resolve(scheduler="synchronous")
        try:
            return make_plan(
                self.job, self.job.planning_problem(self.job.build_workload(self.job.read_domain())), engine
            )
        finally:
            engine.close()

    @property
    def errors(self) -> DataFrame:
        """Expected errors: a row for each family with its queries, root mean square error and unit.

        It has no rows if the mechanism selects its measurements during the run.

        Examples
        --------
        >>> dp.plan([["day"]], domain, epsilon=1).errors.columns.tolist()
        ['family', 'sets', 'queries', 'error', 'unit']
        """
        import pandas as pd

        columns = ["family", "sets", "queries", "error", "unit"]
        return pd.DataFrame([{name: one[name] for name in columns} for one in self._families], columns=columns)

    def regression_widths(
        self,
        formula: str,
        rows: float,
        *,
        family: str = "linear",
        shares: Mapping[str | tuple[str, ...], ArrayLike] | None = None,
        level: float = 0.95,
    ) -> Series:
        """Return expected widths of the intervals of `Release.regression`, from a public guess of the table.

        Parameters
        ----------
        formula : str
        rows : float
            Guessed number of records.
        family : {"linear", "logistic", "poisson"}
        shares : mapping of str or tuple of str to array-like, optional
            Guessed share of the records in each cell, by attribute, or in each joint cell of a tuple of attributes, an
            array with an axis for each. They are public: those of another table. Default: even and independent.
        level : float

        Returns
        -------
        pandas.Series
            A width for each coefficient, to first order: where it is large, intervals are wider or unbounded.

        Raises
        ------
        PlanError
            If the needed sets are not measured, or the mechanism selects its measurements during the run.

        Examples
        --------
        >>> planned = dp.plan([["borough", "fare"]], domain, epsilon=1)
        >>> planned.regression_widths("fare ~ C(borough)", rows=1000).index.tolist()
        ['Intercept', 'C(borough)[T.Queens]']
        """
        import pandas as pd

        from dpscale.answers.regression.fit import expected_widths

        estimates = self._forecast.estimates_of_guess(rows, shares or {})
        if estimates is None:
            raise PlanError("formula", f"a plan by {self.measurements.mechanism}, which is known after the run",
                            "a mechanism with a fixed plan", "use weighted-residuals")  # fmt: skip
        return pd.Series(expected_widths(estimates, formula, family, level))

    def column_errors(self, rows: int | None = None) -> DataFrame:
        """Return expected errors of the ratios, variances and quantiles of SELECT statements.

        They depend on the table; records are taken to be spread evenly over the cells.

        Parameters
        ----------
        rows : int, optional
            Guessed number of records. Default: the public number of rows, or 100,000.

        Returns
        -------
        pandas.DataFrame
            A row for each such column: `statement`, `column`, its number of `rows`, the root mean square `error`, the
            largest error of a row (`worst`), and the number of rows with too few records (`missing`). It is empty if
            the mechanism selects its measurements during the run.

        Raises
        ------
        JobError
            If the number of records is not above 0.

        Examples
        --------
        >>> text = "SELECT day, COUNT(*) FILTER (WHERE borough = 'Queens') / COUNT(*) AS part FROM t GROUP BY day"
        >>> dp.plan(text, domain, epsilon=1).column_errors()[["column", "rows"]].to_dict("records")
        [{'column': 'part', 'rows': 3}]
        """
        import pandas as pd

        from dpscale.runs.stages.preview import COLUMN_ERRORS, column_errors

        found = column_errors(self.job, self.measurements, self._budget, rows)
        return pd.DataFrame([] if found is None else found["columns"], columns=COLUMN_ERRORS)

    def certify(self) -> DataFrame:
        """Solve the small residual spaces of the plan again by cvxpy with Clarabel (pip install 'dpscale[certify]').

        Returns
        -------
        pandas.DataFrame
            A row for each distinct residual space: its attributes, the number of such spaces, the squared error of the
            plan at the whole budget (`planned`), the value of the convex program (`optimum`) and their `ratio`. Spaces
            that are too large for the program have no values.

        Raises
        ------
        PlanError
            If cvxpy is missing, the noise is Laplace, or the plan does not measure residual spaces.

        Examples
        --------
        >>> made = dp.plan([["borough", "day"]], domain, epsilon=1, delta=1e-9, mechanism="query-smasher")
        >>> bool((made.certify()["ratio"] < 1.00001).all())
        True
        """
        import pandas as pd

        from dpscale.optimize.certificate import certify

        made = self.measurements.evidence_plan
        if made is None:
            raise PlanError("certify", f"the adaptive mechanism {self.measurements.mechanism}",
                            "a mechanism with a fixed plan", "use weighted-residuals or query-smasher")  # fmt: skip
        return pd.DataFrame([one.to_dict() for one in certify(made)])

    @property
    def protects(self) -> str:
        """Protected unit, in words.

        Examples
        --------
        >>> dp.plan([["day"]], domain, epsilon=1, unit="person", rows_per_unit=5).protects
        'all rows of one person, of which at most 5 are counted'
        """
        data = self.job.data
        if data.privacy_unit is None:
            return "one row"
        unit = data.privacy_unit if isinstance(data.privacy_unit, str) else ", ".join(data.privacy_unit)
        return f"all rows of one {unit}, of which at most {data.max_rows_per_unit} are counted"

    @property
    def ledger(self) -> str:
        """Path or address of the ledger that is charged.

        Examples
        --------
        >>> dp.plan([["day"]], domain, epsilon=1, ledger="budget.sqlite").ledger.endswith("budget.sqlite")
        True
        """
        return self.job.privacy.ledger

    @property
    def run_dir(self) -> Path | None:
        """Folder of its runs in the user's data folder; None for a job that is given as a whole.

        Examples
        --------
        >>> dp.plan([["day"]], domain, epsilon=1).run_dir.parent.name
        'runs'
        """
        if not self.from_python:
            return None
        return data_folder() / "runs" / hashlib.sha256(repr(self.content).encode()).hexdigest()[:12]

    def write(self, path: str | Path) -> None:
        """Write the job file, without data, and the domain file into the same folder.

        Parameters
        ----------
        path : str or Path
            TOML file, such as "job.toml".

        Examples
        --------
        >>> dp.plan([["day"]], domain, epsilon=1).write("job.toml")
        >>> dp.plan("job.toml").errors["queries"].tolist()
        [3]
        """
        import tomli_w

        where = Path(path)
        domain = where.with_name(f"{where.stem}.domain.toml")
        for name, packed in self.job.read_domain().to_files(domain.name).items():
            (where.parent / name).write_bytes(packed)
        content = {**self.content, "data": {**self.content["data"], "domain": domain.name}}
        where.write_text(tomli_w.dumps(content), "utf-8", newline="\n")

    @cached_property
    def _budget(self) -> Budget:
        return self.job.answer_budget(self.job.read_domain())

    @property
    def _forecast(self) -> Forecast:
        return self.measurements.forecast(self._budget)

    @cached_property
    def _families(self) -> list[dict[str, Any]]:
        from dpscale.runs.stages.preview import expected_errors

        return expected_errors(self.measurements, self._budget)["families"]

    def _facts(self) -> list[tuple[str, str]]:
        """Return pairs (name, text) that a notebook shows of the plan: queries, budget, errors and ledger."""
        from dpscale.runs.stages.preview import planned_risk

        privacy, risk = self.job.privacy, planned_risk(self.job)
        budget = [f"{name} {value:g}" for name in ("epsilon", "delta", "rho", "renyi", "privacy_cost")
                  if (value := getattr(privacy, name)) is not None]  # fmt: skip
        errors = [
            (f"error of {family['family']}", f"{figure(family['error'])} {family['unit']}") for family in self._families
        ]
        return [("queries", f"{self.measurements.workload.query_count:,}"), ("budget", ", ".join(budget)),
                ("protects", self.protects), ("attack risk", risk.rates), ("mechanism", self.measurements.mechanism),
                *(errors or [("errors", "known after the run")]),
                ("ledger", f"{self.ledger}, dataset {privacy.dataset or 'of the path'}")]  # fmt: skip

    def __repr__(self) -> str:
        return "ReleasePlan(" + "; ".join(f"{name}: {value}" for name, value in self._facts()) + ")"

    def _repr_html_(self) -> str:
        """Return the plan as HTML for notebooks: its facts, the expected errors and the next step."""
        from dpscale.api.notebook import errors_html

        facts = [one for one in self._facts() if not one[0].startswith("error")]
        return glance("Plan of a release", facts) + errors_html(self._families) + "<p>Run it: dp.run(plan, data=…)</p>"


def plan(
    queries: Queries,
    domain: Domain | str | Path | None = None,
    mechanism: str = DEFAULT,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    unit: str | Sequence[str] | None = None,
    rows_per_unit: int | None = None,
    cut: float | None = None,
    dataset: str | None = None,
    ledger: str | Path | None = None,
    **options: Any,
) -> ReleasePlan | Plan:
    """Plan a release, or a workload at unit cost; reads no data and spends nothing.

    Parameters
    ----------
    queries : Workload, sequence of attribute sets, mapping, str or Path
        Queries; sets of attributes ask for their marginals, and a text may have SELECT statements. A job, or the path
        of a job file, states everything itself.
    domain : Domain, str or Path, optional
        Public values of the attributes, or the path of a domain file. A workload has its own.
    mechanism : str
        Name of a mechanism.
    epsilon : float, optional
        Privacy budget. Without it the result is a plan at unit cost.
    delta : float, optional
        Without it the release satisfies pure ε-DP.
    unit : str or sequence of str, optional
        Column that identifies the protected unit. Default: one row is protected.
    rows_per_unit : int, optional
        Largest number of rows of a unit that are counted; required with `unit`, because all others are cut.
    cut : float, optional
        Part of the budget for the number of rows that are cut, between 0 and 1. Default: it is not measured.
    dataset : str, optional
        Name of the data in the ledger. All releases of one name share a budget. Default: "default".
    ledger : str or Path, optional
        Path or address of the ledger. Default: ledger.sqlite in the user's data folder.
    **options
        Options of the mechanism; of a plan at unit cost also `noise`, "gaussian" or "laplace", `most_cells`, and
        `each`, a map over independent problems.

    Returns
    -------
    ReleasePlan, or Plan without a budget

    Raises
    ------
    JobError
        If an argument is invalid, or states what a job states itself.
    PlanError
        If the mechanism does not support the workload.

    Examples
    --------
    >>> import dpscale as dp
    >>> domain = dp.Domain(borough=["Bronx", "Queens"], passengers=10)
    >>> dp.plan([["borough", "passengers"]], domain, epsilon=1, delta=1e-9).errors["queries"].tolist()
    [20]
    """
    _check_spelling(options)
    if isinstance(domain, str) and isinstance(queries, Workload):  # the mechanism, which was the second argument
        mechanism, domain = domain, None
    budget = {"epsilon": epsilon, "delta": delta, "unit": unit, "cut": cut, "dataset": dataset, "ledger": ledger,
              "domain": domain}  # fmt: skip
    if isinstance(queries, str) and is_select(queries):
        if domain is None or epsilon is None:
            raise JobError("plan.domain" if domain is None else "plan.epsilon", "missing for SELECT statements",
                           "the domain and the budget", "add domain= and epsilon=")  # fmt: skip
        if given := [*options, *(["cut"] if cut is not None else [])]:
            raise JobError(f"plan.{given[0]}", "given for SELECT statements", ", ".join(ARGUMENTS), "leave it out")
        return plan_sql(queries, domain, epsilon=epsilon, delta=delta, unit=unit, rows_per_unit=rows_per_unit,
                        dataset=dataset, ledger=ledger, mechanism=mechanism)  # fmt: skip
    if isinstance(queries, Mapping | str | Path):
        if given := [name for name, value in budget.items() if value is not None]:
            if domain is not None and isinstance(queries, str):
                raise JobError("plan.queries", f"{safe_repr(queries)}, a text, which is the path of a job",
                               "a list of attribute sets", f"write [[{queries!r}]]")  # fmt: skip
            raise JobError(f"plan.{given[0]}", "given together with a job", "a job that states it", "leave it out")
        return _whole_job(queries)
    if epsilon is None:
        return _at_unit_cost(queries, budget, mechanism, options)
    if unit is None and rows_per_unit not in (None, 1):
        raise JobError("plan.rows_per_unit", f"{rows_per_unit} without a unit", "the column of the unit", "add unit=")
    if unit is not None and rows_per_unit is None:
        raise JobError("plan.rows_per_unit", "missing, but the release protects a unit", "the largest number of rows of"
                       " a unit that are counted: further rows are cut", "add rows_per_unit=")  # fmt: skip
    declared, tables = _workload_tables(queries, domain)
    content: dict[str, Any] = {
        "data": {"domain": declared, **_protected(unit, rows_per_unit)},
        "privacy": _privacy(budget),
        "workload": tables,
        "mechanism": {"name": mechanism, **options},
    }
    if cut is not None:
        content["budget"] = {"cut": cut}
    made = ReleasePlan(with_structures(content, Path.cwd()), Path.cwd())
    _check_same(made, queries)
    return made


def plan_sql(  # noqa: PLR0913
    text: str,
    domain: Domain | str | Path,
    *,
    epsilon: float,
    delta: float | None = None,
    unit: str | Sequence[str] | None = None,
    rows_per_unit: int | None = None,
    dataset: str | None = None,
    ledger: str | Path | None = None,
    mechanism: str = DEFAULT,
    dialect: str = DIALECT,
    analyst: str | None = None,
) -> ReleasePlan:
    """Plan the release of SELECT statements; the arguments are those of `plan`."""
    declared = _declared(domain)
    budget = {"epsilon": epsilon, "delta": delta, "dataset": dataset, "ledger": ledger, "analyst": analyst}
    if (unit is None) != (rows_per_unit is None):
        got = "given without unit" if unit is None else "missing, but the release protects a unit"
        takes = "unit together with the largest number of its rows that are counted"
        raise JobError("sql.rows_per_unit", got, takes, "add the other one")
    content = {
        "data": {"domain": declared, **_protected(unit, rows_per_unit)},
        "privacy": _privacy(budget),
        "workload": [{"query": text} | ({} if dialect == DIALECT else {"dialect": dialect})],
        "mechanism": {"name": mechanism},
    }
    made = ReleasePlan(with_structures(content, Path.cwd()), Path.cwd())
    # raises an error for statements that cannot be answered
    _ = made.job.build_workload(made.job.read_domain())
    return made


def _check_spelling(options: Mapping[str, Any]) -> None:
    """Raise JobError for an argument that is misspelt, which is not an option of a mechanism."""
    for name in options:
        if close := get_close_matches(name, ARGUMENTS, 1, 0.8):
            raise JobError(f"plan.{name}", "unknown argument", ", ".join(ARGUMENTS), f"did you mean {close[0]!r}?")


def _privacy(budget: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table [privacy]."""
    ledger, dataset = str(budget["ledger"] or data_folder() / "ledger.sqlite"), budget["dataset"] or DATASET
    amounts = {name: budget[name] for name in ("epsilon", "delta", "analyst") if budget.get(name) is not None}
    return {**amounts, "ledger": ledger, "dataset": dataset}


def _protected(unit: str | Sequence[str] | None, rows_per_unit: int | None) -> dict[str, Any]:
    """Return the keys of [data] that state the protected unit."""
    if unit is None:
        return {}
    return {"privacy_unit": unit if isinstance(unit, str) else list(unit), "max_rows_per_unit": rows_per_unit}


def _whole_job(job: Mapping[str, Any] | str | Path) -> ReleasePlan:
    """Return the plan of a job file or of its content; reading the job refuses an invalid one at once."""
    content, folder = job_content(job)
    made = ReleasePlan(content, folder, False)
    _ = made.job
    return made


def _at_unit_cost(queries: Any, budget: Mapping[str, Any], mechanism: str, options: Mapping[str, Any]) -> Plan:
    """Return the plan of queries at cost 1, for comparisons of mechanisms without a budget.

    Of `budget` only the domain may be given, over which a list of attribute sets becomes a workload of marginals.
    """
    if given := [name for name, value in budget.items() if value is not None and name != "domain"]:
        raise JobError(f"plan.{given[0]}", "given without epsilon", "epsilon as well", "add epsilon=")
    if not isinstance(queries, Workload) and isinstance(budget["domain"], Domain):
        queries = Workload(budget["domain"]).add(MARGINAL.name, attributes=_sets(queries))
    return plan_workload(queries, mechanism, **options)


def data_folder() -> Path:
    """Return the folder of this user's runs, domains and ledger."""
    named, shared = os.environ.get(DATA_VARIABLE), os.environ.get("XDG_DATA_HOME")
    return Path(named) if named else Path(shared or Path.home() / ".local" / "share") / "dpscale"


def _sets(queries: Any) -> list[list[str]]:
    """Return attribute sets as lists of names; a name alone is a set of one attribute."""
    if not isinstance(queries, list | tuple):  # anything else may contain records
        raise JobError("plan.queries", safe_repr(queries), QUERIES, 'write [["a", "b"], ["c"]]')
    sets = [[one] if isinstance(one, str) else list(one) if isinstance(one, list | tuple) else one for one in queries]
    if strange := [one for one in sets if not isinstance(one, list) or not all(isinstance(n, str) for n in one)]:
        raise JobError("plan.queries", safe_repr(strange[0]), QUERIES, 'write [["a", "b"], ["c"]]')
    if not sets:
        raise JobError("plan.queries", "no attribute sets", QUERIES, 'write [["a", "b"], ["c"]]')
    return sets


def _workload_tables(queries: Any, domain: Any) -> tuple[str, list[dict[str, Any]]]:
    """Return the path of the domain file and the tables [[workload]]."""
    if isinstance(queries, Workload):
        return _stored_domain(queries.domain), [_part_table(part) for part in queries.parts]
    return _declared(domain), [{"family": MARGINAL.name, "attributes": _sets(queries)}]


def _declared(domain: Any) -> str:
    """Return the path of the domain file of a domain, or of a path.

    A Domain in memory is first written to a file, because a job names a path.
    """
    if isinstance(domain, Domain):
        return _stored_domain(domain)
    if domain is None or not is_path(domain):
        got = "missing" if domain is None else safe_repr(domain)
        raise JobError("plan.domain", got, "a Domain or the path of a domain file", "add it as the second argument")
    return str(Path(domain).absolute())


def _stored_domain(domain: Domain) -> str:
    """Write a domain file into the data folder under the hash of its content, and return its path."""
    files = domain.to_files()
    folder = data_folder() / "domains" / hashlib.sha256(files["domain.toml"]).hexdigest()[:16]
    for name, content in files.items():
        if not (folder / name).exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / name, content)
    return str(folder / "domain.toml")


def _part_table(part: Any) -> dict[str, Any]:
    """Return the table [[workload]] of a part of a workload.

    The weight of a part has the unit of its numbers, which a job states without it.
    """
    family = getattr(part, "family", None)
    if family is None:
        return _listed_table(part)
    units = [math.prod(family.axis(name).unit_weight for name in names) for names in part.sets]
    weights = [float(f"{weight / unit:.15g}") for weight, unit in zip(part.weights, units, strict=True)]  # as given
    weight = weights[0] if len(set(weights)) == 1 else weights
    sets = [list(family.shown(names)) for names in part.sets]  # without numbers, which are no attributes of a job
    parameters = {key: _stored_queries(given) if isinstance(given, Mapping) else given
                  for key, given in family.stated.items()}  # fmt: skip
    return {"family": family.name, "attributes": sets, "weight": weight, **parameters}


def _stored_queries(by_attribute: Mapping[str, Any]) -> dict[str, Any]:
    """Return the queries of each attribute as a job states them; matrices are stored in files."""
    return {name: _stored_array(queries) if isinstance(queries, np.ndarray) else queries
            for name, queries in by_attribute.items()}  # fmt: skip


def _listed_table(part: Any) -> dict[str, Any]:
    """Return the table of a part with queries on one set, whose array is stored in a file."""
    (names,) = part.sets
    return {"family": "predicates", "attributes": [list(names)], "file": _stored_array(part.queries(names)),
            "weight": [float(weight) for weight in part.query_weights(names)]}  # fmt: skip


def _stored_array(array: Floats) -> str:
    """Write an array into the data folder under the hash of its content, and return its path."""
    packed = io.BytesIO()
    np.save(packed, array)
    place = data_folder() / "queries" / f"{hashlib.sha256(packed.getvalue()).hexdigest()[:16]}.npy"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, packed.getvalue())
    return str(place)


def _check_same(made: ReleasePlan, queries: Any) -> None:
    """Check the job, and raise JobError if it has other queries than the workload from which it was made."""
    read = made.job.build_workload(made.job.read_domain())
    if isinstance(queries, Workload) and read.digest != queries.digest:
        raise JobError("plan.queries", "a workload that a job cannot state", QUERIES, "write it as a job file")
