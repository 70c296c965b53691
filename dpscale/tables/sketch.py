"""A draft of a domain file from data. Its output is private: every bound and value in it was read off records.

What a domain cannot take (dates, nested columns, too many texts, nothing but nulls) is left out with a comment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import tomli_w
from numpy.typing import NDArray

from dpscale.attribute import EXACT, LARGEST, OUTSIDE_LABEL
from dpscale.domain import Domain
from dpscale.errors import DataError
from dpscale.tables.numbers import Numbers, is_text, numbers
from dpscale.tables.table import Table

if TYPE_CHECKING:
    import pyarrow as pa

WARNING = (
    "This draft is PRIVATE: it was read off the records. Replace its bounds and values by ones that are known without "
    "the data (a code book, a law, common sense) before any release uses it, and do not publish it."
)
MOST_VALUES = 64
MOST_INTEGERS = 1000
BINS = 16
CODE = r"^[+-]?0\d"  # a text like 01 is a code, not a number


def sketch(path: str) -> str:
    """A domain file for the table at `path`, with the warning on top."""
    table = Table.open(path, Domain({"unknown": 2}))
    seen = {name: _Seen() for name in table.partitions[0].columns() if name}
    for partition in table.partitions:
        for batch in partition.batches(list(seen)):
            for name, one in seen.items():
                one.add(batch[name])
    drafts = {name: one.draft() for name, one in seen.items()}
    attributes = {name: draft for name, draft in drafts.items() if isinstance(draft, dict)}
    if not attributes:
        raise DataError("data.path", f"no column in {path} that a domain can take", "numbers or texts", "convert some")
    warning = [f"# {line}" for line in WARNING.replace(". ", ".\n").split("\n")]
    left_out = [f"# left out: {name!r} ({why})" for name, why in drafts.items() if isinstance(why, str)]
    return "\n".join([*warning, *left_out, "", tomli_w.dumps({"attributes": attributes})])


class _Seen:
    """What was seen of one column: a range, and at most a few texts."""

    def __init__(self) -> None:
        self.texts: set[str] = set()
        self.low, self.high = float("inf"), float("-inf")
        self.whole = self.numeric = self.textual = True
        self.null_text = self.null_number = False
        self.foreign_type = ""

    def add(self, column: pa.Array) -> None:
        import pyarrow as pa

        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        parsed = numbers(column)
        if parsed is None:
            self.foreign_type = str(column.type)
            return
        self._add_numbers(parsed)
        if is_text(column.type):
            self._add_texts(column)
        elif not pa.types.is_null(column.type):
            self.textual = False
        self.null_text |= bool(column.null_count)

    def _add_numbers(self, parsed: Numbers) -> None:
        self.numeric &= not parsed.foreign.any()
        self.null_number |= bool(parsed.missing.any())
        values = parsed.values[~(parsed.missing | parsed.foreign) & np.isfinite(parsed.values)]
        if len(values):
            self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
            self.whole &= bool((values == np.rint(values)).all())

    def _add_texts(self, column: pa.Array) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        try:
            distinct = pc.unique(column).drop_null().cast(pa.large_binary()).cast(pa.large_string())
        except pa.ArrowInvalid:
            self.foreign_type = "text that is not UTF-8"
            return
        self.numeric &= not pc.any(pc.match_substring_regex(distinct, CODE)).as_py()
        self.texts.update(distinct.slice(0, MOST_VALUES + 1 if len(self.texts) <= MOST_VALUES else 0).to_pylist())

    def draft(self) -> dict[str, Any] | str:
        """The attribute's table of the domain file, or why it is left out."""
        if self.foreign_type:
            return f"type {self.foreign_type}"
        if self.numeric and self.low <= self.high:
            nulls = "category" if self.null_number else "reject"
            return {**self._numeric_kind(), "outside": "clip", "nulls": nulls}
        if not self.textual:
            return "nothing but nulls" if self.numeric else "numbers in one file, texts in another"
        texts = sorted(self.texts - {OUTSIDE_LABEL})
        if not texts or len(texts) > MOST_VALUES:
            return f"more than {MOST_VALUES} texts: list them by hand" if texts else "nothing but nulls"
        nulls = "category" if self.null_text else "reject"
        return {"kind": "categories", "values": texts, "outside": "category", "nulls": nulls}

    def _numeric_kind(self) -> dict[str, Any]:
        if self.whole and self.high - self.low < MOST_INTEGERS and max(-self.low, self.high) < EXACT - 1:
            return {"kind": "integer", "low": int(self.low), "high": int(max(self.high, self.low + 1))}
        return {"kind": "bins", "edges": _edges(self.low, self.high).tolist()}


def _edges(low: float, high: float) -> NDArray[np.float64]:
    """Equal bins; as many as floats can tell apart."""
    if low == high:
        with np.errstate(over="ignore"):  # beyond the largest of floats; two steps, for at its end there is one side
            low = max(np.nextafter(np.nextafter(low, -np.inf), -np.inf), -LARGEST)
            high = min(np.nextafter(np.nextafter(high, np.inf), np.inf), LARGEST)
    parts = np.arange(BINS + 1) / BINS
    return np.unique(low * (1 - parts) + high * parts)
