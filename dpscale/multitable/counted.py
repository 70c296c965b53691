"""What a row's earlier links say of it: how many it has, in buckets, is an attribute of the row in a later link.

Of links between customers and orders and those between customers and products, a customer's number of orders is what
the two have in common beyond the customer's attributes. `counts = ["orders"]` of the later link makes it one: 0, 1,
2-3, 4-7, … up to the earlier link's bound, so its values are public. Measured it is of the rows' own links that count;
where links are drawn, of those that were drawn.

That moves nothing further: as `whom` checks, a row whose links are counted is its unit's, and so are all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from dpscale.base.arrays import Integers, Integers32, Words
from dpscale.contributions.through import places
from dpscale.multitable.job import DatabaseJob, LinkSection
from dpscale.multitable.linking import ExactLinks
from dpscale.relational.buckets import bucket, buckets


def sizes(job: DatabaseJob, link: LinkSection, table: str) -> list[int]:
    """Values of every such attribute of a table's rows."""
    return [len(buckets(one.bound)) for one in job.counted(link, table)]


def with_counts(job: DatabaseJob, link: LinkSection, exact: ExactLinks, before: Mapping[str, ExactLinks]) -> ExactLinks:
    """The links with what those `before` say of their rows."""
    parents, children = (
        _extended(codes, [_of_rows(words, before[one.called], one.bound) for one in job.counted(link, table)])
        for table, codes, words in zip((link.parent, link.child), (exact.parents, exact.children), exact.words,
                                       strict=True)
    )  # fmt: skip
    return replace(exact, parents=parents, children=children)


def with_drawn(
    job: DatabaseJob, link: LinkSection, table: str, codes: Integers32, drawn: Mapping[str, Integers]
) -> Integers32:
    """A table's synthetic rows with how many links were drawn for each. `drawn`: (links, 2) rows, by link."""
    earlier = job.counted(link, table)
    each = [np.bincount(drawn[one.called][:, 0], minlength=len(codes)) for one in earlier]
    return _extended(codes, [bucket(own, one.bound) for own, one in zip(each, earlier, strict=True)])


def _of_rows(words: Words, earlier: ExactLinks, bound: int) -> Integers:
    """Of rows by their keys the bucket of their links; rows that do not count there have none."""
    keys = earlier.words[0]
    degrees = np.append(np.bincount(earlier.rows[:, 0], minlength=len(keys)), 0)  # at -1: of rows that it does not have
    return bucket(degrees[places(keys, words)], bound)


def _extended(codes: Integers32, columns: list[Integers]) -> Integers32:
    return np.column_stack([codes, *columns]).astype(np.int32) if columns else codes
