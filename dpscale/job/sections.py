"""Sections of a job file, as pydantic models, and the parts of its workload.

Unknown keys are refused, and values are not converted.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from dpscale.base.display import nearest
from dpscale.base.errors import JobError
from dpscale.base.settings import Settings
from dpscale.domain import Domain
from dpscale.domain.public_totals import PublicTotal
from dpscale.engine.configuration import configured, configured_number, refuse
from dpscale.job.data import Address, Key, UnitSettings, key_columns
from dpscale.mechanisms import DEFAULT, DEFAULT_OF_LINKED
from dpscale.privacy.accounting import GAUSSIAN, LAPLACE, Budget
from dpscale.privacy.protection import Protection
from dpscale.records.origin import Origin
from dpscale.relational.published import Rounds
from dpscale.storage.objects import located
from dpscale.workload import MARGINAL, Workload, family_named, family_names
from dpscale.workload.listed import LABEL, is_array_file
from dpscale.workload.sql.selection import counts_units, squared_columns
from dpscale.workload.sql.statements import DIALECT, Statement, read_statements
from dpscale.workload.sums import OTHERS, SUM

BELOW_ONE = 1 - 1e-15  # factor of a budget that keeps rounding from exceeding the stated ε
PART_ROWS, LONG_PART_ROWS, PART_VALUES = 100_000, 1_000_000, 1 << 25  # of a file by default
MOST_SHORT_PARTS, MOST_PARTS = 100, 10_000  # files of PART_ROWS rows, and of any
POLISHED, MOST_POLISHED = 1.5, 1_000_000  # rows per record, and rows, above which sampling error is negligible
MOST_EPSILON, MOST_DELTA = 20, 1 / 1000  # larger budgets need allow_weak_privacy = true
LARGEST_ORDER = 1e6  # of Rényi differential privacy
BUDGETS = ("epsilon", "rho", "renyi", "privacy_cost")  # keys of [privacy], of which a job has one
SAFE_AMOUNT = 10.0  # a squared mu well below both limits
MEMORY = re.compile(r"^\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*([kKMGT]?i?B)\s*$")
UNITS = {
    "B": 1,
    **{f"{p}iB": 1024 ** (i + 1) for i, p in enumerate("KMGT")},
    **{f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGT")},
}
Share = Annotated[float, Field(gt=0, le=1)]
KINDS = Literal["many-to-many", "one-to-many", "one-to-one"]
# usual bound of links of a row until a private one is chosen; rounds of a published loop; periods of a growing table;
# attributes of a marginal of a loop
MOST_DEGREE, MOST_ROUNDS, MOST_PERIODS, MOST_ORDER = 10, 1000, 1000, 6
LOOP_KEYS = ("rounds", "marginals", "alpha", "degree", "optimised", "slices")  # of the mechanism "published"
Kind = Literal["period", "cumulative", "window"]  # of answers at a period


def _name(value: str) -> str:
    if not (value.strip() and value.isprintable()):
        raise ValueError("it must consist of printable characters")
    return value


def _not_zero(value: Any) -> Any:
    """Refuse a delta of 0, which means pure differential privacy and is stated by leaving it out."""
    if not isinstance(value, bool) and value == 0:
        raise ValueError(JobError("privacy.delta", "0", "a number above 0 and below 1",
                                  "leave delta out: epsilon alone is pure differential privacy"))  # fmt: skip
    return value


Text = Annotated[str, Field(pattern=r"\S")]
Amount = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]  # larger budgets overflow
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Delta = Annotated[float, BeforeValidator(_not_zero), Field(ge=1e-300, lt=1, allow_inf_nan=False)]
LEAST_AMOUNT = 1e-12  # in μ²: below it the noise of a single count exceeds a million records


class AboutTable(Settings):
    """Words for the readers of a release. They decide nothing, and another text is the same job."""

    title: Text | None = None
    publisher: Text | None = None
    contact: Text | None = None
    licence: Text | None = None
    notes: Text | None = None


class Renyi(Settings):
    """Rényi differential privacy of an order α: the Rényi divergence between neighbours is at most `epsilon`.

    A release of squared Gaussian-DP μ has the divergence α μ²/2 at every order, so the budget is μ² = 2 epsilon / α.
    """

    order: Annotated[float, Field(gt=1, le=LARGEST_ORDER)]
    epsilon: Amount

    @property
    def amount(self) -> float:
        """Squared Gaussian-DP μ."""
        return 2 * self.epsilon / self.order

    def __format__(self, form: str) -> str:
        return f"of order {self.order:g} with epsilon {self.epsilon:g}"


class Privacy(Settings):
    """Privacy budget (epsilon and delta, or rho, or renyi, or privacy_cost) and the ledger that records it.

    `unit` names the table of several whose rows are protected.
    """

    epsilon: Amount | None = None
    delta: Delta | None = None
    rho: Amount | None = None
    renyi: Renyi | None = None
    privacy_cost: Amount | None = None
    ledger: str = "ledger.sqlite"
    dataset: Annotated[str, AfterValidator(_name)] | None = None
    analyst: Annotated[str, AfterValidator(_name)] | None = None
    allow_weak_privacy: bool | None = None
    public_rows: Annotated[int, Field(ge=1)] | None = None
    unit: str | None = None  # None: omitted from the digest of a job

    @model_validator(mode="after")
    def _one(self) -> Privacy:
        """Refuse all but one unit of the budget; delta belongs to epsilon."""
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) != 1 or (self.delta is not None and self.epsilon is None):
            raise ValueError("set epsilon and delta, or epsilon alone (pure), or rho, or renyi, or privacy_cost")
        return self

    @model_validator(mode="after")
    def _useful(self) -> Privacy:
        """Warn of a budget whose noise hides every count: its standard deviation is about 1/√(squared μ)."""
        if self.budget.amount < LEAST_AMOUNT:
            warnings.warn(f"with this budget the noise of each count exceeds {LEAST_AMOUNT**-0.5:,.0f} records: answers"
                          " carry no information about smaller tables", UserWarning, stacklevel=2)  # fmt: skip
        return self

    @model_validator(mode="after")
    def _protects(self) -> Privacy:
        """Refuse a budget that gives no meaningful protection unless the job allows it.

        Delta is compared with the number of rows only if the job states it: the true number is private.
        """
        if not self.allow_weak_privacy:
            for fault in (self._large_epsilon, self._large_delta):
                if fault:
                    raise ValueError(fault)
        return self

    @property
    def _large_epsilon(self) -> JobError | None:
        """Error for a budget above epsilon MOST_EPSILON, at delta MOST_DELTA if it is in another unit; else None.

        A budget in another unit is converted: the δ of its squared μ at MOST_EPSILON must be at most MOST_DELTA. Below
        SAFE_AMOUNT this is true without a computation.
        """
        if self.epsilon is None:
            from dpscale.privacy.conversion import delta_of_mu

            amount = self.budget.amount
            if amount < SAFE_AMOUNT or delta_of_mu(math.sqrt(amount), MOST_EPSILON) <= MOST_DELTA:
                return None
        elif self.epsilon <= MOST_EPSILON:
            return None
        name = next(name for name in BUDGETS if getattr(self, name) is not None)
        return JobError(f"privacy.{name}", f"{getattr(self, name):g}: the odds of a guess about a record"
                        f" may grow by a factor above e^{MOST_EPSILON}", f"at most a cost of epsilon {MOST_EPSILON}",
                        "reduce it, or set allow_weak_privacy = true")  # fmt: skip

    @property
    def _large_delta(self) -> JobError | None:
        """Error for a delta above 1 / rows, with which a mechanism may publish a whole record; else None."""
        delta, rows = self.delta or 0.0, self.public_rows
        if rows and delta > 1 / rows:
            return JobError("privacy.delta", f"{delta:g} for {rows} rows permits the publication of a whole"
                            " record", f"at most 1 / public_rows, {1 / rows:.3g}",
                            "reduce delta, or set allow_weak_privacy = true")  # fmt: skip
        if delta > MOST_DELTA:
            return JobError("privacy.delta", f"{delta:g} permits the publication of one whole record in"
                            f" {round(1 / delta)}", f"at most {MOST_DELTA:g}",
                            "reduce delta, or set allow_weak_privacy = true")  # fmt: skip
        return None

    @property
    def noise(self) -> str:
        """Laplace for pure differential privacy (epsilon alone), otherwise Gaussian."""
        return LAPLACE if self.epsilon is not None and self.delta is None else GAUSSIAN

    @property
    def budget(self) -> Budget:
        """Upper limit of the cost of all draws: squared Gaussian-DP μ (twice the zCDP ρ), or pure ε.

        BELOW_ONE is a factor that keeps rounding from exceeding the stated ε. A zCDP ρ is μ²/2.
        """
        from dpscale.privacy.conversion import gdp_mu

        if self.epsilon is not None and self.delta is None:
            return Budget(LAPLACE, self.epsilon)
        if self.epsilon is not None and self.delta is not None:
            return Budget(GAUSSIAN, gdp_mu(self.epsilon, self.delta) ** 2 * BELOW_ONE)
        if self.renyi is not None:
            return Budget(GAUSSIAN, self.renyi.amount)
        return Budget(GAUSSIAN, 2 * self.rho if self.rho is not None else float(self.privacy_cost or 0))


CUT = "cut"  # name of the numbers of rows beyond bounds, and pseudo-attribute: whether children are cut
PREDICATES = "predicates"  # family of the queries in an array file
SELECT = "select"  # family of the queries of SELECT statements


class WorkloadSection(Settings):
    """One family of queries over attribute sets; its other keys are the parameters of the family.

    SELECT statements are in the file `sql`, or in `query`; the file is read when the job is (`job.selects`).
    """

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    family: str
    degree: int | None = None
    attributes: list[list[str]] | None = None
    weight: Weight | list[Weight | list[Any]] = 1.0
    file: str | None = None
    p: float | None = None
    seed: int | None = None
    numeric: list[str] | None = None
    target: str | None = None
    conditions: list[str] | None = None
    sql: str | None = None
    query: str | None = None
    dialect: str | None = None
    record_weight: str | None = None
    count: Literal["rows", "units"] | None = None
    label: str | None = Field(None, pattern=LABEL)

    @model_validator(mode="before")
    @classmethod
    def _selects(cls, content: Any) -> Any:
        """Name the family of SELECT statements, which a job does not name."""
        if isinstance(content, Mapping) and {"sql", "query"} & content.keys() and "family" not in content:
            return {**content, "family": SELECT}
        return content

    @model_validator(mode="after")
    def _known(self) -> WorkloadSection:
        """Refuse keys that are no parameters of the family."""
        is_known = self.given and self.family in family_names()  # another family is refused later
        known = type(family_named(self.family)).model_fields if is_known else {}
        unknown = {key: value for key, value in self.given.items() if key not in known}
        if unknown:
            raise ValidationError.from_exception_data("WorkloadSection", [
                {"type": "extra_forbidden", "loc": (key,), "input": value} for key, value in unknown.items()
            ])  # fmt: skip
        return self

    @property
    def given(self) -> dict[str, Any]:
        """Parameters of the family as given, except those with a field of their own."""
        return dict(self.model_extra or {})

    @property
    def families(self) -> list[str]:
        """Names of the families that the part uses."""
        queries = self.given.get("predicates")
        by_axis = queries.values() if isinstance(queries, Mapping) else ()
        return [self.family, *(name for name in by_axis if isinstance(name, str) and name in family_names())]

    @property
    def squared(self) -> list[str]:
        """Numbers whose squares the part queries; of SELECT statements the columns that may be numbers."""
        if self.family == SELECT:
            return squared_columns(self.statements)
        if self.family not in family_names() or not family_named(self.family).needs_squares:
            return []
        of = self.given.get("of")
        return [str(name) for name in (of if isinstance(of, list | tuple) else [of])]

    @property
    def statements(self) -> tuple[Statement, ...]:
        """SELECT statements of the part."""
        if self.family != SELECT:
            return ()
        return read_statements(self.query or "", self.single_weight, self.dialect or DIALECT)

    @property
    def single_weight(self) -> float:
        """Weight of all queries of the part. Raises JobError for a list."""
        if isinstance(self.weight, list):
            raise JobError("workload.weight", "a list for SELECT statements", "one weight",
                           "write -- weight: 2 before a statement")  # fmt: skip
        return self.weight

    @property
    def counts_units(self) -> bool:
        """Whether the part counts distinct privacy units."""
        return self.count == "units" or any(counts_units(statement) for statement in self.statements)

    @property
    def counts_rows(self) -> bool:
        """Whether the part has queries on rows."""
        return self.count != "units"

    def resolved(self, folder: Path) -> Self:
        """Return the part with its files as absolute paths; relative paths start at `folder`."""
        part = self if self.file is None else self.model_copy(update={"file": located(folder, self.file)})
        queries = self.given.get("predicates")
        if not isinstance(queries, Mapping):
            return part
        resolved = {}  # queries by attribute: the path of an array file, or the name of a family
        for name, value in queries.items():
            resolved[name] = located(folder, value) if is_array_file(value) else value
        return part.model_validate(part.model_dump(exclude_none=True) | {"predicates": resolved})


class Named(Settings):
    """Table that names a method; its other keys are the options of the method, which validates them."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    @property
    def given(self) -> dict[str, Any]:
        """Options as given."""
        return dict(self.model_extra or {})


class MechanismTable(Named):
    """Mechanism and its options."""

    name: str = DEFAULT


class ReconstructTable(Named):
    """Reconstruction and its options; "auto" selects the mechanism's preferred one."""

    method: str = "auto"


# keys of [engine] outside the identity of a job
LIMITS = ("scheduler", "memory", "max_sets", "max_cells", "planning_seconds", "count_in_database")


class EngineSettings(Settings):
    """Scheduler and limits of memory, sets, cells and planning. A seed marks the run as not private."""

    scheduler: str | None = None
    memory: str | None = None
    seed: int | None = None
    max_sets: Annotated[int, Field(ge=1)] | None = None  # None: of the configuration; omitted from the digest of a job
    max_cells: Annotated[int, Field(ge=1)] | None = None
    planning_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    count_in_database: bool | None = None

    @field_validator("memory")
    @classmethod
    def _memory(cls, value: str | None) -> str | None:
        if value is not None and not MEMORY.match(value):
            raise ValueError("it must be a size such as 4GiB")
        return value

    @property
    def most_sets(self) -> int:
        """Largest number of attribute sets of the workload, with their subsets."""
        return self.max_sets or int(configured_number("max-sets"))

    @property
    def most_cells(self) -> int:
        """Largest number of cells of all sets that are counted."""
        return self.max_cells or int(configured_number("max-cells"))

    @property
    def longest_planning(self) -> float:
        """Largest number of seconds of planning a table."""
        return self.planning_seconds or configured_number("planning-seconds")

    @property
    def memory_text(self) -> str:
        """Largest memory of counting, as the job or Dask's configuration states it."""
        return self.memory or str(configured("memory"))

    @property
    def bytes(self) -> int:
        """Largest memory of counting, in bytes."""
        match = MEMORY.match(self.memory_text)
        if match is None:
            refuse("memory", self.memory_text, "a size such as 4GiB")
        number, unit = match.groups()
        return int(float(number) * UNITS[unit[0].upper() + unit[1:]])


class SynthesizeTable(Settings):
    """Synthetic rows: their number (default: about the number of records), files and format."""

    rows: Annotated[int, Field(ge=1, le=10**12)] | None = None
    method: Literal["auto", "sampler", "ancestral"] = "auto"
    polish: Literal["auto", True, False] = "auto"
    parts: Annotated[int, Field(ge=1, le=10**6)] | None = None
    weights: bool = False
    types: Literal["own", "input"] = "own"
    format: Literal["parquet", "csv"] = "parquet"
    target: str | None = None  # `TableSection` makes it a part of the workload

    def parts_of(self, rows: int, columns: int) -> int:
        """Return the number of files: of PART_ROWS rows, or longer ones if they are many and fit the memory."""
        long = min(max(PART_VALUES // columns, PART_ROWS), LONG_PART_ROWS)  # rows of a longer file
        short_files = min(MOST_SHORT_PARTS, -(-rows // PART_ROWS))
        return self.parts or min(MOST_PARTS, max(1, -(-rows // long), short_files))

    def polishes(self, total: float) -> bool:
        """Return whether rows are polished.

        With "auto" they are if sampling error is visible for a released number of records `total`.
        """
        if self.polish == "auto":
            return not self.weights and (self.rows or total) <= min(POLISHED * total, MOST_POLISHED)
        return self.polish


class LinkShare(Settings):
    """Share of a link in the budget of a job of several tables."""

    share: Share | None = None


class JoinShare(LinkShare):
    """Share of a join, and the part of it, `cut`, for the number of rows beyond the bound of a unit."""

    cut: Annotated[float, Field(ge=0, lt=1)] | None = None


class TableShares(JoinShare):
    """Share of a table, and how its budget is divided.

    `discover` is the part of the squared mu for the searches for cells that are not public, and `discover_delta` their
    additive delta (default: half of the job's delta) if values are searched. Of the rest `units` is the part of the
    numbers of distinct units (default: by numbers of sets), and `cut` that of the number of rows beyond the bound of a
    unit (default: it is not measured).
    """

    discover: Annotated[float, Field(gt=0, lt=1)] | None = None
    discover_delta: Delta | None = None
    units: Annotated[float, Field(gt=0, lt=1)] | None = None

    @property
    def stated(self) -> list[str]:
        """Names of the parts that the job states."""
        return [name for name, value in self if value is not None]


class BudgetTable(Settings):
    """Division of the budget over the tables, links and joins of a job, and of the budget of a table.

    With the method "planned" a first measurement has the share `first` of the budget of the parts that state no share,
    and decides how the rest is divided; with "equal" these parts are equal. In the short form the keys of
    [budget.tables.NAME] except `share` are in [budget].
    """

    method: Literal["planned", "equal"] | None = None
    first: Annotated[float, Field(gt=0, lt=0.5)] | None = None
    tables: dict[str, TableShares] = Field(default_factory=dict)
    links: dict[str, LinkShare] = Field(default_factory=dict)
    joins: dict[str, JoinShare] = Field(default_factory=dict)


class TotalsTable(Settings):
    """Public table of exact totals of some attributes, in a file with their labels and the column `column` of counts.

    `origin` is "external", or "same records" if the totals were computed from the records of the table: the guarantee
    then holds between databases that agree on them.
    """

    path: Address
    attributes: list[str]
    origin: Literal["external", "same records"]
    count: Literal["rows", "units"] = "rows"
    column: str = "count"

    def resolved(self, folder: Path) -> TotalsTable:
        """Return the section with an absolute path; a relative one starts at `folder`."""
        return self.model_copy(update={"path": located(folder, self.path)})


def check_totals(totals: Sequence[PublicTotal], rows: int | None) -> None:
    """Raise JobError for totals of rows if rows of a unit may be dropped, and for totals of units of several rows."""
    for total in totals:
        if rows is not None and (total.counted == "rows" or rows > 1):
            raise JobError("totals.count", f"{total.counted!r} beside max_rows_per_unit = {rows}",
                           'count = "units" with max_rows_per_unit = 1, or no privacy_unit',
                           "remove the totals: rows beyond the bound are not counted")  # fmt: skip


class Output(Settings):
    """Answer files.

    Sets with more queries than `max_rows` get no file; a release answers them on demand. Intervals have the confidence
    level `level` (0.95), each separately or, with `joint`, all intervals of a set simultaneously.
    """

    max_rows: Annotated[int, Field(ge=0)] = 10_000_000
    level: Annotated[float, Field(gt=0, lt=1)] | None = None
    joint: bool | None = None


def add_part(workload: Workload, part: WorkloadSection, unit: Sequence[str] = ()) -> None:
    """Add one table [[workload]] to a workload. Raises JobError for keys that do not fit its family.

    `unit` are the columns of the privacy unit, which SELECT statements may count.

    Keys are checked before the family adds its queries, so that a message names the key of the job file.
    """
    if part.family == SELECT:
        _add_selects(workload, part, unit)
        return
    for name in ("sql", "query", "dialect"):
        if getattr(part, name) is not None:
            raise JobError(f"workload.{name}", f"given for family {part.family!r}",
                           "SELECT statements without a family", "remove one of them")  # fmt: skip
    if part.family == PREDICATES:
        _add_predicates(workload, part)
        return
    if part.family not in family_names():
        known = [*family_names(), PREDICATES]
        raise JobError("workload.family", f"{part.family!r}", ", ".join(known), nearest(part.family, known))
    if part.file is not None:
        raise JobError("workload.file", f"given for family {part.family!r}", f"family {PREDICATES} only", "remove it")
    if part.conditions is not None:
        raise JobError("workload.conditions", f"given for family {part.family!r}", f"family {PREDICATES} only",
                       "remove it")  # fmt: skip
    if part.target is not None:
        _add_target(workload, part)
        return
    given = part.given if part.label is None else part.given | {"label": part.label}
    if part.record_weight is not None and part.family not in OTHERS:
        raise JobError("workload.record_weight", f"given for family {part.family!r}", f"family {', '.join(OTHERS)}",
                       "remove it")  # fmt: skip
    if part.record_weight is not None:  # the sum of the number over the records that each query counts
        workload.add(
            SUM, part.degree, part.attributes, part.weight, of=part.record_weight, queries=part.family, **given
        )
        return
    workload.add(part.family, part.degree, part.attributes, part.weight, part.p, part.seed, part.numeric, **given)


def _add_selects(workload: Workload, part: WorkloadSection, unit: Sequence[str]) -> None:
    """Add the queries of SELECT statements."""
    given = part.model_dump(exclude_none=True, exclude={"family", "query", "dialect", "weight"})
    if given:
        raise JobError(f"workload.{next(iter(given))}", "given together with SELECT statements", "query or sql, dialect"
                       " and one weight", "remove it")  # fmt: skip
    workload.add_sql(part.query or "", part.single_weight, part.dialect or DIALECT, unit)


def _add_target(workload: Workload, part: WorkloadSection) -> None:
    """Add the pairs and triples of a target attribute."""
    given = part.model_dump(exclude_none=True, exclude={"family", "target", "weight"})
    if given or part.family != MARGINAL.name or isinstance(part.weight, list):
        wrong = next(iter(given), "family" if part.family != MARGINAL.name else "weight")
        raise JobError(f"workload.{wrong}", "given with a target", f"family {MARGINAL.name!r} and one weight",
                       "leave it out")  # fmt: skip
    workload.add_target(str(part.target), part.weight)


def _add_predicates(workload: Workload, part: WorkloadSection) -> None:
    """Add single counts, or queries from a .npy file of shape (m, n_a, n_b, …) over one attribute set."""
    if part.conditions is not None:
        _add_conditions(workload, part)
        return
    if part.file is None or part.attributes is None or len(part.attributes) != 1 or part.degree is not None:
        raise JobError(
            "workload",
            "predicates without required keys",
            "file and attributes = [[one set]], or conditions",
            "add them",
        )
    try:
        queries = np.load(part.file, allow_pickle=False)
    except (OSError, ValueError):
        raise JobError(
            "workload.file", f"{part.file} cannot be read", "an array file (.npy)", "save it with numpy"
        ) from None
    each = part.weight if isinstance(part.weight, list) else np.full(len(queries), part.weight)
    workload.add_queries(part.attributes[0], queries, each)


def _add_conditions(workload: Workload, part: WorkloadSection) -> None:
    """Add single counts, each of the records that satisfy a condition."""
    given = [name for name in ("file", "attributes", "degree") if getattr(part, name) is not None]
    if given or isinstance(part.weight, list):
        raise JobError(f"workload.{(given or ['weight'])[0]}", "given together with conditions",
                       "conditions with one weight", "remove it")  # fmt: skip
    workload.add_conditions(part.conditions or [], part.weight, part.label)


class PeriodSettings(Settings):
    """Periods of a growing table and the answers over them."""

    horizon: Annotated[int, Field(ge=2, le=MOST_PERIODS)] | None = None
    start: str | int | None = None
    answers: list[Kind] = Field(default=["period", "cumulative"], min_length=1)
    window: Annotated[int, Field(ge=2)] | None = None
    max_periods_per_unit: Annotated[int, Field(ge=1)] | None = None
    changed: Literal["refuse", "accept"] = "refuse"
    after: str | None = None

    @field_validator("answers")
    @classmethod
    def _once(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            raise ValueError("each kind of answer must be named once")
        return value

    def resolved(self, folder: Path) -> PeriodSettings:
        """Return the settings with an absolute path of the earlier run; relative ones start at `folder`."""
        return self if self.after is None else self.model_copy(update={"after": located(folder, self.after)})


class RuleTable(Settings):
    """Table [[rule]]: a public rule between attributes, as `domain.rule_text` reads it."""

    rule: str


class TableSection(UnitSettings, Named):
    """Table of a job: its data and key, its workload and methods.

    `mechanism` is a name, whose options are other keys of this section, or a section with the name and its options.
    """

    key: Key | None = None
    public: bool = False
    public_attributes: list[str] | None = None  # None: omitted from the digest of a job
    mechanism: str | MechanismTable = DEFAULT_OF_LINKED
    reconstruct: ReconstructTable | None = None
    synthesize: SynthesizeTable | None = None
    output: Output | None = None
    totals: list[TotalsTable] | None = None
    rule: list[RuleTable] | None = None
    time: PeriodSettings | None = None
    snapshot: Literal["content", "footers"] | None = None
    links: bool | None = None
    period: Annotated[str, Field(min_length=1)] | None = None
    rows: Annotated[int, Field(ge=1, le=10**9)] | None = None
    workload: Annotated[list[WorkloadSection], Field(min_length=1)] | None = None
    nulls: Literal["reject", "drop"] = "reject"
    duplicates: Literal["keep", "reject"] | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_target(cls, content: Any) -> Any:
        """Move `synthesize.target` to a part of the workload, which is measured for it."""
        rows = content.get("synthesize") if isinstance(content, Mapping) else None
        if not isinstance(rows, Mapping) or rows.get("target") is None:
            return content
        part = {"family": MARGINAL.name, "target": rows["target"]}
        others = {key: value for key, value in rows.items() if key != "target"}
        return {**content, "synthesize": others, "workload": [*(content.get("workload") or ()), part]}

    @model_validator(mode="after")
    def _charged(self) -> TableSection:
        """Refuse settings that contradict each other, and settings of a charge for a public table."""
        charged = (self.rows, self.privacy_unit, self.totals)
        if self.public and any(setting is not None for setting in charged):
            raise ValueError("a public table is released unchanged: remove rows, privacy_unit and totals")
        if self.key is not None and self.privacy_unit is not None:
            raise ValueError("a key identifies a row, and its rows are the privacy units: remove key or privacy_unit")
        if not isinstance(self.mechanism, str) and self.model_extra:
            raise ValueError(
                f"unknown key {next(iter(self.model_extra))!r}: options belong into the mechanism's section"
            )
        if self.synthesize is not None and self.rows is not None and self.synthesize.rows is not None:
            raise ValueError("rows and synthesize.rows are the same setting: remove one of them")
        return self

    def resolved(self, folder: Path) -> TableSection:
        """Return the section with absolute paths; relative paths start at `folder`."""
        parts = None if self.workload is None else [part.resolved(folder) for part in self.workload]
        paths = {"path": located(folder, self.path), "domain": located(folder, self.domain)}
        totals = self.totals and [total.resolved(folder) for total in self.totals]
        time = self.time and self.time.resolved(folder)
        sections = {"workload": parts, "totals": totals, "time": time, "unit_through": self.resolved_hops(folder)}
        return self.model_copy(update={**paths, **sections})

    def read_domain(self) -> Domain:
        """Return the domain of the file with the rules of the job."""
        return Domain.read(self.domain).with_rules([section.rule for section in self.rule or ()])

    @property
    def method(self) -> MechanismTable:
        """Mechanism and its options."""
        stated = self.mechanism
        return stated if isinstance(stated, MechanismTable) else MechanismTable(name=stated, **self.given)

    @property
    def origin(self) -> Origin:
        """Format, version and filter of the table, and whether hard and symbolic links count as separate files."""
        return replace(super().origin, links=bool(self.links), period=self.period or "")

    @property
    def protects(self) -> Protection:
        """Privacy unit of a release of the table."""
        return Protection(self.unit_name, bound=self.max_rows_per_unit or 1)


def link_name(name: str | None, child: str, via: str | None) -> str:
    """Return the name of a link: as given, that of its child, or that of the file of its pairs."""
    return name or (child if via is None else Path(via.rstrip("/*")).stem.split("*")[0] or "links")


class LinkSection(Settings):
    """Links between the rows of two tables: a table of pairs (`via`), or a foreign key of the child (`child_key`)."""

    name: Annotated[str, Field(pattern=r"^[\w-]{1,64}$")] | None = None
    kind: KINDS
    parent: str
    child: str
    via: Address | None = None
    parent_key: Key | None = None
    child_key: Key | None = None
    max_degree: Annotated[int, Field(ge=1, le=10**6)] | Literal["private"] | None = None
    protects: Literal["parent", "both"] = "parent"
    links: Annotated[int, Field(ge=1)] | None = None
    counts: list[str] | None = None
    order_by: str | Annotated[list[str], Field(min_length=1)] | None = None
    parents: list[str] | None = None
    loops: bool | None = None
    mechanism: Literal["maxent", "published"] = "maxent"
    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] | None = None
    marginals: Annotated[int, Field(ge=1, le=1000)] | None = None
    alpha: Annotated[float, Field(gt=0, lt=1)] | None = None
    degree: Annotated[int, Field(ge=2, le=MOST_ORDER)] | None = None
    optimised: Annotated[int, Field(ge=1, le=1000)] | None = None
    slices: Annotated[int, Field(ge=1, le=1000)] | None = None
    nulls: Literal["reject", "drop", "keep"] = "reject"
    dangling: Literal["reject", "drop"] = "reject"

    @field_validator("max_degree", mode="before")
    @classmethod
    def _is_bound(cls, value: object) -> object:
        """Refuse other texts than "private" with the accepted values of both types."""
        if isinstance(value, str) and value != "private":
            raise ValueError('max_degree is an integer from 1 to 1,000,000, or "private"')
        return value

    @model_validator(mode="after")
    def _fits(self) -> LinkSection:
        """Refuse settings that do not fit the kind of the link: by a table of pairs, or by a column of the child."""
        # `via` and the kind must agree: a table of pairs is many-to-many
        many = self.kind == "many-to-many"
        if many != (self.via is not None):
            raise ValueError("via, the table of pairs, is required for kind many-to-many and for no other")
        if self.child_key is None:
            raise ValueError("child_key is required: the column with the key at the other end")
        if not many and self.protects == "both":
            raise ValueError('protects = "both" requires kind many-to-many; a child is protected with its parent')
        if not many and self.links is not None:
            raise ValueError("links requires kind many-to-many; other kinds have one link per child")
        if many and self.nulls == "keep":
            raise ValueError('nulls = "keep" is for children without a parent; use "reject" or "drop" for pairs')
        # a loop is a link of a row to itself
        if self.loops is not None and self.parent != self.child:
            raise ValueError("loops requires a link within one table")
        # limits of the numbers of children, and of histories (children in an order)
        if self.kind == "one-to-one" and self.bound > 1:
            raise ValueError("max_degree of a one-to-one link is 1: remove it, or use kind one-to-many")
        if self.order_by is None and self.parents:
            raise ValueError("parents requires order_by: other parents of the children are attributes of a history")
        if self.order_by is not None and (self.kind != "one-to-many" or self.parent == self.child or self.bound < 2):
            raise ValueError("order_by requires kind one-to-many, two tables, and a max_degree of at least 2")
        if self.order_by is not None and self.mechanism == "published":
            raise ValueError('order_by requires mechanism = "maxent"')
        # options of the rounds of the published mechanism
        if self.mechanism != "published" and self._of_loop:
            raise ValueError(f'{", ".join(LOOP_KEYS)} require mechanism = "published"')
        if self.slices is not None and not many:
            raise ValueError("slices requires kind many-to-many; a child has one parent among all")
        return self

    @property
    def called(self) -> str:
        return link_name(self.name, self.child, self.via)

    @property
    def order(self) -> tuple[str, ...]:
        """Attribute that orders the children of a parent, and further columns; empty without an order."""
        return key_columns(self.order_by)

    @property
    def bound(self) -> int:
        """Largest number of links of a protected row; a usual one until a private one is chosen."""
        stated = None if self.max_degree == "private" else self.max_degree
        return stated or (1 if self.kind == "one-to-one" else MOST_DEGREE)

    @property
    def read_nulls(self) -> str:
        """Policy of reading for nulls at an end; a child that may lack a parent has no link in that case."""
        return "drop" if self.nulls == "keep" else self.nulls

    @property
    def _of_loop(self) -> dict[str, Any]:
        """Options of the mechanism "published" that the job states."""
        return {name: value for name in LOOP_KEYS if (value := getattr(self, name)) is not None}

    @property
    def loop(self) -> Rounds:
        """Options of the mechanism "published"."""
        names = {"marginals": "each", "degree": "order"}
        return Rounds(**{names.get(name, name): value for name, value in self._of_loop.items()})


class JoinWorkload(WorkloadSection):
    """Family of queries over attributes of several tables."""

    attributes: list[list[str]] | None = None
    per: str | None = None
    through: list[str] | None = None
    max_rows_per_unit: Annotated[int, Field(ge=1)] | None = None
    name: Annotated[str, Field(pattern=r"^[\w-]{1,64}$")] | None = None

    @model_validator(mode="after")
    def _over_tables(self) -> JoinWorkload:
        """Refuse settings that workloads of one table have alone."""
        if self.degree is not None or self.attributes is None:
            raise ValueError("a workload over several tables lists its attribute sets: set attributes, without degree")
        if self.count == "units":
            raise ValueError('count = "units" is for the workload of one table: remove it')
        if isinstance(self.given.get("of"), list):
            raise ValueError("products of numbers are for the workload of one table: name one number")
        if self.name == CUT:
            raise ValueError('the name "cut" is that of the numbers of rows beyond bounds: choose another')
        if self.per is not None and self.max_rows_per_unit is not None:
            raise ValueError("max_rows_per_unit with per: a parent is one row; remove it")
        return self

    @property
    def requested(self) -> list[str]:
        """Names of all attributes, numbers included."""
        in_sets = [name for names in self.attributes or [] for name in names]
        numbers = [name for name in (self.given.get("of"), self.record_weight) if isinstance(name, str)]
        return list(dict.fromkeys([*in_sets, *numbers]))

    @property
    def number(self) -> str | None:
        """Number that the part sums."""
        found = self.given.get("of") or self.record_weight
        return found if isinstance(found, str) else None

    @property
    def content(self) -> dict[str, object]:
        """The part as a job of one table contains it."""
        others = {"attributes"} if self.family == SELECT else set[str]()
        return self.model_dump(exclude_none=True, exclude={"per", "through", "max_rows_per_unit", "name", *others})


class JoinSection(Settings):
    """Section [joins.NAME]: mechanism and answers of a join."""

    mechanism: MechanismTable | None = None
    reconstruct: ReconstructTable | None = None
    output: Output | None = None


class TablesOfJob(Protocol):
    """Tables and links of a job, as the checks of their sections read them."""

    @property
    def tables(self) -> Mapping[str, TableSection]: ...
    @property
    def link(self) -> Sequence[LinkSection]: ...
    @property
    def foreign_keys(self) -> Sequence[LinkSection]: ...
    @property
    def workload(self) -> Sequence[JoinWorkload] | None: ...
    @property
    def joins(self) -> Mapping[str, JoinSection] | None: ...
    @property
    def rule(self) -> Sequence[RuleTable] | None: ...
    @property
    def declared(self) -> Mapping[str, Domain]: ...
    @property
    def domains(self) -> Mapping[str, Domain]: ...
    @property
    def budget(self) -> BudgetTable: ...
    @property
    def total_budget(self) -> Budget: ...
    @property
    def privacy(self) -> Privacy: ...
    def key(self, table: str) -> tuple[str, ...]:
        """Return the columns of a table's key."""

    def ends(self, link: LinkSection) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the columns with the parent's key and the child's."""
