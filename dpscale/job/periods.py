"""Period of a growing table: [data] period and the table [time] of a job.

The records of a growing table arrive by period. The period is a date attribute of the domain file, or the name of
folders such as `month=2026-01/`. It divides the records, so it is no attribute of the workload.
"""

from __future__ import annotations

import re
from dataclasses import replace

from dpscale.base.display import safe_repr
from dpscale.base.errors import DomainError, JobError
from dpscale.domain import Attribute, Domain
from dpscale.domain.attribute import NAMES, PERIODS, name_of, read_period
from dpscale.job.sections import MOST_PERIODS, PeriodSettings, SynthesizeTable, TableSection
from dpscale.plans.time_plan import WINDOW
from dpscale.privacy.protection import Protection

LATEST = 9999  # year


def check_periods(data: TableSection) -> None:
    """Raise JobError for keys of [data] and [time] that contradict each other.

    The keys of [time] need a period; those that limit a unit need a privacy unit, and those of windows and of
    cumulative answers need these answers.
    """
    settings = data.time
    if data.period is not None and isinstance(data.privacy_unit, list):
        raise JobError("data.privacy_unit", f"{len(data.privacy_unit)} columns, given with data.period", "one column",
                       "combine them into one")  # fmt: skip
    if data.period is not None and data.unit_through:
        raise JobError("data.unit_through", "given with data.period", "the unit in a column of the table: other tables"
                       " may assign another unit to earlier rows", "add the column to the data")  # fmt: skip
    # keys of [data] alone are checked above, those of [time] below
    if settings is None:
        return
    if data.period is None:
        raise JobError("time", "given without data.period", "the name of the date attribute or of the folders of the"
                       " periods", 'add period = "NAME" to [data]')  # fmt: skip
    if (settings.window is not None) != (WINDOW in settings.answers):
        raise JobError("time.window", f"{settings.window} with answers {', '.join(settings.answers)}",
                       'window together with "window" in answers', "set both or neither")  # fmt: skip
    if settings.max_periods_per_unit is not None and data.privacy_unit is None:
        raise JobError("time.max_periods_per_unit", "given without data.privacy_unit", "a privacy unit",
                       "a row is in one period: leave it out")  # fmt: skip
    if settings.after is not None and "cumulative" not in settings.answers:
        raise JobError("time.after", "given without cumulative answers", 'answers with "cumulative"',
                       "add it, or leave it out")  # fmt: skip
    if settings.changed == "accept" and data.privacy_unit is not None:
        raise JobError("time.changed", '"accept" with a privacy unit', '"refuse": the cost of changes is bounded for'
                       " the row unit only", "leave it out")  # fmt: skip


def check_rows(settings: SynthesizeTable) -> None:
    """Raise JobError for settings of synthetic rows that do not apply to a growing table."""
    if settings.rows is not None or settings.weights:
        name = "rows" if settings.rows is not None else "weights"
        raise JobError(f"synthesize.{name}", "given with data.period",
                       "the estimated number of new records of each period", "leave it out")  # fmt: skip


def without_period(domain: Domain, name: str | None) -> Domain:
    """Return the domain of the workload, without the attribute of the period."""
    return domain.without(name) if name is not None and name in domain.names else domain


def period_attribute(data: TableSection, settings: PeriodSettings) -> Attribute:
    """Return the periods of a job as a date attribute, whose cells are the periods.

    Raises JobError if neither the domain file nor the folders of the data define them, or if they would not divide the
    records: each period must have a cell of its own, and every record exactly one period.
    """
    name, domain = str(data.period), Domain.read(data.domain)
    dates = domain[name] if name in domain.names else _of_folders(data, settings)
    # rows are drawn period by period, so that unique texts could repeat
    unique = [form.name for form in domain.formats if form.unique]
    if unique:
        raise JobError("data.period", f"given with the unique format {unique[0]!r}", "formats with unique = false",
                       "set it: rows of different periods may have the same text")  # fmt: skip
    if dates.kind != "date":
        raise JobError("data.period", f"{name!r}, an attribute of kind {dates.kind}", 'an attribute of kind "date"',
                       "name another, or change its kind in the domain file")  # fmt: skip
    # start and horizon repeat the domain file, or define the periods of folders
    if settings.start is not None and _read_start(dates.by, settings.start) != dates.low:
        raise JobError("time.start", f"{settings.start} for periods from {name_of(dates.by, dates.low)}",
                       "the first period of the domain file", "leave it out")  # fmt: skip
    if settings.horizon not in (None, dates.listed):
        raise JobError("time.horizon", f"{settings.horizon} for {dates.listed} periods from"
                       f" {name_of(dates.by, dates.low)} to {name_of(dates.by, dates.high)} in the domain file",
                       "the number of periods from low to high", "set the same number")  # fmt: skip
    if not 2 <= dates.listed <= MOST_PERIODS:
        raise JobError("time.horizon", f"{dates.listed}", f"2 to {MOST_PERIODS} periods", "change low or high")
    if data.privacy_unit is not None and data.unit_column in dates.columns:
        raise JobError("data.privacy_unit", f"{data.privacy_unit!r}, the column of the period", "the column of a unit",
                       "name another")  # fmt: skip
    if settings.window is not None and settings.window > dates.listed:
        raise JobError("time.window", f"{settings.window} for {dates.listed} periods", "at most the number of periods",
                       "reduce it")  # fmt: skip
    # cells that are no periods would have records of no period
    if dates.outside == "clip" or dates.groups or dates.outside == "category" or dates.nulls == "category":
        raise JobError("data.period", f"{name!r}, which has cells that are no periods", "a date attribute whose"
                       ' outside and nulls are "reject" or "drop"', "change them in the domain file")  # fmt: skip
    return dates


def _read_start(by: str, start: str | int) -> int:
    """Return the number of the period that a job states as the first one; periods have the length `by`."""
    try:
        return read_period(by, start)
    except ValueError as error:
        raise JobError("time.start", safe_repr(start), str(error), "fix it") from None


def promise(data: TableSection, settings: PeriodSettings, period: Attribute) -> Protection:
    """Return what a growing table protects: a row, a unit over all time, or a unit in one period (`span`).

    A unit is protected over all time if `max_periods_per_unit` bounds the periods in which its rows count.
    """
    rows, periods = data.max_rows_per_unit or 1, settings.max_periods_per_unit
    if data.privacy_unit is None or periods is not None:
        return Protection(data.unit_name, bound=rows * (periods or 1))
    return Protection(data.unit_name, bound=rows, span=period.by)


def as_read(period: Attribute) -> Attribute:
    """Return the attribute with which records are read: it has cells for later periods too.

    Records after the horizon belong to the periods of a later job, and are not refused.
    """
    return replace(period, high=read_period(period.by, f"{LATEST}-12-31"), source=period.column)


def _of_folders(data: TableSection, settings: PeriodSettings) -> Attribute:
    """Return the periods that begin with the first folder of the data, or with `start`.

    Folders are named NAME=LABEL. The length of the periods follows from the form of the first label, and `horizon` is
    their number.
    """
    name = str(data.period)
    if settings.horizon is None:
        raise JobError("time.horizon", f"missing, and the domain file has no attribute {name!r}",
                       "the number of periods", "set it in [time]")  # fmt: skip
    first = settings.start
    if first is None:
        folders = sorted({value for value in folder_names(data, name) if value is not None})
        if not folders:
            raise JobError("data.period", f"{name!r}, neither an attribute of the domain nor a folder {name}=…",
                           "a date attribute, or folders such as month=2026-01",
                           "fix the name, or set time.start")  # fmt: skip
        first = folders[0]
    by = _length_of(name, str(first))
    low = _read_start(by, str(first))
    return Attribute(name=name, kind="date", low=low, high=low + settings.horizon - 1, by=by)


def folder_names(data: TableSection, name: str) -> set[str | None]:
    """Return the values of a folder name in the paths of the data's files, such as 2026-01 of `month=2026-01/`."""
    table = data.origin.table(data.path, Domain({"rows": 2}))
    fixed_columns = [dict(partition.fixed) for partition in table.partitions]  # from the names of folders
    return {columns[name] for columns in fixed_columns if name in columns}


def _length_of(name: str, label: str) -> str:
    """Return the length of the period that a label names."""
    for by in reversed(PERIODS):
        form, _ = NAMES[by]
        if re.fullmatch(form, label):
            return by
    raise JobError("data.period", f"the folder {name}={safe_repr(label)}", "folders named by year, quarter, month, week"
                   " or day, such as 2026, 2026-Q1, 2026-01, 2026-W05 or 2026-01-31", "rename them")  # fmt: skip


def read_period_file(domain: Domain) -> Attribute:
    """Return the period in the file of a run directory, a domain with this attribute alone."""
    if len(domain.names) != 1 or domain[domain.names[0]].kind != "date":
        raise DomainError("period.toml", "not one date attribute", "the file as the run wrote it", "restore it")
    return domain[domain.names[0]]
