"""Exceptions raised to users: one sentence each, in a uniform format.

A message names the field, the value found, the accepted values and the remedy. It never contains a value of a record:
an error text is an output, and outputs are private only through noise.

The environment variable DPSCALE_DEBUG=1 is the only exception: an unexpected error is then attached as the cause, with
its text, which may contain records. The user who sets it is responsible for the privacy of that output.
"""

from __future__ import annotations

import os
import re
from traceback import format_exception
from typing import Any

PAGES = {  # tables of files by the page that lists their keys
    "reference/job-file": ("data", "time", "privacy", "budget", "units", "totals", "workload", "mechanism",
                           "reconstruct", "engine", "output", "synthesize"),
    "domain-file": ("attributes", "numbers"),
    "databases": ("tables", "link", "joins"),
}  # fmt: skip
SECTIONS = {  # other fields by the section on them
    "data column": "docs/domain-file.md", "data columns": "docs/domain-file.md",
    "domain": "docs/domain-file.md", "reviewed": "docs/domain-file.md",
    "run directory": "docs/run-directory.md", "period": "docs/growing.md", "plan": "docs/frames.md",
    "run": "docs/frames.md", "bins": "docs/frames.md", "Synthesizer": "docs/frames.md", "frame": "docs/frames.md",
    "client": "docs/cluster.md", "release": "docs/answers.md", "query": "docs/answers.md",
    "rule": "docs/rows.md#rules", "cap": "dpscale ledger cap --help",
    "columns": "dpscale domain sketch --help", "found": "docs/domain-file.md#cells-that-are-not-public",
    "scikit": "docs/rows.md", "SDMetrics": "docs/rows.md", "of": "docs/jobs.md#sums-and-means",
    "sql": "docs/sql.md", "evidence": "docs/privacy.md#evidence-for-auditors",
}  # fmt: skip
DEBUG = "DPSCALE_DEBUG"
DEBUG_WARNING = f"{DEBUG} is set: errors are shown with their causes, which may show records. This output is PRIVATE."


def debugging() -> bool:
    """Return whether the user requested the causes of errors, which may show records."""
    return os.environ.get(DEBUG) == "1"


class DpscaleError(Exception):
    """Base class of all errors of dpscale that a user can resolve.

    Parameters
    ----------
    field : str
        Setting, column or file at fault, as the user wrote it.
    got : str
        The value found there (never a value of a record).
    takes : str
        Accepted values.
    remedy : str
        Recommended action.

    Attributes
    ----------
    exit_code : int
        Exit code of a command that ends with this error.
    state : str
        State of a stage or run that ends with this error.
    topic : str
        Page of the documentation for fields that have none of their own.

    Examples
    --------
    >>> import dpscale as dp
    >>> try:
    ...     dp.Domain(a=0)
    ... except dp.DpscaleError as error:
    ...     type(error).__name__, error.remedy
    ('DomainError', 'fix it')
    """

    exit_code = 2
    state = "failed"
    topic = "docs/jobs.md"

    def __init__(self, field: str, got: str, takes: str = "", remedy: str = "") -> None:
        """Join the parts to one sentence; a remedy that lists only values of `takes` is abbreviated."""
        self.field, self.got, self.takes, self.remedy = field, got, takes, remedy
        listed = remedy.removeprefix("there are: ").removesuffix(", …").split(", ")
        repeats = remedy.startswith("there are: ") and set(listed) <= set(takes.split(": ")[-1].split(", "))
        parts = [f"{field}: {got}", f"expected {takes}" if takes else "", "name one of them" if repeats else remedy]
        super().__init__("; ".join(part for part in parts if part))
        self.add_note(f"more: {self.more}")

    @property
    def more(self) -> str:
        """Page of the documentation, and a key or section of it, on the field at fault."""
        first, *rest = re.findall(r"^[A-Za-z_ ]+|(?<=\.)[a-z_]+(?=\.\d+$|$)", self.field) or [""]
        first, word = first.strip(), first.split(" ")[0]
        page = next((page for page, words in PAGES.items() if word in words and first not in SECTIONS), None)
        if page is None:
            return SECTIONS.get(first, SECTIONS.get(word, self.topic))
        return f"docs/{page}.md, {'.'.join([word, *rest])}"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the cause; in debug mode with its text."""
        said = type(self), (self.field, self.got, self.takes, self.remedy)
        if self.__cause__ is None or not debugging():
            return said
        shown = Cause("".join(format_exception(self.__cause__)))
        return *said, {"__cause__": shown, "__notes__": [DEBUG_WARNING]}


class Cause(Exception):
    """Traceback of an error in another process, as text."""


class JobError(DpscaleError):
    """The job file or the run directory is invalid.

    Parameters
    ----------
    field, got, takes, remedy : str
        See `DpscaleError`.
    """


class DomainError(DpscaleError):
    """The domain file is invalid, or does not fit the workload.

    Parameters
    ----------
    field, got, takes, remedy : str
        See `DpscaleError`.
    """

    topic = "docs/domain-file.md"


class DataError(DpscaleError):
    """The data cannot be read, or do not fit the domain.

    Parameters
    ----------
    field, got, takes, remedy : str
        See `DpscaleError`.
    """

    topic = "docs/jobs.md#the-data"


class RefusedValue(DataError):
    """A policy refuses a value. `worst` is the code of the reason in `records.encode`; 0 without an attribute."""

    worst = 0


class Unreadable(DataError):
    """The system cannot provide a file, regardless of its content; a cluster tries again."""


class PlanError(DpscaleError):
    """The mechanism cannot handle this workload, or not within the memory setting.

    Parameters
    ----------
    field, got, takes, remedy : str
        See `DpscaleError`.
    """

    topic = "docs/mechanisms.md"


class PlanningTimeError(DpscaleError):
    """Planning takes longer than its limit; no mechanism takes it for a workload that it does not support."""


class BudgetError(DpscaleError):
    """The ledger refuses the charge, because the budget is spent or the ledger cannot be trusted.

    Parameters
    ----------
    field, got, takes, remedy : str
        See `DpscaleError`.
    """

    topic = "docs/privacy.md#budgets-by-period"
    exit_code = 3


class TransientError(DpscaleError):
    """An external failure that may be temporary: the same command can be repeated.

    Parameters
    ----------
    field, got, takes, remedy : str
        See `DpscaleError`.
    """

    topic = "docs/faq.md"
    exit_code = 75


class Stopped(TransientError):
    """The run was stopped on request and can be resumed."""

    state = "stopped"


class Cancelled(Stopped):
    """The run was stopped by `dpscale job cancel`."""

    state = "cancelled"


class InternalError(DpscaleError):
    """A fault of dpscale: the same command fails again.

    Parameters
    ----------
    field, got, takes, remedy : str
        See `DpscaleError`.
    """

    topic = "docs/faq.md"
    exit_code = 70  # as of ReportError


class ReportError(DpscaleError):
    """A section of a report failed; the answers and the rest of the report are written.

    Parameters
    ----------
    field, got, takes, remedy : str
        See `DpscaleError`.
    """

    topic = "docs/run-directory.md"
    exit_code = 70  # EX_SOFTWARE of sysexits.h (75 is EX_TEMPFAIL): a fault of dpscale, not of the job
