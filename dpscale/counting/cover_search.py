"""Compiled greedy search for joint marginals; it covers thousands of sets in about a second.

A joint starts from a set that is not yet covered and grows by the attribute with the highest value per nanosecond. The
value of a joint is the cost of counting its uncovered subsets separately. Ties are resolved towards the lower number,
so that the same input always gives the same cover.
"""

from __future__ import annotations

import numpy as np

from dpscale.base.arrays import Flags, Floats, Integers
from dpscale.base.jit import njit

MOST = 16  # maximum number of attributes of a joint
PATIENCE = 2  # further steps after the best one
REFUSALS = 32  # consecutive unprofitable joints after which the remaining sets are counted separately
LOOKAHEAD = 0.2  # weight of a set that lacks two attributes, relative to one that lacks one


@njit(cache=True, nogil=True)
def joint_cost(cells: int, covered: int, rows: float, scatter: Floats, fold: float) -> float:
    """Return the nanoseconds to count a joint over the rows and to sum it to the sets that it covers."""
    width = 0
    while width < 62 and (1 << width) < cells:
        width += 1
    return rows * scatter[width] + fold * cells * (covered + 1)


@njit(cache=True, nogil=True)
def _touch(
    x: int, inverse: Integers, starts: Integers, lengths: Integers, is_open: Flags, missing: Integers,
    touched: Integers, count: int, attrs: Integers, set_starts: Integers, held: Flags, near: Floats, far: Floats,
    worth: Floats,
) -> tuple[float, int, int]:  # fmt: skip
    """Add attribute x to the joint and update the scores of the remaining attributes.

    The cost of a set that lacks one more attribute is added to `near`, that of a set that lacks two to `far`. Returns
    the value and number of newly covered sets and the number of touched sets.
    """
    kept = starts[x]
    value, covered = 0.0, 0
    for position in range(starts[x], starts[x] + lengths[x]):
        s = inverse[position]
        if not is_open[s]:
            continue
        inverse[kept] = s
        kept += 1
        if missing[s] == set_starts[s + 1] - set_starts[s]:
            touched[count] = s
            count += 1
        missing[s] -= 1
        if missing[s] == 0:
            value += worth[s]
            covered += 1
        elif missing[s] <= 2:
            for k in range(set_starts[s], set_starts[s + 1]):
                if not held[attrs[k]]:
                    if missing[s] == 1:
                        near[attrs[k]] += worth[s]
                    else:
                        far[attrs[k]] += worth[s]
    lengths[x] = kept - starts[x]
    return value, covered, count


@njit(cache=True, nogil=True)
def _best_next(
    sizes: Integers, held: Flags, near: Floats, far: Floats, value: float, covered: int, cells: int, most_cells: int,
    rows: float, scatter: Floats, fold: float,
) -> int:  # fmt: skip
    """Return the attribute with the highest value per nanosecond, or -1."""
    best, best_score = -1, 0.0
    for x in range(len(sizes)):
        if held[x] or near[x] + far[x] == 0 or cells > most_cells // sizes[x]:
            continue
        cost = joint_cost(cells * sizes[x], covered, rows, scatter, fold)
        score = (value + near[x] + LOOKAHEAD * far[x]) / cost
        if score > best_score:
            best, best_score = x, score
    return best


@njit(cache=True, nogil=True)
def _search(
    seed: int, sizes: Integers, attrs: Integers, set_starts: Integers, inverse: Integers, inverse_starts: Integers,
    lengths: Integers, worth: Floats, rows: float, scatter: Floats, fold: float, most_cells: int, is_open: Flags,
    missing: Integers, touched: Integers, members: Integers,
) -> tuple[float, int, int, int]:  # fmt: skip
    """Grow a joint from a set; return the best ratio of value to cost, its length and cells, and the touched sets."""
    held, near, far = np.zeros(len(sizes), dtype=np.bool_), np.zeros(len(sizes)), np.zeros(len(sizes))
    width = set_starts[seed + 1] - set_starts[seed]
    touches = covered = best_length = 0
    value = best_ratio = 0.0
    cells = best_cells = 1
    for length in range(1, MOST + 1):
        if length <= width:
            x = attrs[set_starts[seed] + length - 1]
        else:
            x = _best_next(sizes, held, near, far, value, covered, cells, most_cells, rows, scatter, fold)
        if x < 0 or (best_length and length > best_length + PATIENCE):
            break
        members[length - 1], held[x] = x, True
        cells *= sizes[x]
        more, gained, touches = _touch(x, inverse, inverse_starts, lengths, is_open, missing, touched, touches, attrs,
                                      set_starts, held, near, far, worth)  # fmt: skip
        value, covered = value + more, covered + gained
        ratio = value / joint_cost(cells, covered, rows, scatter, fold)
        if length >= width and ratio > best_ratio * 1.001:
            best_ratio, best_length, best_cells = ratio, length, cells
    return best_ratio, best_length, best_cells, touches


@njit(cache=True, nogil=True)
def grow(
    sizes: Integers, attrs: Integers, set_starts: Integers, inverse: Integers, inverse_starts: Integers,
    worth: Floats, order: Integers, rows: float, scatter: Floats, fold: float, most_cells: int, spare_cells: int,
) -> tuple[Integers, Integers]:  # fmt: skip
    """Return the joint that covers each set (-1: none) and the attributes of the joints, MOST per joint.

    Parameters
    ----------
    sizes : ndarray of int64
        Cells of each attribute.
    attrs, set_starts : ndarray of int64
        Set s has the attributes attrs[set_starts[s]:set_starts[s+1]].
    inverse, inverse_starts : ndarray of int64
        Attribute x is in the sets inverse[inverse_starts[x]:inverse_starts[x+1]].
    worth : ndarray of float64
        Cost of counting each set separately.
    order : ndarray of int64
        Order of the seeds.
    """
    count = len(set_starts) - 1
    owner = np.full(count, -1, dtype=np.int64)
    joints = np.full((count // 2 + 1, MOST), -1, dtype=np.int64)  # a profitable joint covers at least two sets
    is_open, held = np.ones(count, dtype=np.bool_), np.zeros(len(sizes), dtype=np.bool_)
    widths, missing, touched = np.diff(set_starts), np.diff(set_starts), np.empty(count, dtype=np.int64)
    lengths, members = np.diff(inverse_starts), np.empty(MOST, dtype=np.int64)
    joint_count = refused = 0
    for seed in order:
        if refused > REFUSALS:
            break
        if not is_open[seed] or widths[seed] == 0 or widths[seed] >= MOST:
            continue
        ratio, length, cells, touches = _search(
            seed, sizes, attrs, set_starts, inverse, inverse_starts, lengths, worth, rows, scatter, fold, most_cells,
            is_open, missing, touched, members,
        )  # fmt: skip
        pays = ratio > 1 and length > widths[seed] and cells <= spare_cells
        if pays:
            joints[joint_count, :length] = members[:length]
            spare_cells -= cells
        held[members[:length]] = pays
        for s in touched[:touches]:
            if pays and _inside(attrs, set_starts[s], set_starts[s + 1], held):
                owner[s], is_open[s] = joint_count, False
            missing[s] = widths[s]
        held[:] = False
        is_open[seed] = False
        joint_count += pays
        refused = 0 if pays else refused + 1
    return owner, joints[:joint_count]


@njit(cache=True, nogil=True)
def _inside(attrs: Integers, start: int, end: int, held: Flags) -> bool:
    for k in range(start, end):  # noqa: SIM110 (compiled)
        if not held[attrs[k]]:
            return False
    return True
