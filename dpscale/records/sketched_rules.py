"""Rules between columns that hold in all records, as proposals for a domain file. They are private.

Numbers and dates are compared: a ≤ b, a = b, and a + b = c. A pair whose ranges do not overlap, and a rule that follows
from two others, is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from dpscale.base.arrow import as_text, is_text, pa, types
from dpscale.base.errors import DataError
from dpscale.base.expressions import spelled_name
from dpscale.base.numerics import Flags, Floats, Integers
from dpscale.domain.rule_text import WORDS
from dpscale.records.column_values import days, numbers

# columns that are compared; columns of sums; rules that are proposed
MOST_COLUMNS, MOST_SUMMED, MOST_RULES = 64, 24, 12
FEWEST = 20  # rows with all values of a rule
ROUNDING = 1e-9  # difference of a sum that counts as rounding, relative to the sum if above 1


class RuleSummary:
    """Orders and sums of columns that no batch has contradicted.

    Parameters
    ----------
    names : sequence of str
        Columns; those beyond the first MOST_COLUMNS are not compared.
    """

    def __init__(self, names: Sequence[str]) -> None:
        """Start with all orders and sums; the matrices are by first and second column."""
        self.names = list(names)[:MOST_COLUMNS]
        count = len(self.names)
        self.is_date: list[bool | None] = [None] * count
        self.above = np.zeros((count, count), np.bool_)  # whether a value of the first is above one of the second
        self.rows = np.zeros((count, count), np.int64)
        self.low, self.high = np.full(count, np.inf), np.full(count, -np.inf)
        self.sums = {triple: 0 for triple in self._triples()}

    def _triples(self) -> list[tuple[int, int, int]]:
        """Return the columns (a, b, c) that may satisfy a + b = c, among the first MOST_SUMMED; a is before b."""
        summed = range(min(len(self.names), MOST_SUMMED))
        return [(a, b, c) for a, b in combinations(summed, 2) for c in summed if c not in (a, b)]

    def add(self, batch: Mapping[str, pa.Array]) -> None:
        """Compare the columns of a batch.

        `above[a, b]` states whether column a exceeded column b in some row, `rows[a, b]` counts the rows with both, and
        `sums` has the candidate triples (a, b, c) of a + b = c with their rows.
        """
        columns = [self._values(at, batch[name]) for at, name in enumerate(self.names)]
        if not columns:
            return
        values = np.stack(columns, axis=1)
        known = ~np.isnan(values)
        self.low = np.fmin(self.low, np.min(np.where(known, values, np.inf), axis=0, initial=np.inf))
        self.high = np.fmax(self.high, np.max(np.where(known, values, -np.inf), axis=0, initial=-np.inf))
        for at in range(len(self.names)):
            self.above[at] |= (values[:, at : at + 1] > values).any(axis=0)
            self.rows[at] += (known[:, at : at + 1] & known).sum(axis=0)
        met = {triple: _sum_rows(values, triple) for triple in self.sums}
        self.sums = {triple: count + met[triple] for triple, count in self.sums.items() if met[triple] >= 0}

    def _values(self, at: int, column: pa.Array) -> Floats:
        """Return a column as numbers, or days; nan where it has none.

        A text column is one of dates if all its texts are, else one of numbers if they are.

        `at` is the number of the column. `above` states which orders a batch has contradicted, so a column of mixed
        kinds is marked as above every other one and the reverse.
        """
        column = as_text(column.dictionary_decode() if types.is_dictionary(column.type) else column)
        missing = np.full(len(column), np.nan)
        try:
            dates = days(column) if is_text(column.type) or types.is_temporal(column.type) else None
            parsed = dates if dates is not None and not dates.foreign.any() else numbers(column)
        except DataError:
            parsed = None
        # no numbers at all; booleans have no order worth a rule
        if parsed is None or types.is_boolean(column.type):
            return missing
        is_date = parsed is dates
        known = ~(parsed.missing | parsed.foreign)
        if known.any() and self.is_date[at] not in (None, is_date):
            self.above[at], self.above[:, at] = True, True  # dates in one batch, numbers in another
        self.is_date[at] = is_date if known.any() else self.is_date[at]
        return np.where(known, parsed.values.astype(np.float64), np.nan)

    def rules(self, drafts: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the rules between attributes of a draft.

        A rule needs at least FEWEST rows. An order that ranges imply, or that two other orders imply (`between @
        between`), is left out.

        `above[a, b]` is whether a value of a exceeds one of b in a row, `rows[a, b]` the number of rows with both,
        `low` and `high` the ranges. An order of columns that are equal is listed as equality only.

        Parameters
        ----------
        drafts : mapping of str to dict
            Tables of the attributes.
        """
        compared = [at for at, name in enumerate(self.names) if drafts.get(name, {}).get("kind") in
                    ("integer", "bins", "date")]  # fmt: skip
        sums = [triple for triple, rows in self.sums.items() if rows >= FEWEST and set(triple) <= set(compared)
                and not any(self.is_date[at] for at in triple)]  # fmt: skip
        rules = [f"{self._name(a)} + {self._name(b)} = {self._name(c)}" for a, b, c in sums]

        below = np.zeros(self.above.shape, np.bool_)
        for a in compared:
            for b in compared:
                same_kind = self.is_date[a] == self.is_date[b] and a != b
                # ranges that do not overlap imply the order
                can_be_violated = self.rows[a, b] >= FEWEST and self.high[a] > self.low[b]
                below[a, b] = same_kind and can_be_violated and not self.above[a, b]
        equal = below & below.T
        between = (below & ~equal).astype(np.int64)
        # a < c is left out if a < b and b < c for some b
        shown = between.astype(np.bool_) & ~(between @ between).astype(np.bool_)
        rules += [f"{self._name(a)} = {self._name(b)}" for a, b in _pairs(np.triu(equal))]
        rules += [f"{self._name(a)} <= {self._name(b)}" for a, b in _pairs(shown)]
        return tuple(rules[:MOST_RULES])

    def _name(self, at: int) -> str:
        return spelled_name(self.names[at], WORDS)


def _pairs(flags: Flags) -> list[tuple[int, int]]:
    """Return the pairs (row, column) of a matrix that are true."""
    rows: list[Integers] = list(np.nonzero(flags))
    return list(zip(*(places.tolist() for places in rows), strict=True))


def _sum_rows(values: Floats, triple: tuple[int, int, int]) -> int:
    """Return the number of rows with all three values of a rule first + second = total; -1 if some contradict it.

    A sum with a constant zero is no rule. ROUNDING is the relative tolerance of floats.
    """
    first, second, total = (values[:, at] for at in triple)
    distance = np.abs(first + second - total)
    known = ~np.isnan(distance)
    trivial = (first[known] == 0).all() or (second[known] == 0).all()
    if trivial or (distance[known] > ROUNDING * np.maximum(np.abs(total[known]), 1)).any():
        return -1 if known.any() else 0
    return int(known.sum())
