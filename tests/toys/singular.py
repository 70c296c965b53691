"""Families whose Gram has not full rank, each made from its matrix: a family is one object and one line in a table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dpscale.workload import Family

Matrix = Callable[[int], np.ndarray]


def windows(size: int) -> np.ndarray:
    """Sums of 3 neighbouring cells, or of all where there are fewer."""
    width = min(3, size)
    return np.array([[low <= cell < low + width for cell in range(size)] for low in range(size - width + 1)], float)


def halves(size: int) -> np.ndarray:
    """The first half and the rest."""
    cells = np.arange(size)
    return np.array([cells < size // 2, cells >= size // 2], float)


def whole(size: int) -> np.ndarray:
    """The total: nothing is left of it beside the mean."""
    return np.ones((1, size))


def repeated(size: int) -> np.ndarray:
    """One cell, asked four times, and the total."""
    return np.vstack([np.eye(size)[[size // 2] * 4], np.ones((1, size))])


def drawn(size: int) -> np.ndarray:
    """Half as many queries as cells, drawn at random, and a query of nothing."""
    random = np.random.default_rng(size)
    return np.vstack([random.random((max(size // 2, 1), size)) < 0.5, np.zeros((1, size))]).astype(float)


MATRICES: dict[str, Matrix] = {one.__name__: one for one in (windows, halves, whole, repeated, drawn)}


def family_of(name: str, matrix: Matrix) -> Family:
    """A family by its matrix; it numbers its queries as if each were one cell's."""
    return Family(
        name,
        count=lambda size: len(matrix(size)),
        gram=lambda size: matrix(size).T @ matrix(size),
        trace=lambda size: int(np.trace(matrix(size).T @ matrix(size))),
        answers=lambda values, axis: np.moveaxis(
            np.tensordot(matrix(values.shape[axis]), values, axes=(1, axis)), 0, axis
        ),
        quadratic=lambda form: np.einsum("ij,jk,ik->i", matrix(len(form)), form, matrix(len(form))),
        means=lambda size: matrix(size).mean(axis=1),
        bounds=lambda size: {"": np.arange(len(matrix(size))) % size},
    )
