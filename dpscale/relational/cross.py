"""Cross marginals: tables over attributes of both sides, of three in all, or of two where each side has one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dpscale.base.arrays import Floats, Integers
from dpscale.relational import loops
from dpscale.relational.sides import Side

Columns = Sequence[int]


@dataclass(frozen=True, eq=False)
class Cross:
    """All of them one after the other: of a pair of profiles (i, j), `first[i, k] + second[j, k]` is its entry of
    marginal k, whose entries are `starts[k]` to `starts[k + 1]`. `columns`: of each the attributes of both sides."""

    columns: tuple[tuple[Columns, Columns], ...]
    first: Integers
    second: Integers
    starts: Integers

    @classmethod
    def of(cls, u: Side, v: Side) -> Cross:
        first, second, starts = [], [], [0]
        columns = tuple(_columns(len(u.sizes), len(v.sizes)))
        for left, right in columns:
            (a, size_a), (b, size_b) = _code(u, left), _code(v, right)
            first.append(starts[-1] + a * size_b)
            second.append(b)
            starts.append(starts[-1] + size_a * size_b)
        one, two = (np.ascontiguousarray(np.stack(codes, axis=1)) for codes in (first, second))
        return cls(columns, one, two, np.array(starts, np.int64))

    @property
    def size(self) -> int:
        """Entries of all."""
        return int(self.starts[-1])

    def marginals(self, weights: Floats) -> Floats:
        """(size,): of weights of every pair of profiles."""
        out = np.zeros(self.size)
        loops.add_marginals(np.ascontiguousarray(weights, np.float64).ravel(), self.first, self.second, out)
        return out

    def back(self, entries: Floats) -> Floats:
        """(p, q): the adjoint of `marginals`."""
        out = np.zeros(len(self.first) * len(self.second))
        loops.pull_back(entries, self.first, self.second, out)
        return out.reshape(len(self.first), -1)

    def some(self, chosen: Sequence[int]) -> Cross:
        """Some of them, their entries where they were."""
        one, two = (np.ascontiguousarray(codes[:, list(chosen)]) for codes in (self.first, self.second))
        return Cross(tuple(self.columns[k] for k in chosen), one, two, self.starts)

    def entries(self, k: int) -> slice:
        """Where marginal k is, of those of `of`."""
        return slice(int(self.starts[k]), int(self.starts[k + 1]))


def cross_words(u: Side, v: Side) -> int:
    """How many numbers the marginals and the profiles' entries of them are."""
    each = [math.prod(u.sizes[i] for i in a) * math.prod(v.sizes[j] for j in b)
            for a, b in _columns(len(u.sizes), len(v.sizes))]  # fmt: skip
    return sum(each) + len(each) * (len(u.profiles) + len(v.profiles))


def _columns(u: int, v: int) -> list[tuple[Columns, Columns]]:
    ones, twos = ([(i,) for i in range(k)] for k in (u, v)), (list(combinations(range(k), 2)) for k in (u, v))
    (u1, v1), (u2, v2) = ones, twos
    found: list[tuple[Columns, Columns]] = [(a, b) for a in u1 for b in v2] + [(a, b) for a in u2 for b in v1]
    return found or [(a, b) for a in u1 for b in v1]


def _code(side: Side, columns: Columns) -> tuple[Integers, int]:
    code, size = np.zeros(len(side.profiles), np.int64), 1
    for i in columns:
        code, size = code * side.sizes[i] + side.profiles[:, i], size * side.sizes[i]
    return code, size
