"""Marginals to residuals and back in the form of AIM+GReM (Fuentes et al., table 1, algorithms 1 and 2).

A residual on τ here has n − 1 entries along each axis: differences to the first slice. `center` of `axes` keeps n
entries that sum to zero; `centered` below turns the one into the other. `lead` leading axes are a batch, left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpscale.base.arrays import Floats


def sub(values: Floats, axis: int) -> Floats:
    """Differences to the first slice: v[1:] − v[0] along `axis`, one entry shorter."""
    first, rest = np.split(values, [1], axis=axis)
    return rest - first


def centered(values: Floats, axis: int) -> Floats:
    """u − mean(u) with u = [0, v] along `axis`, one entry longer: the inverse of `sub` on what sums to zero."""
    zero = np.zeros_like(values.take([0], axis=axis))
    padded = np.concatenate([zero, values], axis=axis)
    return np.asarray(padded - padded.mean(axis=axis, keepdims=True))


def decompose(marginal: Floats, keep: Sequence[int], lead: int = 0) -> Floats:
    """Decomp(μ, γ, τ): sum the axes outside `keep`, `sub` the axes in it. O(|γ| n_γ)."""
    others = tuple(axis for axis in range(lead, marginal.ndim) if axis - lead not in keep)
    values = np.asarray(marginal.sum(axis=others) if others else marginal)
    for axis in range(len(keep)):
        values = sub(values, lead + axis)
    return values


def reconstruct(residual: Floats, keep: Sequence[int], shape: Sequence[int], lead: int = 0) -> Floats:
    """Recon(ζ, τ, γ): centre the axes in `keep`, smear over the others; an array of `shape` after the batch axes."""
    residual = np.asarray(residual)
    for axis in range(len(keep)):
        residual = centered(residual, lead + axis)
    batch = residual.shape[:lead]
    full = [size if axis in keep else 1 for axis, size in enumerate(shape)]
    spread = float(np.prod([size for axis, size in enumerate(shape) if axis not in keep]))
    return np.array(np.broadcast_to(residual.reshape((*batch, *full)) / spread, (*batch, *shape)))
