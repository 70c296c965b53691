"""Which measurements of a decision lie in which file, and where: a function of the decision alone.

Those of one source lie together, in the order of the sources, so that a worker that has the counts of some sets fills
whole files. A file ends where a source does, after FILES-th parts of all values or MOST_VALUES; one of a round that was
chosen not before LEAST_VALUES, for each file is flushed to the disk. Where counting is cut into passes amid a file,
each pass leaves a piece of it: so a file's name tells which places it holds, from the first to the one behind the last,
and nothing else has to be written down to go on after a stop or to find a value again.

    measurements/000-00000000-00004095.parquet      round, first place, end
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dpscale.base.arrays import Integers
from dpscale.plans.orders import Orders

Span = tuple[int, int]

FILES = 64  # of a decision, about, so that many workers fill them
LEAST_VALUES, MOST_VALUES = 1 << 12, 1 << 22  # in a file: 32 KiB, 32 MiB
NAME = re.compile(r"(\d{3,})-(\d{8,})-(\d{8,})\.parquet")


@dataclass(frozen=True, eq=False)
class Filing:
    """`sequence[p]`: the order at place p; `place`: its inverse; `starts`: values before each place, and before the
    end; `cuts`: where files begin, and the end."""

    sequence: Integers
    place: Integers
    starts: Integers
    cuts: Integers

    @classmethod
    def of(cls, orders: Orders, least: int = 1) -> Filing:
        """Where the measurements of a decision go; `least`: values in a file, where there are so many."""
        source = orders.source
        sequence = np.argsort(source, kind="stable")
        place = np.empty_like(sequence)
        place[sequence] = np.arange(len(sequence))
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(orders.sizes[sequence])])
        return cls(sequence, place, starts, _cuts(source[sequence], starts, least))

    def unfilled(self, held: Iterable[Span]) -> Iterator[Span]:
        """The spans of files, or what is left of them, that no piece holds yet."""
        pieces = _merged(sorted(held))
        for first, end in pairwise(self.cuts.tolist()):
            yield from _without(first, end, pieces)


def _cuts(source: Integers, starts: Integers, least: int) -> Integers:
    """Files begin where a source does, once enough values lie before it."""
    limit = max(min(int(starts[-1]) / FILES, MOST_VALUES), least)
    first = np.flatnonzero(np.diff(source, prepend=-1))
    number = (starts[first] // limit).astype(np.int64)
    return np.append(first[np.diff(number, prepend=-1) > 0], len(source))


def _merged(pieces: Sequence[Span]) -> list[Span]:
    """Pieces in ascending order as spans that do not meet: a task of an older cut may have ended late."""
    found: list[Span] = []
    for first, end in pieces:
        if found and first <= found[-1][1]:
            first, end = found[-1][0], max(found.pop()[1], end)
        found.append((first, end))
    return found


def _without(first: int, end: int, pieces: Sequence[Span]) -> Iterator[Span]:
    """What is left of a span beside pieces in ascending order that do not meet."""
    for start, stop in pieces[max(bisect_right(pieces, (first, end)) - 1, 0) :]:
        if start >= end:
            break
        if start > first:
            yield first, start
        first = max(first, stop)
    if first < end:
        yield first, end


def runs(chosen: NDArray[np.bool_]) -> Iterator[Span]:
    """The spans of places that are chosen."""
    edges = np.flatnonzero(np.diff(chosen.astype(np.int8), prepend=0, append=0))
    yield from ((int(first), int(end)) for first, end in zip(edges[::2], edges[1::2], strict=True))


def file_name(number: int, span: Span) -> str:
    """Of the values of some places of a round."""
    return f"{number:03d}-{span[0]:08d}-{span[1]:08d}.parquet"


def spans(number: int, names: Iterable[str]) -> list[Span]:
    """The spans of a round that files with such names hold."""
    found = (NAME.fullmatch(name) for name in names)
    return sorted((int(one[2]), int(one[3])) for one in found if one and int(one[1]) == number)
