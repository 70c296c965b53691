"""Hashes of the records of each period, which show whether earlier periods changed.

If all files are in folders named by the period, the hash of a period is that of the names, sizes and bytes of its
files. Otherwise it is a sum over its records: each record has two 64-bit mixes of its cells and of its privacy unit, so
the sum modulo 2^64 does not depend on the order of the records or on their files. Only attributes that
are counted are compared. Tags of these hashes under the key of the run are stored, never the hashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dpscale.base.display import safe_repr
from dpscale.base.errors import DataError
from dpscale.base.numerics import Words
from dpscale.contributions.unit_ids import identities
from dpscale.contributions.unit_shards import value_words
from dpscale.counting.weighted import PeriodWeights, encoded_with_periods
from dpscale.domain import Domain
from dpscale.domain.attribute import read_period
from dpscale.engine.counting import partition_groups
from dpscale.privacy.secret import read_secret, snapshot_tag
from dpscale.records import Table
from dpscale.records.origin import snapshot
from dpscale.records.table import Partition
from dpscale.runs.periods.growing import GrowingPart

if TYPE_CHECKING:
    from dpscale.engine.schedulers import Engine

MIXES = (np.uint64(0xD6E8FEB86659FD93), np.uint64(0xA0761D6478BD642F))  # odd factors of the two mixes of a record
SHIFT = np.uint64(32)  # brings the upper bits of a product to the lower ones


def hashes_by_period(
    table: Table, names: Sequence[str], weights: PeriodWeights, unit: str | None, engine: Engine
) -> list[str]:
    """Return the hash of the records of each period with a weight.

    Parameters
    ----------
    table : Table
        Table whose files have records of these periods.
    names : sequence of str
        Attributes that are counted.
    weights : PeriodWeights
    unit : str or None
        Column of the privacy unit.
    engine : Engine
    """
    if table.lake is None and all(weights.attribute.column in dict(part.fixed) for part in table.partitions):
        return [_hash_of_files(table, number, weights, engine) for number in range(weights.count)]
    groups = partition_groups(table.partitions, engine.workers)
    found = engine.map(sum_records, [(group, table.domain, names, weights, unit) for group in groups], "snapshot")
    sums: Words = np.sum(np.stack(found), axis=0, dtype=np.uint64)
    return [hashlib.sha256(row.astype("<u8").tobytes()).hexdigest() for row in sums]


def _hash_of_files(table: Table, number: int, weights: PeriodWeights, engine: Engine) -> str:
    """Return the hash of the contents of the files whose folder names a period, given its number."""
    of_period = tuple(part for part in table.partitions if _number_of(part, weights) == number)
    if not of_period:
        return hashlib.sha256(b"").hexdigest()
    return snapshot(replace(table, partitions=of_period), each=engine.each("snapshot"))


def _number_of(partition: Partition, weights: PeriodWeights) -> int:
    """Return the number of the period that a partition's folder names; −1 for the folder of nulls."""
    label = dict(partition.fixed)[weights.attribute.column]
    try:
        return read_period(weights.attribute.by, label) - weights.attribute.low if label is not None else -1
    except ValueError as error:
        raise DataError("data.path", f"a folder {weights.attribute.column}={safe_repr(label)}", str(error),
                        "rename the folder, or move it elsewhere") from None  # fmt: skip


def sum_records(
    partitions: Sequence[Partition], domain: Domain, names: Sequence[str], weights: PeriodWeights, unit: str | None
) -> Words:
    """Return the sums of the records of each period, shape (periods, 3): two mixes and the number of records.

    A mix is a 64-bit hash of a record; its sum, modulo 2^64, does not depend on the order of records, and equal sums
    mean equal records but for a negligible probability.

    MIXES has one odd constant for each mix, which is multiplied twice, with a shift between.
    """
    sums = np.zeros((weights.count, 3), np.uint64)
    for partition in partitions:
        units = _units(partition, unit)
        for codes, gone, periods, first in encoded_with_periods(domain, partition, names, weights):
            words = value_words(codes)
            if units is not None:
                words = words + units[first : first + len(words)] * MIXES[0]
            counted = ~gone
            for column, mix in enumerate(MIXES):
                mixed = (words ^ mix) * mix
                mixed ^= mixed >> SHIFT
                np.add.at(sums[:, column], periods[counted], (mixed * mix)[counted])
            sums[:, 2] += np.bincount(periods[counted], minlength=weights.count).astype(np.uint64)
    return sums


def _units(partition: Partition, unit: str | None) -> Words | None:
    """Return a 64-bit hash of the unit of each row of a partition; None without a unit."""
    if unit is None:
        return None
    parts = [identities(batch[unit], unit).words for batch in partition.batches([unit], unit)]
    words = np.concatenate(parts) if parts else np.empty((0, 2), np.uint64)
    return np.asarray(words[:, 0] ^ (words[:, 1] * MIXES[1]))


def combined(hashes: Sequence[str]) -> str:
    """Return one hash of the hashes of several periods."""
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def compare_contents(run: GrowingPart, hashes: Sequence[str]) -> None:
    """Compare the records of the first periods with those that were released; record those of the last one.

    Raises DataError if the records of an earlier period changed, unless the job accepts that.

    `hashes` are those of the first periods, up to the one that is released now; `labels` are the names of all periods.
    """
    key = read_secret(run.hash_key)
    tags = {label: snapshot_tag(key, f"{label}:{content}") for label, content in zip(run.labels, hashes, strict=False)}
    known = run.manifest.get("contents", {})
    changed = [label for label in run.labels[: len(hashes) - 1] if known.get(label) != tags[label]]
    if changed and run.changes == "accept":
        accepted = run.manifest.get("accepted", {})
        run.update(accepted={**accepted, run.labels[len(hashes) - 1]: changed})
    elif changed:
        erasure = '; for a legal erasure set time.changed = "accept"' if run.job.data.privacy_unit is None else ""
        raise DataError("data.path", f"the records of {changed[0]}, which was released, changed",
                        "the records of earlier periods as they were: a late record belongs to the period in which"
                        " it arrives", f"restore them{erasure}")  # fmt: skip
    label = run.labels[len(hashes) - 1]
    if label not in known:
        run.update(contents={**known, label: tags[label]})


def forget_contents(run: GrowingPart, number: int) -> None:
    """Forget the hash of the records of a period of which nothing was drawn."""
    known = run.manifest.get("contents", {})
    if run.labels[number] in known:
        run.update(contents={label: tag for label, tag in known.items() if label != run.labels[number]})
