"""Search for the values of a column on an engine: hashes are counted, exchanged and thresholded by ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from dpscale.contributions.unit_ranges import cut_ranges, hash_passes
from dpscale.discovery.value_counts import (
    ENTRY_BYTES,
    LEAST_MERGED,
    MOST_MERGED,
    PAIR_BYTES,
    SHARDS,
    Passing,
    ValuePlan,
    ValueRequest,
    VoteRequest,
    count_values,
    count_votes,
    find_texts,
    found_values,
    measure_shard,
    plan_values,
    take_pairs,
    take_shard,
    unit_values,
)
from dpscale.domain.attribute import Attribute
from dpscale.records.table import Partition
from dpscale.runs.searches import Found, SearchReader, SearchSummary, SearchTerms


def plan(attribute: Attribute, terms: SearchTerms) -> ValuePlan:
    """Return the measurement of the counts of the values."""
    return plan_values(attribute, terms.share, terms.delta, terms.rows_per_unit, terms.public_rows)


def search(plan: ValuePlan, reader: SearchReader) -> Found:
    """Return the attribute with the values that occur often: those whose noisy count passes a threshold.

    Values are counted by their 128-bit hashes. Only hashes that pass are looked up in the rows again for their texts.
    """
    record = {**reader.head, **plan.record}
    request = ValueRequest(rows=reader.rows, attribute=plan.attribute, secret=reader.secret, record=record)
    passing = _passing(plan, request, reader)
    words = np.concatenate([np.empty((0, 2), np.uint64), *(part.words for part in passing)])
    values = np.concatenate([np.empty(0, np.int64), *(part.values for part in passing)]).tolist()
    counts = {}
    if values:
        counts = {text: values[number] for number, text in _texts(request, words, reader).items()}
    return found_values(plan, counts, reader.types.get(plan.attribute.name, "text"))


def _passing(plan: ValuePlan, request: ValueRequest, reader: SearchReader) -> list[Passing]:
    """Return the passing hashes in order, in as many passes over the rows as the memory setting requires."""
    passing, draw = list[Passing](), plan.threshold.draw
    share = reader.memory // (8 * reader.engine.workers * ENTRY_BYTES)
    merged = min(max(share, LEAST_MERGED), MOST_MERGED)
    join = partial(measure_shard, secret=reader.secret, record=request.record, draw=draw,
                   threshold=plan.threshold.value)  # fmt: skip
    rows = _row_bound(reader)
    for shards in shard_ranges(rows, reader.memory):
        part = replace(request, shards=shards, merged=merged)
        handles = _votes(part, reader, rows) if plan.votes else _counts(part, reader)
        take = partial(take_shard, first=shards.start)
        passing += reader.engine.exchange(take, handles, join, len(shards), "measure-values")
    return passing


def _counts(request: ValueRequest, reader: SearchReader) -> list[Any]:
    """Return handles of the numbers of rows of the values in the shards of a request."""
    return reader.engine.persist(count_values, reader.items(request), "count-values")


def _votes(request: ValueRequest, reader: SearchReader, rows: int) -> list[Any]:
    """Return handles of the votes for the values in the shards of a request.

    A unit with r distinct values votes for each with weight 1/√r. Rows are exchanged so that all rows of a unit are in
    one task; each pass has the units of a range of hashes, so that their pairs fit into memory.
    """
    votes, engine = list[Any](), reader.engine
    for ranges in hash_passes(rows * PAIR_BYTES, reader.memory):
        of_pass, cuts = VoteRequest(request, str(reader.unit), ranges), cut_ranges(ranges, 2 * engine.workers)
        items = [(*item, *reader.through) for item in reader.items(of_pass)]
        handles = engine.persist(unit_values, items, "read-units")
        take, join = partial(take_pairs, ranges=cuts), partial(count_votes, shards=request.shards)
        votes += engine.exchange(take, handles, join, len(cuts), "count-votes", keep=True)
    return votes


def shard_ranges(rows: int, memory: int) -> list[range]:
    """Return the ranges of shards that are counted together, so that even distinct values fit half of the memory."""
    passes = min(max(-(-2 * rows * ENTRY_BYTES // memory), 1), SHARDS)
    cuts = [SHARDS * number // passes for number in range(passes + 1)]
    return [range(first, end) for first, end in pairwise(cuts)]


def _row_bound(reader: SearchReader) -> int:
    files = {part.path: part for group in reader.groups for part in group}
    return sum(reader.engine.map(_rows, [(part,) for part in files.values()], "rows"))


def _rows(partition: Partition) -> int:
    return partition.row_bound()


def _texts(request: ValueRequest, words: np.ndarray, reader: SearchReader) -> dict[int, str]:
    """Return the texts of the passing hashes by their position."""
    shared = reader.engine.broadcast(words, "values")
    texts: dict[int, str] = {}
    items = [(item_request, group, shared, *rest) for item_request, group, *rest in reader.items(request)]
    for part in reader.engine.map(find_texts, items, "find-values"):
        texts |= part.found
    return texts


def summarize(attribute: Attribute, released: Mapping[str, Any]) -> SearchSummary:
    """Return the values that a search found, with their noisy counts or votes.

    A released search by votes has `vote` in its measurement; `error` is the standard error of each count.
    """
    facts: tuple[str, ...] = (
        f"A value was found if its noisy count was at least {released['threshold']:,.0f} records.",
    )
    if "vote" in released["measurement"]:
        facts = (f"A value was found if it had at least {released['threshold']:,.0f} votes, with noise.",
                 "A unit with r values votes for each with weight 1/√r; numbers are votes, not records.")  # fmt: skip
    public = (f"{len(released['public'])} more values are public.",) if released["public"] else ()
    other = {"category": "All other values are in one cell.", "drop": "Rows with other values are not counted."}
    cells = tuple((str(value["value"]), value["count"], released["error"]) for value in released["found"])
    return SearchSummary("values that occur often", (*facts, *public, other[attribute.outside]), cells)
