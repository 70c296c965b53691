"""Whether a table has a row that is counted: after the filter and the rules that drop rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from dpscale.base.errors import RefusedValue
from dpscale.contributions.unit_ids import identities
from dpscale.domain import Domain
from dpscale.records.column_values import column_of
from dpscale.records.encode import encode
from dpscale.records.table import Partition


def has_counted_row(
    partitions: Iterable[Partition], domain: Domain, names: Sequence[str], unit: str | None = None
) -> bool:
    """Return whether some row of the partitions is counted; reading stops at the first batch with one.

    A refused value is a row: counting refuses it with its reason. `unit` is a column whose rows without an id are
    dropped.
    """
    for partition in partitions:
        columns = list(dict.fromkeys([*domain.columns(names), *([unit] if unit else [])]))
        for batch in partition.batches(columns, unit or "", None if unit in domain.columns(names) else domain):
            dropped = np.zeros(len(next(iter(batch.values()))), dtype=bool)
            try:
                for name in names:
                    encode(domain[name], column_of(domain[name], batch), dropped)
            except RefusedValue:
                return True

            if unit is not None:
                dropped |= identities(batch[unit], unit).missing
            if not dropped.all():
                return True
    return False
