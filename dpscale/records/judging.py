"""Complete checks of the data against the domain: attributes with refused values, and all faults of the data.

A counting task stops at its first refused value, which depends on how the work is partitioned. The reported refusal is
therefore derived from one more pass over all partitions, which does not depend on it. `worst_of` returns one reason per
attribute and nothing else. `faults_of` counts rows and shows values; its output is private, for the authors of a domain
file.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrow import is_text, pa, pc
from dpscale.base.display import nearest
from dpscale.base.errors import DataError, RefusedValue
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from dpscale.domain.tree import SEPARATOR
from dpscale.records.column_values import column_of
from dpscale.records.encode import NULL, OUTSIDE, UNPARSABLE, encode, judged, refusal
from dpscale.records.table import Partition

MOST_EXAMPLES, LONGEST = 5, 40  # examples of a fault, and characters of an example
ABSENT = "no such column"
Key = tuple[str, str]  # (attribute, fault)


@dataclass(frozen=True, repr=False)
class Worst:
    """Smallest code of each attribute, 0 if nothing is refused. Its repr shows nothing."""

    codes: NDArray[np.int8]

    def __repr__(self) -> str:
        return "result"


def worst_of(partitions: Iterable[Partition], domain: Domain, names: Sequence[str]) -> Worst:
    """Return the refused codes in the given partitions."""
    worst = np.zeros(len(names), dtype=np.int8)
    for partition in partitions:
        for batch in partition.batches(domain.columns(names), domain=domain):
            codes = [_worst(domain[name], column_of(domain[name], batch)) for name in names]
            worst = np.minimum(worst, np.array(codes, dtype=np.int8))
    return Worst(worst)


def _worst(attribute: Attribute, column: pa.Array) -> int:
    """Return the smallest refused code of a column, 0 if the domain accepts all values.

    Only an attribute that drops rows changes the array of flags, which is not used here.
    """
    try:
        encode(attribute, column, np.zeros(len(column), dtype=bool))
    except RefusedValue as error:
        return error.worst
    return 0


def refused_of(domain: Domain, names: Sequence[str], refusals: Sequence[Worst]) -> RefusedValue | None:
    """Return one error for all attributes with refused values, in domain order; None if there are none."""
    codes = dict(zip(names, np.minimum.reduce([judged.codes for judged in refusals]).tolist(), strict=True))
    worst = {name: codes[name] for name in domain.axis_names if codes.get(name, 0) < 0}
    return refusal(domain, worst) if worst else None


@dataclass(repr=False)
class Tally:
    """Number of rows, or files, with one fault, and the first few values as sorted texts."""

    rows: int = 0
    files: set[str] = field(default_factory=set)
    examples: set[str] = field(default_factory=set)

    def add(self, other: Tally) -> None:
        """Add the tally of another partition."""
        self.rows += other.rows
        self.files |= other.files
        self.examples = set(heapq.nsmallest(MOST_EXAMPLES, self.examples | other.examples))


@dataclass(repr=False)
class Faults:
    """All faults in the given rows. Private."""

    rows: int = 0
    tallies: dict[Key, Tally] = field(default_factory=dict)

    def add(self, key: Key, tally: Tally) -> None:
        """Add one fault of some rows or of a file."""
        self.tallies.setdefault(key, Tally()).add(tally)

    def join(self, other: Faults) -> None:
        """Add the faults of other rows."""
        self.rows += other.rows
        for key, tally in other.tallies.items():
            self.add(key, tally)


def faults_of(partition: Partition, domain: Domain) -> Faults:
    """Return all faults in a partition: missing columns, wrong types and refused values.

    A `Tally` counts the rows or files of one fault, under its key (attribute, fault). Values are checked only for
    attributes whose columns exist and have a usable type.
    """
    faults, sound = Faults(), list[Attribute]()
    columns = domain.columns(domain.axis_names)
    present = set(partition.columns() if partition.format.lists_columns else columns)
    kinds = partition.kinds([name for name in columns if name in present])

    for axis in domain.axes:
        absent = next((name for name in axis.columns if name not in present), None)
        fault = _column_fault(kinds, axis) if absent is None else _absence(absent, present)
        if fault:
            faults.add((axis.name, fault), Tally(files={partition.path}))
        else:
            sound.append(axis)

    for batch in partition.batches(domain.columns(attribute.name for attribute in sound)) if sound else ():
        faults.rows += len(next(iter(batch.values())))
        for attribute in sound:
            for fault, tally in _value_faults(attribute, column_of(attribute, batch)):
                faults.add((attribute.name, fault), tally)

    return faults


def _absence(name: str, present: Iterable[str]) -> str:
    """Return the fault of a column that a file lacks, with the name of one that may be meant."""
    close = nearest(name, present)
    return f"{ABSENT}; {close}" if close.startswith("did you mean") else ABSENT


def _column_fault(kinds: Mapping[str, pa.DataType], attribute: Attribute) -> str:
    """Return the fault of a column's type; empty if there is none."""
    try:
        check_type_of(attribute, kinds)
    except DataError as error:
        return f"{error.got}; expected {error.takes}"
    return ""


def check_type_of(attribute: Attribute, kinds: Mapping[str, pa.DataType]) -> None:
    """Raise DataError if a column of an attribute has a type from which it cannot be read."""
    encode(attribute, column_of(attribute, {name: empty(kinds[name]) for name in attribute.columns}))


def empty(kind: pa.DataType) -> pa.Array:
    """Return an empty array of a type."""
    return pa.nulls(0, kind.value_type if pa.types.is_dictionary(kind) else kind)


def _value_faults(attribute: Attribute, column: pa.Array) -> Iterator[tuple[str, Tally]]:
    """Yield the kinds of faulty values in a column, each with its number and examples.

    OUTSIDE, UNPARSABLE and NULL are the codes that `judged` gives to faulty rows.
    """
    cells = judged(attribute, column)
    expected = "date" if attribute.kind == "date" else "number"
    faults = {OUTSIDE: "values outside the domain", UNPARSABLE: f"texts that are no {expected}", NULL: "missing values"}
    for code, fault in faults.items():
        is_faulty = cells == code
        if is_faulty.any():
            yield fault, Tally(int(is_faulty.sum()), examples=set() if code == NULL else _examples(column, is_faulty))


def _examples(column: pa.Array, met: NDArray[np.bool_]) -> set[str]:
    """Return a few values of the marked rows as texts."""
    chosen = column.filter(pa.array(met))
    chosen = pc.unique(chosen.dictionary_decode() if pa.types.is_dictionary(chosen.type) else chosen)
    values = (chosen.cast(pa.large_binary()) if is_text(chosen.type) else chosen).to_pylist()
    texts = {value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value) for value in values}
    texts = {text.replace(SEPARATOR, "/") for text in texts}
    return set(heapq.nsmallest(MOST_EXAMPLES, {text[:LONGEST] for text in texts}))
