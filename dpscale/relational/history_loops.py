"""Compiled loops for histories: they move dates and exchange children if the tables come nearer to their targets."""

from __future__ import annotations

from dpscale.base.compilation import compiled
from dpscale.base.numerics import Floats, Integers, Words
from dpscale.relational.loops import change_entry, uniform


@compiled("float64(float64[:, ::1], int64, int64, float64)")
def change_cell(off: Floats, a: int, b: int, by: float) -> float:
    """Change a cell and return the growth of its square."""
    before = off[a, b]
    off[a, b] = before + by
    return off[a, b] * off[a, b] - before * before


@compiled("int64(int64[::1], int64[::1], int64[::1], float64[:, ::1], float64[::1], float64, uint64[::1])")
def move_dates(
    dates: Integers, inner: Integers, tries: Integers, off: Floats, number_off: Floats, factor: float, state: Words
) -> int:
    """Move dates between those before and after them if the squares of `off` and `number_off` decrease.

    Parameters
    ----------
    dates : ndarray, shape (m,)
        Cells of the order, grouped by parent and not decreasing within one; changed in place.
    inner : ndarray
        Positions that are neither the first nor the last child of a parent.
    tries : ndarray
        Indices of `inner`, one for each proposal.
    off : ndarray, shape (n, n)
        Consecutive dates minus their target; changed in place.
    number_off : ndarray, shape (n,)
        Number of children of every date minus its target; changed in place.
    factor : float
        Weight of `number_off`.
    state : ndarray of uint64, shape (1,)
        Of the random numbers.
    """
    made = 0
    for t in range(len(tries)):
        p = inner[tries[t]]
        before, now, after = dates[p - 1], dates[p], dates[p + 1]
        if before == after:
            continue

        other = before + int(uniform(state) * (after - before + 1))
        if other == now:
            continue

        cost = change_cell(off, before, now, -1.0) + change_cell(off, now, after, -1.0)
        cost += change_cell(off, before, other, 1.0) + change_cell(off, other, after, 1.0)
        cost += factor * (change_entry(number_off, now, -1.0) + change_entry(number_off, other, 1.0))
        if cost < -1e-9:
            dates[p] = other
            made += 1
            continue

        change_cell(off, before, now, 1.0)
        change_cell(off, now, after, 1.0)
        change_cell(off, before, other, -1.0)
        change_cell(off, other, after, -1.0)
        change_entry(number_off, now, 1.0)
        change_entry(number_off, other, -1.0)

    return made


@compiled("float64(int64, int64, float64, int64[:, ::1], float64[::1], float64[:, ::1], float64)")
def date_cost(
    k: int, date: int, sign: float, values: Integers, number_off: Floats, cross_off: Floats, factor: float
) -> float:
    """Return the cost of adding (+1) or removing (−1) a child of this date to the parent k.

    A cost is the change of Σ off², the squared difference of a table from its target; `number_off` is that of dates.
    `values` are the entries of the parents in the cross tables, and `factor` their weight. Both tables are changed.
    """
    cost = change_entry(number_off, date, sign)
    for a in range(values.shape[1]):
        cost += factor * change_cell(cross_off, values[k, a], date, sign)
    return cost


@compiled(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[:, ::1], float64[::1], float64[:, ::1], float64)"
)
def shift_histories(dates: Integers, begins: Integers, tries: Integers, firsts: Integers, values: Integers,
                    number_off: Floats, cross_off: Floats, factor: float) -> int:  # fmt: skip
    """Move all dates of a parent if the squares of both `off` decrease; return the number of moved histories.

    Parameters
    ----------
    dates : ndarray, shape (m,)
        Cells of the order, grouped by parent; changed in place.
    begins : ndarray
        First position of every parent, and the end of the last.
    tries, firsts : ndarray
        Indices of parents, and a first date for each, such that the last date is possible.
    values : ndarray, shape (parents, d)
        Cells of the parents, each attribute after the cells of those before it.
    number_off : ndarray, shape (n,)
        Number of children of every date minus its target; changed in place.
    cross_off : ndarray, shape (cells of all attributes, n)
        Number of children by the parent's cell and their date minus its target; changed in place.
    factor : float
        Weight of `cross_off`.
    """
    made = 0
    for t in range(len(tries)):
        k = tries[t]
        begin, end = begins[k], begins[k + 1]
        by = firsts[t] - dates[begin]
        if by == 0:
            continue

        cost = 0.0
        for p in range(begin, end):
            cost += date_cost(k, dates[p], -1.0, values, number_off, cross_off, factor)
            cost += date_cost(k, dates[p] + by, 1.0, values, number_off, cross_off, factor)

        made += cost < -1e-9
        for p in range(begin, end):
            if cost < -1e-9:
                dates[p] += by
            else:
                date_cost(k, dates[p], 1.0, values, number_off, cross_off, factor)
                date_cost(k, dates[p] + by, -1.0, values, number_off, cross_off, factor)

    return made


@compiled("float64(int64, int64, float64, int64[::1], int64[:, ::1], int64[::1], int64[::1], float64[::1])")
def step_cost(earlier: int, later: int, sign: float, chosen: Integers, rows: Integers, sizes: Integers,
              starts: Integers, off: Floats) -> float:  # fmt: skip
    """Return the cost of adding (+1) or removing (−1) a pair of consecutive children, which changes `off`.

    `off` has a table for each pair of attributes (i, j) from `starts[i * width + j]`; the pair of children is in one
    cell of each. `chosen` has the child at each position and `rows` the values of children, with `sizes` values of each
    attribute.
    """
    cost, width = 0.0, len(sizes)
    x, y = chosen[earlier], chosen[later]
    for i in range(width):
        for j in range(width):
            cost += change_entry(off, starts[i * width + j] + rows[x, i] * sizes[j] + rows[y, j], sign)
    return cost


@compiled(
    "float64(int64, float64, int64[::1], int64[::1], int64[::1], int64[:, ::1], int64[::1], int64[::1], float64[::1],"
    " int64[::1], int64[:, ::1], int64[:, ::1], float64[::1], float64)"
)
def place_cost(p: int, sign: float, chosen: Integers, parents: Integers, of_v: Integers, rows: Integers,
               sizes: Integers, starts: Integers, off: Floats, of_u: Integers, first: Integers, second: Integers,
               cross_off: Floats, factor: float) -> float:  # fmt: skip
    """Return the cost of adding or removing the child at a position: its cross marginals and the step to the next.

    The tables of first children follow those of consecutive children in `off`. `p` is the position, `parents` has the
    parent of every position, `of_v` and `of_u` the profiles, and `factor` the weight of cross marginals.

    A cost is the change of Σ off²; `sign` is +1 for adding and −1 for removing. chosen[p] is the child at position p.
    """
    cost, width = 0.0, len(sizes)
    # the first child of its parent
    if p == 0 or parents[p - 1] != parents[p]:
        for j in range(width):
            cost += change_entry(off, starts[width * width + j] + rows[chosen[p], j], sign)

    for k in range(first.shape[1]):
        cost += factor * change_entry(cross_off, first[of_u[parents[p]], k] + second[of_v[chosen[p]], k], sign)
    # the step to the next child of the same parent
    if p + 1 < len(parents) and parents[p + 1] == parents[p]:
        cost += step_cost(p, p + 1, sign, chosen, rows, sizes, starts, off)
    return cost


@compiled(
    "float64(int64, int64, float64, int64[::1], int64[::1], int64[::1], int64[:, ::1], int64[::1], int64[::1],"
    " float64[::1], int64[::1], int64[:, ::1], int64[:, ::1], float64[::1], float64)"
)
def both_cost(p: int, q: int, sign: float, chosen: Integers, parents: Integers, of_v: Integers, rows: Integers,
              sizes: Integers, starts: Integers, off: Floats, of_u: Integers, first: Integers, second: Integers,
              cross_off: Floats, factor: float) -> float:  # fmt: skip
    """Return the cost of adding or removing the children at two positions p < q, with all steps that they are in.

    A step between p and q is counted once, with p.
    """
    cost = place_cost(p, sign, chosen, parents, of_v, rows, sizes, starts, off, of_u, first, second, cross_off, factor)
    cost += place_cost(q, sign, chosen, parents, of_v, rows, sizes, starts, off, of_u, first, second, cross_off, factor)
    if p > 0 and parents[p - 1] == parents[p]:
        cost += step_cost(p - 1, p, sign, chosen, rows, sizes, starts, off)
    if q - 1 != p and parents[q - 1] == parents[q]:
        cost += step_cost(q - 1, q, sign, chosen, rows, sizes, starts, off)
    return cost


@compiled(
    "int64(int64, int64[::1], int64[::1], int64[::1], int64[:, ::1], int64[::1], int64[:, ::1], int64[:, ::1],"
    " int64[::1], float64[:, ::1], uint64[::1])"
)
def proposed_child(
    p: int, chosen: Integers, parents: Integers, dates: Integers, rows: Integers, sizes: Integers, ranked: Integers,
    begins: Integers, offsets: Integers, cumulated: Floats, state: Words,
) -> int:  # fmt: skip
    """Return a child of the date at a position, with a random cell of a random attribute; −1 if there is none.

    The cell is drawn by the target for the cell of the child before it.

    `ranked[j]` lists children by date and cell of attribute j, and `begins[j]` where each date and cell begins. Without
    a child before it, the last line, of first children, has the distribution.

    p is the position and j the attribute. `cumulated` has a line of cumulative probabilities for each cell of the child
    before, attribute j from line `offsets[j]` on.
    """
    width = len(sizes)
    j = min(int(uniform(state) * width), width - 1)
    line = offsets[j] + sizes[j]
    if p > 0 and parents[p - 1] == parents[p]:
        line = offsets[j] + rows[chosen[p - 1], j]
    cell, level = 0, uniform(state)
    # the first cell whose cumulative probability reaches a uniform number
    while cell < sizes[j] - 1 and cumulated[line, cell] < level:
        cell += 1
    begin = begins[j, dates[p] * sizes[j] + cell]
    count = begins[j, dates[p] * sizes[j] + cell + 1] - begin
    if count == 0:
        return -1
    return int(ranked[j, begin + min(int(uniform(state) * count), count - 1)])


@compiled(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[:, ::1], int64[:, ::1], int64[::1],"
    " float64[:, ::1], int64[::1], int64[:, ::1], int64[::1], int64[::1], float64[::1], int64[::1], int64[:, ::1],"
    " int64[:, ::1], float64[::1], float64, uint64[::1])"
)
def exchange(
    tries: Integers, chosen: Integers, where: Integers, parents: Integers, of_v: Integers, ranked: Integers,
    begins: Integers, offsets: Integers, cumulated: Floats, dates: Integers, rows: Integers, sizes: Integers,
    starts: Integers, off: Floats, of_u: Integers, first: Integers, second: Integers, cross_off: Floats,
    factor: float, state: Words,
) -> int:  # fmt: skip
    """Exchange children of equal dates if the squares of `off` and `cross_off` decrease; return the number.

    Each try is a position, whose child may be exchanged with a proposed one.

    Parameters
    ----------
    tries : ndarray
    chosen, where : ndarray, shape (m,)
        Child at every position, and the position of every child; changed in place.
    parents, dates : ndarray, shape (m,)
        By position.
    of_v : ndarray
        Profile of every child.
    ranked : ndarray, shape (d, m)
        Children by date and the cell of each attribute.
    begins : ndarray, shape (d, most)
        First place in `ranked` of every date and cell, at date · size + cell, and the end.
    offsets : ndarray, shape (d,)
        First row of `cumulated` of every attribute.
    cumulated : ndarray
        Cumulated probabilities of the later cell by the earlier one; the last row of each attribute is for first
        children.
    rows, sizes, starts, off : ndarray
        Cells of the children, layout, and tables of consecutive and of first children minus their targets.
    of_u, first, second, cross_off, factor :
        Profiles of the parents, and cross marginals minus their targets with their weight.
    state : ndarray of uint64, shape (1,)
    """
    made = 0
    for t in range(len(tries)):
        p = tries[t]
        other = proposed_child(p, chosen, parents, dates, rows, sizes, ranked, begins, offsets, cumulated, state)
        if other < 0:
            continue

        q = where[other]
        # equal profiles: nothing would change
        if of_v[other] == of_v[chosen[p]] or p == q:
            continue

        # positions in order, so that adjacent ones are handled alike in all calls
        low, high = min(p, q), max(p, q)
        cost = both_cost(
            low, high, -1.0, chosen, parents, of_v, rows, sizes, starts, off, of_u, first, second, cross_off, factor
        )
        chosen[p], chosen[q] = chosen[q], chosen[p]
        cost += both_cost(
            low, high, 1.0, chosen, parents, of_v, rows, sizes, starts, off, of_u, first, second, cross_off, factor
        )

        # a smaller gain could be rounding
        if cost < -1e-9:
            where[chosen[p]], where[chosen[q]] = p, q
            made += 1
            continue

        both_cost(
            low, high, -1.0, chosen, parents, of_v, rows, sizes, starts, off, of_u, first, second, cross_off, factor
        )
        chosen[p], chosen[q] = chosen[q], chosen[p]
        # the opposite steps, which restore all tables
        both_cost(
            low, high, 1.0, chosen, parents, of_v, rows, sizes, starts, off, of_u, first, second, cross_off, factor
        )

    return made
