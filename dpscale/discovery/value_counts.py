"""Counts of the distinct values of a column under keyed hashes, and the values whose noisy count passes a threshold.

Each task leaves sorted 128-bit hashes and counts; they are exchanged between workers by SHARDS ranges of the first
word, and each range is summed, measured and thresholded in one task. The noise of a range is one keyed stream in the
order of the hashes. Hashes and noise depend on the secret of the release and on the values alone, so partitions,
schedulers and retries change nothing. Only hashes that pass leave the workers. The texts of these are read in a second
pass; nothing below the threshold is ever in a result, and the number of values is never reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dpscale.base.arrow import buffers_of, pa
from dpscale.base.numerics import Integers, NDArray, Words
from dpscale.contributions.unit_shards import places
from dpscale.discovery.reading import SearchRows
from dpscale.domain.attribute import Attribute
from dpscale.privacy.draws import GaussianDraw
from dpscale.privacy.secret import SecretFile
from dpscale.privacy.streams import open_stream
from dpscale.records.searched import VALUE, text_entries
from dpscale.records.table import Partition
from dpscale.records.where import RowMask

SHARD_BITS = 8
SHARDS = 1 << SHARD_BITS
LEAST_MERGED, MOST_MERGED = 1 << 16, 1 << 21  # entries that wait before they are merged
SHOWN_BYTES = 1 << 24  # size that the scheduler sees, because the true one shows the number of values
ENTRY_BYTES = 72  # of a distinct value while it is merged
Record = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class ValueCounts:
    """Distinct hashes, sorted, and their counts. Private, so its repr shows nothing."""

    words: Words = field(repr=False)
    counts: Integers = field(repr=False)

    def __sizeof__(self) -> int:
        return SHOWN_BYTES

    def part(self, number: int) -> ValueCounts:
        """Return the range of hashes with a number."""
        ends = np.searchsorted(_shards(self.words), [number, number + 1])
        return ValueCounts(self.words[slice(*ends)], self.counts[slice(*ends)])


def _shards(words: Words) -> NDArray[np.int64]:
    return (words[:, 0] >> np.uint64(64 - SHARD_BITS)).astype(np.int64)


def merge(parts: Sequence[ValueCounts]) -> ValueCounts:
    """Return the sums of counts of equal hashes, sorted by hash."""
    words = np.concatenate([np.empty((0, 2), np.uint64), *(part.words for part in parts)])
    counts = np.concatenate([np.empty(0, np.int64), *(part.counts for part in parts)])
    order = np.lexsort((words[:, 1], words[:, 0]))
    words, counts = words[order], counts[order]
    new = np.ones(len(words), dtype=bool)
    new[1:] = (words[1:] != words[:-1]).any(axis=1)
    starts = np.flatnonzero(new)
    return ValueCounts(words[starts], np.add.reduceat(counts, starts) if len(starts) else counts)


@dataclass(frozen=True, eq=False)
class ValueRequest:
    """Column whose values are counted.

    Attributes
    ----------
    rows : SearchRows
    attribute : Attribute
    secret : SecretFile
    record : mapping
        Record of the search, which identifies keys and noise.
    shards : range
        Numbers of the ranges of hashes that are counted in this pass.
    merged : int
        Number of entries that wait in a task before they are merged.
    """

    rows: SearchRows
    attribute: Attribute
    secret: SecretFile
    record: Record = field(repr=False)
    shards: range = range(SHARDS)
    merged: int = MOST_MERGED

    @property
    def keys(self) -> Words:
        """Keys of the hashes, shape (2, 2)."""
        stream = open_stream(self.secret.read(), "selection", {**self.record, "use": "hash"})
        return stream.words(4).reshape(2, 2)


def count_values(
    request: ValueRequest, partitions: Sequence[Partition], bounded: Sequence[Partition] = (), *dropped: RowMask
) -> ValueCounts:
    """Return the counts of the distinct values in some partitions."""
    keys, waiting, many = request.keys, list[ValueCounts](), 0
    for texts, counts in _batches(request, partitions, dict(zip(bounded, dropped, strict=True))):
        waiting.append(_hashed(texts, counts, keys, request.shards))
        many += len(waiting[-1].counts)
        if many > request.merged:
            waiting, many = [merge(waiting)], 0
    return merge(waiting)


def _batches(request: ValueRequest, partitions: Sequence[Partition], dropped: Mapping[Partition, RowMask]) -> Any:
    """Yield the texts of a batch that occur, and their counts."""
    for column, _, kept in request.rows.columns(request.attribute, partitions, dropped):
        found = text_entries(request.attribute, column)
        rows = found.rows[kept & (found.states == VALUE) & (found.rows >= 0)]
        counts = np.bincount(rows, minlength=len(found.texts))
        used = np.flatnonzero(counts)
        yield found.texts.take(pa.array(used)), counts[used]


def _hashed(texts: Any, counts: Integers, keys: Words, shards: range) -> ValueCounts:
    from dpscale.contributions.unit_hashes import text_words

    words = text_words(*buffers_of(texts), keys) if len(texts) else np.empty((0, 2), np.uint64)
    chosen = chosen_shards(words, shards)
    return ValueCounts(words[chosen], counts[chosen])


def chosen_shards(words: Words, shards: range) -> Any:
    """Return the places of the hashes in some shards."""
    if len(shards) == SHARDS:
        return slice(None)
    own = _shards(words)
    return (own >= shards.start) & (own < shards.stop)


def take_shard(counts: ValueCounts, number: int, first: int = 0) -> ValueCounts:
    """Return the range of hashes number `first + number`."""
    return counts.part(first + number)


@dataclass(frozen=True, eq=False)
class Passing:
    """Hashes whose measurement passes the threshold, and the measurements."""

    words: Words = field(repr=False)
    values: Integers = field(repr=False)


def measure_shard(
    parts: Sequence[ValueCounts], secret: SecretFile, record: Record, draw: GaussianDraw, threshold: int
) -> Passing:
    """Return the hashes of one range whose measurement `multiplier` · count + noise is at least the threshold."""
    whole = merge(parts)
    if not len(whole.counts):
        return Passing(whole.words, whole.counts)
    label = {**record, **draw.noise_spec, "multiplier": str(draw.multiplier), "shard": int(_shards(whole.words[:1])[0])}
    noise = draw.words(open_stream(secret.read(), "noise", label), len(whole.counts))
    values = draw.multiplier * whole.counts + noise
    chosen = values >= threshold
    return Passing(whole.words[chosen], values[chosen])


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts of passing hashes by their position."""

    found: dict[int, str] = field(repr=False)


def find_texts(
    request: ValueRequest, partitions: Sequence[Partition], passing: Words, bounded: Sequence[Partition] = (),
    *dropped: RowMask,
) -> Texts:  # fmt: skip
    """Return the texts of the passing hashes that occur in some partitions; `passing` is sorted."""
    keys, found = request.keys, dict[int, str]()
    for texts, counts in _batches(request, partitions, dict(zip(bounded, dropped, strict=True))):
        at = places(passing, _hashed(texts, counts, keys, range(SHARDS)).words)
        new = np.flatnonzero(at >= 0)
        found |= dict(zip(at[new].tolist(), texts.take(pa.array(new)).to_pylist(), strict=True))
    return Texts(found)
