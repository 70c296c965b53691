"""What can be refused before anything is planned or made: paths, columns and their types by headers, and the cap.

Nothing of it reads a record, and a refusal leaves no run directory behind. The whole of it is looked at again where it
counts: when the table is opened, and when the release is charged.
"""

from __future__ import annotations

from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING

from dpscale.base.errors import DataError, TransientError
from dpscale.base.names import nearest
from dpscale.domain import Domain
from dpscale.job import Job
from dpscale.ledger import Ledger
from dpscale.ledger.address import is_address
from dpscale.ledger.moving import there
from dpscale.ledger.place import standing
from dpscale.privacy.accounting import Cost
from dpscale.privacy.budget import LAPLACE
from dpscale.records import Table
from dpscale.records.encode import encode
from dpscale.records.frames import FRAME
from dpscale.records.judging import empty
from dpscale.workload import Workload

if TYPE_CHECKING:
    pass

NOTHING = "0" * 64  # of what is drawn
ALMOST = 1 - 1e-6  # of the budget: what a release costs is rounded, and must not be refused for that here


def check_beforehand(job: Job, domain: Domain, workload: Workload) -> bool:
    """True; DataError, JobError or BudgetError for what would be refused later, for reasons that are known now."""
    check_cap(job)
    if job.data.path == FRAME:
        return True
    names = [name for name in domain.names if any(name in own for own in workload.sets)]
    check_table(job.data.origin.table(job.data.path, domain), names, job.data.privacy_unit)
    return True


def check_unit_column(unit: str | None, table: Table) -> None:
    """DataError where the column of the privacy unit is missing.

    Columns are listed only of formats with a schema: without a header a CSV file has its first record there.
    """
    present = table.partitions[0].columns() if unit is not None and table.lake is None else {}
    if unit is None or not present or unit in present:
        return
    named = [] if table.partitions[0].is_csv else list(present)
    raise DataError("data.privacy_unit", f"{unit!r}, which is no column of the data",
                    f"one of {', '.join(named)}" if named else "a column of the data",
                    nearest(unit, named) if named else "check the name and the header")  # fmt: skip


def check_table(table: Table, names: list[str], unit: str | None = None) -> None:
    """The columns of some attributes, and the unit's, by the first file's header: there, and of types they take."""
    check_unit_column(unit, table)
    table.require([*table.domain.columns(names), *([unit] if unit else [])])
    for name in names:
        attribute = table.domain[name]
        encode(attribute, empty(table.partitions[0].kind(attribute.column)))


def check_cap(job: Job) -> None:
    """BudgetError where the ledger's file is there and its cap leaves no room for the job's budget."""
    place, privacy = standing(job.privacy.ledger), job.privacy
    if is_address(place) or not there(place):
        return
    amount = Fraction(privacy.budget.amount * ALMOST)
    cost = Cost(pure=amount) if privacy.budget.noise == LAPLACE else Cost(gaussian=amount)
    with suppress(TransientError), Ledger.open(place, create=False) as ledger:
        ledger.charge(job.dataset, "not yet a release", cost, NOTHING, privacy.epsilon, privacy.delta, False,
                      job.data.protects, public=job.engine.seed is not None)  # fmt: skip
