"""Iterative proportional fitting (IPF): a table is scaled to each of its margins in turn until all are met.

Fitting is in place: a target of 10⁷ cells needs its own memory and that of its margins. Pairs and triples, which are
nearly all targets, have compiled loops (`fitting_loops`); other shapes use numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dpscale.base.arrays import Floats

Margin = tuple[tuple[int, ...], Floats]
LEAST = 1e-9
PAIRS = ((0, 1), (0, 2), (1, 2))  # of three axes
NOTHING, NONE = np.empty((0, 0)), np.empty(0)


def proportional_fit(table: Floats, margins: Sequence[Margin], rounds: int, tolerance: float) -> Floats:
    """Return a copy of a table scaled to each margin in turn.

    Parameters
    ----------
    table : ndarray
    margins : sequence of (axes, ndarray)
        Counts over these axes, in ascending order of axes. A single margin is met in one step.
    rounds : int
        Maximum number of rounds.
    tolerance : float
        L1 change at which the rounds end.
    """
    table = np.array(table, dtype=np.float64, order="C")
    fit_in_place(table, margins, rounds, tolerance)
    return table


def fit_in_place(table: Floats, margins: Sequence[Margin], rounds: int, tolerance: float) -> None:
    """Apply `proportional_fit` to a contiguous table itself."""
    margins = [(axes, np.ascontiguousarray(wanted)) for axes, wanted in margins]
    if table.ndim == 2 and [axes for axes, _ in margins] == [(0,), (1,)]:
        from dpscale.reconstruction import fitting_loops

        fitting_loops.fit_pair(table, margins[0][1], margins[1][1], rounds, tolerance)
        return
    rounds = rounds if len(margins) > 1 else min(rounds, len(margins))
    singles = [margin for margin in margins if len(margin[0]) == 1]
    if table.ndim == 3 and all(len(axes) == 2 for axes, _ in margins[len(singles) :]):
        _fit_triple(table, singles, dict(margins[len(singles) :]), rounds, tolerance)
        return
    for _ in range(rounds):
        if max([_scaled(table, axes, wanted) for axes, wanted in margins]) <= tolerance:
            break


def _fit_triple(
    table: Floats, singles: Sequence[Margin], pairs: Mapping[tuple[int, ...], Floats], rounds: int, tolerance: float
) -> None:
    """Fit a table over three attributes to 1-way marginals and then to pairs."""
    from dpscale.reconstruction import fitting_loops

    ones, told = [NONE] * 3, np.zeros(3, np.bool_)
    for (axis,), one in singles:
        ones[axis], told[axis] = one, True
    order = np.array([PAIRS.index(axes) for axes in pairs], np.int64)
    wanted = [pairs.get(axes, NOTHING) for axes in PAIRS]
    fitting_loops.fit_triple(table, told, *ones, order, *wanted, rounds, tolerance)


def _scaled(table: Floats, axes: tuple[int, ...], wanted: Floats) -> float:
    """Scale to one margin, in place; return the previous L1 distance."""
    has = table.sum(axis=tuple(axis for axis in range(table.ndim) if axis not in axes))
    moved = float(np.abs(has - wanted).sum())
    table *= (wanted / np.maximum(has, LEAST)).reshape([n if axis in axes else 1 for axis, n in enumerate(table.shape)])
    return moved
