"""Families with a singular Gram matrix, each defined by its matrix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpscale.workload import Family

Matrix = Callable[[int], np.ndarray]


def windows(size: int) -> np.ndarray:
    """Return sums of 3 neighbouring cells, or of all cells if there are fewer."""
    width = min(3, size)
    return np.array([[low <= cell < low + width for cell in range(size)] for low in range(size - width + 1)], float)


def halves(size: int) -> np.ndarray:
    """Return the first half and the rest."""
    cells = np.arange(size)
    return np.array([cells < size // 2, cells >= size // 2], float)


def total(size: int) -> np.ndarray:
    """Return the total, which has no residual besides the mean."""
    return np.ones((1, size))


def repeated(size: int) -> np.ndarray:
    """Return one cell four times, and the total."""
    return np.vstack([np.eye(size)[[size // 2] * 4], np.ones((1, size))])


def random_queries(size: int) -> np.ndarray:
    """Return half as many random queries as cells, and a query of zeros."""
    random = np.random.default_rng(size)
    return np.vstack([random.random((max(size // 2, 1), size)) < 0.5, np.zeros((1, size))]).astype(float)


MATRICES: dict[str, Matrix] = {one.__name__: one for one in (windows, halves, total, repeated, random_queries)}


def family_of(label: str, matrix: Matrix) -> Family:
    """Return the family of a matrix; its queries are numbered as if each were one cell."""

    class MatrixFamily(Family):
        name = label

        def count(self, size):
            return len(matrix(size))

        def answers(self, values, axis):
            return np.moveaxis(np.tensordot(matrix(values.shape[axis]), values, axes=(1, axis)), 0, axis)

        def bounds(self, size):
            return (np.arange(len(matrix(size))) % size,)

    return MatrixFamily()
