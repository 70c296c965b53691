"""Compiled loops for links. Sums have a fixed order, so results are identical on all machines.

*Terms.* A link joins a row of side u (a parent) with one of side v (a child). Rows with equal values have one
*profile*. A cell (a, b) is a pair of profiles; it belongs to the entry first[a, k] + second[b, k] of marginal k. `off`
has sums less their targets, and a cost is the change of the sum of its squares.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.compilation import compiled
from dpscale.base.numerics import Floats, Integers, Words

SLACK = 1e-12  # excess of a group's sum above 1 that counts as rounding


@compiled("float64(uint64[::1])")
def uniform(state: Words) -> float:
    """Return the next number of a xorshift64* sequence in [0, 1), with 53 bits for very small probabilities."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return np.float64((x * np.uint64(2685821657736338717)) >> np.uint64(11)) * 2.0**-53


@compiled("void(float64[::1], int64[:, ::1], int64[:, ::1], float64[::1])")
def add_marginals(weights: Floats, first: Integers, second: Integers, out: Floats) -> None:
    """Add every cell's weight to its entry of every marginal, `first[a, k] + second[b, k]`; cell = a · width + b."""
    width = len(second)
    for cell in range(len(weights)):
        if weights[cell] != 0.0:
            a, b = cell // width, cell % width
            for k in range(first.shape[1]):
                out[first[a, k] + second[b, k]] += weights[cell]


@compiled("void(float64[::1], int64[:, ::1], int64[:, ::1], float64[::1])")
def pull_back(marginals: Floats, first: Integers, second: Integers, out: Floats) -> None:
    """Add to every cell its entry of every marginal: the adjoint of `add_marginals`.

    Cell (a, b) of a table of `width` columns has the entry first[a, k] + second[b, k] of marginal k.
    """
    width = len(second)
    for cell in range(len(out)):
        a, b = cell // width, cell % width
        total = 0.0
        for k in range(first.shape[1]):
            total += marginals[first[a, k] + second[b, k]]
        out[cell] += total


@compiled("int64(float64[::1], int64[::1], int64, float64[::1], int64[::1], uint64[::1])")
def merge(values: Floats, counts: Integers, begun: int, sums: Floats, chosen: Integers, state: Words) -> int:
    """Put `counts[r]` entries of `values[r]`, in order, into groups of sum at most 1; return the last group's index.

    `sums[0]` and `chosen[0]` are the open group on entry. Every group has its sum and one of its entries, numbered from
    `begun`, chosen with probability value / sum. The last group remains open.

    As many equal entries as fit (`room`) join the open group at once. The representative of a group is replaced by a
    new entry with probability weight/sum, so that each has the probability of its value over the sum.
    """
    k, number = 0, begun
    for r in range(len(values)):
        value, remaining = values[r], counts[r]
        while remaining > 0:
            room = 1.0 + SLACK - sums[k]
            taken: int = remaining if value * remaining <= room else int(room / value)
            if taken == 0:
                k += 1
                sums[k] = 0.0
                continue

            weight = value * taken
            if weight > 0.0:
                sums[k] += weight
                if uniform(state) < weight / sums[k]:
                    chosen[k] = number if taken == 1 else number + min(int(uniform(state) * taken), taken - 1)

            remaining -= taken
            number += taken

    return k


@compiled("boolean(float64[::1], int64[:, ::1], int64[:, ::1], int64, int64, int64, int64)")
def move_if_nearer(off: Floats, first: Integers, second: Integers, a: int, b: int, c: int, d: int) -> bool:
    """Return whether moving a link from cell (a, b) to (c, d) lowers the sum of squares of `off`; then update it.

    `off` are the marginals minus their targets; first[a, k] + second[b, k] is the entry of marginal k that cell (a, b)
    belongs to. (o − 1)² + (p + 1)² − o² − p² = 2 − 2 o + 2 p for the entries o and p that lose and gain a link.
    """
    change = 0.0
    for k in range(first.shape[1]):
        i, j = first[a, k] + second[b, k], first[c, k] + second[d, k]
        # a marginal in which both cells have one entry does not change
        if i != j:
            change += 2.0 - 2.0 * off[i] + 2.0 * off[j]

    if change >= 0:
        return False

    for k in range(first.shape[1]):
        off[first[a, k] + second[b, k]] -= 1.0
        off[first[c, k] + second[d, k]] += 1.0

    return True


@compiled(
    "int64(float64[::1], float64[::1], float64[::1], int64[:, ::1], int64[:, ::1], float64[::1], int64[::1],"
    " int64[::1])"
)
def improve(links: Floats, floors: Floats, caps: Floats, first: Integers, second: Integers, off: Floats,
            sources: Integers, ends: Integers) -> int:  # fmt: skip
    """Move links from `sources` to `ends` if all marginals together approach their targets; return the number moved.

    `links` are integers, each the floor of its target or one more; `off` are the marginals of the links minus the
    targets. Both are changed in place. A move is from cell (a, b) to cell (c, d); `first` and `second` give the entries
    of the marginals of a cell. A cell gains a link only up to its floor plus 1 and its cap.

    `links` is a table of `width` columns, flat: s is the cell that loses a link, e the cell that gains it.
    """
    width, moved = len(second), 0
    for t in range(len(sources)):
        s, e = sources[t], ends[t]
        if s == e or links[s] <= floors[s] or links[e] >= min(floors[e] + 1, caps[e]):
            continue
        a, b, c, d = s // width, s % width, e // width, e % width
        if move_if_nearer(off, first, second, a, b, c, d):
            moved += 1
            links[s] -= 1
            links[e] += 1

    return moved


@compiled(
    "int64(float64[::1], float64[::1], float64[::1], int64[:, ::1], int64[:, ::1], float64[::1], int64[::1],"
    " int64[::1])"
)
def improve_columns(links: Floats, floors: Floats, rooms: Floats, first: Integers, second: Integers, off: Floats,
                    sources: Integers, ends: Integers) -> int:  # fmt: skip
    """Move links as `improve` does, within columns: cells may be one link off, and `rooms` bound the rows.

    `links` is a table of rows × columns, flat; a move is from cell s in row a to cell e in row c, whose columns are b
    and d. `totals` are the sums of the rows; a move must leave that of the row c of its end within rooms[c]. A cell
    loses a link only if it has more than its floor, and gains one only if it does not. Returns the number of moves.
    """
    width, moved = len(second), 0
    totals = np.zeros(len(rooms))
    for cell in range(len(links)):
        totals[cell // width] += links[cell]

    for t in range(len(sources)):
        s, e = sources[t], ends[t]
        a, c = s // width, e // width
        if s == e or links[s] <= floors[s] or links[e] > floors[e] or totals[c] >= rooms[c]:
            continue

        b, d = s % width, e % width
        if move_if_nearer(off, first, second, a, b, c, d):
            moved += 1
            links[s] -= 1
            links[e] += 1
            totals[a] -= 1
            totals[c] += 1

    return moved


@compiled("float64(float64[::1], int64, float64)")
def change_entry(off: Floats, at: int, by: float) -> float:
    """Change an entry and return the growth of its square."""
    before = off[at]
    off[at] = before + by
    return off[at] * off[at] - before * before


@compiled(
    "float64(int64, int64, int64, float64, int64[::1], int64[::1], int64[::1], int64[::1], int64[:, ::1],"
    " int64[:, ::1], float64[::1], float64, int64[:, ::1], int64[::1], int64[:, ::1], int64[::1], float64[::1])"
)
def placement_cost(
    parent: int, child: int, instead: int, sign: float, order: Integers, begins: Integers, of_u: Integers,
    of_v: Integers, first: Integers, second: Integers, off: Floats, factor: float, rows: Integers,
    sizes: Integers, pairs: Integers, starts: Integers, sibling_off: Floats,
) -> float:  # fmt: skip
    """Return the cost of adding a child to a parent (+1) or removing it (−1), among all siblings except `instead`.

    A cost is the change of Σ off². Pairs of siblings weigh 1/(number of children − 1); each pair is in two cells, in
    both orders. `order[begins[p] : begins[p + 1]]` are the children of parent p, `of_u` and `of_v` the profiles, and
    first[u, k] + second[v, k] the entry of marginal k. `factor` is the weight of the marginals against the tables of
    siblings.
    """
    cost = 0.0
    for k in range(first.shape[1]):
        cost += factor * change_entry(off, first[of_u[parent], k] + second[of_v[child], k], sign)
    count = begins[parent + 1] - begins[parent]
    if count > 1:
        # a parent with many children has the weight of its children, not that of all their pairs
        weight = sign / (count - 1)
        for place in range(begins[parent], begins[parent + 1]):
            other = order[place]
            # the child itself, and the one that it is exchanged with, are no siblings of it
            if other in (child, instead):
                continue
            for t in range(len(pairs)):
                i, j = pairs[t, 0], pairs[t, 1]
                # both orders of the pair (child, other)
                cost += change_entry(sibling_off, starts[t] + rows[child, i] * sizes[j] + rows[other, j], weight)
                cost += change_entry(sibling_off, starts[t] + rows[other, i] * sizes[j] + rows[child, j], weight)

    return cost


@compiled(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[:, ::1],"
    " int64[:, ::1], float64[::1], float64, int64[:, ::1], int64[::1], int64[:, ::1], int64[::1], float64[::1])"
)
def swap(
    parents: Integers, order: Integers, begins: Integers, ones: Integers, twos: Integers, of_u: Integers,
    of_v: Integers, first: Integers, second: Integers, off: Floats, factor: float, rows: Integers,
    sizes: Integers, pairs: Integers, starts: Integers, sibling_off: Floats,
) -> int:  # fmt: skip
    """Exchange the children `ones[t]` and `twos[t]` if the total of squares decreases; return the number of exchanges.

    `order[begins[p] : begins[p + 1]]` are the children of p. `off` and `sibling_off` are marginals and sibling sums
    minus their targets, changed in place like `parents` and `order`. x and y are the children, a and b their parents.

    Both children are removed and added at the other's place, and the changes of all sums are undone if they do not
    lower the cost. `placement_cost` leaves out the pair of x and y themselves, which are never siblings.
    """
    exchanged = 0
    for t in range(len(ones)):
        x, y = ones[t], twos[t]
        a, b = parents[x], parents[y]
        if a == b:
            continue

        # remove x from a and y from b, then add y to a and x to b
        cost = placement_cost(a, x, y, -1.0, order, begins, of_u, of_v, first, second, off, factor, rows, sizes,
                              pairs, starts, sibling_off)  # fmt: skip
        cost += placement_cost(b, y, x, -1.0, order, begins, of_u, of_v, first, second, off, factor, rows, sizes,
                               pairs, starts, sibling_off)  # fmt: skip
        cost += placement_cost(
            a, y, x, 1.0, order, begins, of_u, of_v, first, second, off, factor, rows, sizes, pairs, starts, sibling_off
        )
        cost += placement_cost(
            b, x, y, 1.0, order, begins, of_u, of_v, first, second, off, factor, rows, sizes, pairs, starts, sibling_off
        )

        # a smaller gain could be rounding, which would exchange them forever
        if cost < -1e-9:
            exchanged += 1
            for place in range(begins[a], begins[a + 1]):
                if order[place] == x:
                    order[place] = y
            for place in range(begins[b], begins[b + 1]):
                if order[place] == y:
                    order[place] = x
            parents[x], parents[y] = b, a
            continue

        # the opposite steps, which restore all sums
        placement_cost(a, y, x, -1.0, order, begins, of_u, of_v, first, second, off, factor, rows, sizes,
                       pairs, starts, sibling_off)  # fmt: skip
        placement_cost(b, x, y, -1.0, order, begins, of_u, of_v, first, second, off, factor, rows, sizes,
                       pairs, starts, sibling_off)  # fmt: skip
        placement_cost(
            a, x, y, 1.0, order, begins, of_u, of_v, first, second, off, factor, rows, sizes, pairs, starts, sibling_off
        )
        placement_cost(
            b, y, x, 1.0, order, begins, of_u, of_v, first, second, off, factor, rows, sizes, pairs, starts, sibling_off
        )

    return exchanged


@compiled("void(int64[:, ::1], int64[::1], int64[::1], int64[::1], int64[:, ::1], int64[::1], int64[::1])")
def add_siblings(rows: Integers, begins: Integers, weights: Integers, sizes: Integers, pairs: Integers,
                 starts: Integers, out: Integers) -> None:  # fmt: skip
    """Add the weight of its parent to the cell of each ordered pair of different siblings in each table.

    `rows[begins[p] : begins[p + 1]]` are the children of parent p, x and y two of them. `pairs` are the columns (i, j)
    of each table, `sizes` their numbers of values, and starts[t] is the first cell of table t: sibling x gives the
    value of i and sibling y that of j. A parent of weight 0 is left out.
    """
    for parent in range(len(weights)):
        if weights[parent] == 0:
            continue
        for x in range(begins[parent], begins[parent + 1]):
            for t in range(len(pairs)):
                i, j = pairs[t, 0], pairs[t, 1]
                base = starts[t] + rows[x, i] * sizes[j]
                for y in range(begins[parent], begins[parent + 1]):
                    if y != x:
                        out[base + rows[y, j]] += weights[parent]
