"""A draft of a domain file from data. Its output is private: every bound and value in it was read off records."""

from __future__ import annotations

from typing import Any

import tomli_w

from dpscale.domain import Domain
from dpscale.tables.table import Table

WARNING = (
    "This draft is PRIVATE: it was read off the records. Replace its bounds and values by ones that are known without "
    "the data (a code book, a law, common sense) before any release uses it, and do not publish it."
)
MOST_VALUES = 64
BINS = 16


def sketch(path: str) -> str:
    """A domain file for the table at `path`, with the warning on top."""
    table = Table.open(path, Domain({"unknown": 2}))
    names = table.partitions[0].columns()
    seen: dict[str, _Seen] = {name: _Seen() for name in names}
    for partition in table.partitions:
        for batch in partition.batches(names):
            for name in names:
                seen[name].add(batch[name])
    attributes = {name: one.attribute() for name, one in seen.items()}
    header = "\n".join(f"# {line}" for line in WARNING.replace(". ", ".\n").split("\n"))
    return f"{header}\n\n{tomli_w.dumps({'attributes': attributes})}"


class _Seen:
    """What was seen of one column."""

    def __init__(self) -> None:
        self.values: set[Any] = set()
        self.low, self.high = float("inf"), float("-inf")
        self.numeric, self.whole, self.nulls = True, True, False

    def add(self, column: Any) -> None:
        values = column.to_pandas()
        self.nulls |= bool(values.isna().any())
        values = values.dropna()
        if len(values) and values.dtype.kind not in "iuf":
            self.numeric = False
        if len(values) and self.numeric:
            self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
            self.whole &= bool((values == values.round()).all())
        if len(self.values) <= MOST_VALUES:
            self.values.update(values.astype(str).unique() if not self.numeric else values.unique())

    def attribute(self) -> dict[str, Any]:
        nulls = {"nulls": "category" if self.nulls else "reject"}
        if not self.numeric:
            return {"kind": "categories", "values": sorted(map(str, self.values))[:MOST_VALUES],
                    "outside": "category", **nulls}  # fmt: skip
        low, high = (self.low, self.high) if self.low <= self.high else (0.0, 1.0)
        if self.whole and high - low < 1000:
            return {"kind": "integer", "low": int(low), "high": int(max(high, low + 1)), "outside": "clip", **nulls}
        width = (high - low) / BINS or 1.0
        return {"kind": "bins", "edges": [low + width * i for i in range(BINS + 1)], "outside": "clip", **nulls}
