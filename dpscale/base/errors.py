"""The exceptions that users meet: one sentence each, in one shape.

A message names the field, what it got, what it takes and the remedy. No message holds a value of a record: an error
text is an output, and outputs are private only by noise.

The environment variable DPSCALE_DEBUG=1 is the one exception: an unexpected error is then the cause of ours, with its
text, which may tell of records. Who sets it keeps what is shown private.
"""

from __future__ import annotations

import os
from traceback import format_exception
from typing import Any

DEBUG = "DPSCALE_DEBUG"
DEBUG_WARNING = f"{DEBUG} is set: errors are shown with their causes, which may show records. This output is PRIVATE."


def debugging() -> bool:
    """Whether the user asks for the causes of errors, whatever they tell of records."""
    return os.environ.get(DEBUG) == "1"


class DpscaleError(Exception):
    """Base of all errors of dpscale that a user can mend.

    Parameters
    ----------
    field: the setting, column or file at fault, as the user wrote it.
    got: what was found there (never a value of a record).
    takes: what would be accepted.
    remedy: what to do about it.

    `exit_code`: of a command that it ends; `state`: of a stage, or of a run, that it ends.
    """

    exit_code = 2
    state = "failed"

    def __init__(self, field: str, got: str, takes: str = "", remedy: str = "") -> None:
        self.field, self.got, self.takes, self.remedy = field, got, takes, remedy
        parts = [f"{field}: {got}", f"it takes {takes}" if takes else "", remedy]
        super().__init__("; ".join(part for part in parts if part))

    def __reduce__(self) -> tuple[Any, ...]:
        """What travels between processes: no cause, but as text where the user asks for it."""
        said = type(self), (self.field, self.got, self.takes, self.remedy)
        if self.__cause__ is None or not debugging():
            return said
        shown = Cause("".join(format_exception(self.__cause__)))
        return *said, {"__cause__": shown, "__notes__": [DEBUG_WARNING]}


class Cause(Exception):
    """The traceback of an error in another process, as text."""


class JobError(DpscaleError):
    """The job file or the run directory is wrong."""


class DomainError(DpscaleError):
    """The domain file is wrong, or does not fit the workload."""


class DataError(DpscaleError):
    """The data cannot be read, or does not fit the domain."""


class RefusedValue(DataError):
    """A policy refuses a value. `worst`: why, as `tables.encode` numbers it; 0 where no attribute is concerned."""

    worst = 0


class Unreadable(DataError):
    """A file that the system does not give, whatever is in it: a cluster tries again."""


class PlanError(DpscaleError):
    """The mechanism cannot take this workload, or not within the memory setting."""


class BudgetError(DpscaleError):
    """The ledger refuses: the budget is spent, or the ledger cannot be trusted."""

    exit_code = 3


class TransientError(DpscaleError):
    """Something outside failed in a way that may pass: the same command can be tried again."""

    exit_code = 75


class Stopped(TransientError):
    """Somebody asked it to stop, nothing failed: the run can go on where it stopped."""

    state = "stopped"


class Cancelled(Stopped):
    """The same by `dpscale cancel`."""

    state = "cancelled"


class ReportError(DpscaleError):
    """A section of a report could not be made; answers are written, and the rest of the report too."""

    exit_code = 70  # EX_SOFTWARE of sysexits.h, whose EX_TEMPFAIL is 75: a fault of dpscale, not of the job
