"""Variances of all product queries under one covariance over their cells: the diagonal of W S Wᵀ, axis by axis."""

from __future__ import annotations

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.workload import Family


def joint_quadratic(families: tuple[Family, ...], covariance: Floats, shape: tuple[int, ...]) -> Floats:
    """W S Wᵀ's diagonal for a product W and a covariance S on all cells of `shape`, axis pair by axis pair."""
    form = covariance.reshape(*shape, *shape)
    for axis, (family, size) in enumerate(zip(families, shape, strict=True)):
        # axes are now: queries so far, rows of S left, columns of S left; the first pair left becomes queries
        form = np.moveaxis(form, (axis, len(families)), (-2, -1))
        pairs = form.reshape(-1, size, size)
        reduced = np.stack([family.quadratic((matrix + matrix.T) / 2) for matrix in pairs])
        form = np.moveaxis(reduced.reshape(*form.shape[:-2], -1), -1, axis)
    return form
