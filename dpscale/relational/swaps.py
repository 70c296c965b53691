"""The compiled loop of swapping children between parents: plain sums in one order, so the same bytes everywhere."""

from __future__ import annotations

from typing import Any

from dpscale.privacy.sampling_loops import compiled


@compiled("float64(float64[::1], int64, float64)")
def bumped(off: Any, at: Any, by: Any) -> Any:
    """Move an entry; by how much its square grows."""
    before = off[at]
    off[at] = before + by
    return off[at] * off[at] - before * before


@compiled(
    "float64(int64, int64, int64, float64, int64[::1], int64[::1], int64[::1], int64[::1], int64[:, ::1],"
    " int64[:, ::1], float64[::1], float64, int64[:, ::1], int64[::1], int64[:, ::1], int64[::1], float64[::1])"
)
def placed(
    parent: Any, child: Any, instead: Any, sign: Any, order: Any, begins: Any, of_u: Any, of_v: Any, first: Any,
    second: Any, off: Any, holds: Any, rows: Any, sizes: Any, pairs: Any, starts: Any, apart: Any,
) -> Any:  # fmt: skip
    """A child comes to a parent (+1) or leaves it (−1), beside all siblings but `instead`: what it costs."""
    cost = 0.0
    for k in range(first.shape[1]):
        cost += holds * bumped(off, first[of_u[parent], k] + second[of_v[child], k], sign)
    count = begins[parent + 1] - begins[parent]
    if count > 1:
        weight = sign / (count - 1)
        for place in range(begins[parent], begins[parent + 1]):
            other = order[place]
            if other in (child, instead):
                continue
            for t in range(len(pairs)):
                i, j = pairs[t, 0], pairs[t, 1]
                cost += bumped(apart, starts[t] + rows[child, i] * sizes[j] + rows[other, j], weight)
                cost += bumped(apart, starts[t] + rows[other, i] * sizes[j] + rows[child, j], weight)
    return cost


@compiled(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[:, ::1],"
    " int64[:, ::1], float64[::1], float64, int64[:, ::1], int64[::1], int64[:, ::1], int64[::1], float64[::1])"
)
def swap(
    parents: Any, order: Any, begins: Any, ones: Any, twos: Any, of_u: Any, of_v: Any, first: Any, second: Any,
    off: Any, holds: Any, rows: Any, sizes: Any, pairs: Any, starts: Any, apart: Any,
) -> int:  # fmt: skip
    """Swap the children `ones[t]` and `twos[t]` where all squares together fall. How many were.

    `order[begins[p]: begins[p + 1]]`: the children of p; `off`, `apart`: marginals and sibling sums less those wanted,
    changed in place as `parents` and `order` are.
    """
    made = 0
    for t in range(len(ones)):
        x, y = ones[t], twos[t]
        a, b = parents[x], parents[y]
        if a == b:
            continue
        cost = placed(
            a, x, y, -1.0, order, begins, of_u, of_v, first, second, off, holds, rows, sizes, pairs, starts, apart
        )
        cost += placed(
            b, y, x, -1.0, order, begins, of_u, of_v, first, second, off, holds, rows, sizes, pairs, starts, apart
        )
        cost += placed(
            a, y, x, 1.0, order, begins, of_u, of_v, first, second, off, holds, rows, sizes, pairs, starts, apart
        )
        cost += placed(
            b, x, y, 1.0, order, begins, of_u, of_v, first, second, off, holds, rows, sizes, pairs, starts, apart
        )
        if cost < -1e-9:
            made += 1
            for place in range(begins[a], begins[a + 1]):
                if order[place] == x:
                    order[place] = y
            for place in range(begins[b], begins[b + 1]):
                if order[place] == y:
                    order[place] = x
            parents[x], parents[y] = b, a
            continue
        placed(a, y, x, -1.0, order, begins, of_u, of_v, first, second, off, holds, rows, sizes, pairs, starts, apart)
        placed(b, x, y, -1.0, order, begins, of_u, of_v, first, second, off, holds, rows, sizes, pairs, starts, apart)
        placed(a, x, y, 1.0, order, begins, of_u, of_v, first, second, off, holds, rows, sizes, pairs, starts, apart)
        placed(b, y, x, 1.0, order, begins, of_u, of_v, first, second, off, holds, rows, sizes, pairs, starts, apart)
    return made
