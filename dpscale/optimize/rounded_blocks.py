"""Real strategies of sensitivity 1 as blocks of integer factors that measure marginals themselves.

A matrix an axis, or one on all cells of several attributes; what is the identity stays exact, and what would leave a
cell untold is told a little of every cell, for marginals must be estimable.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.names import AttributeSet
from dpscale.optimize.lattice import LARGEST_BITS, bits_for, full_factor
from dpscale.plans.allocation import BELOW_ONE
from dpscale.plans.block import Block
from dpscale.plans.factor import Factor, identity_factor

SAME = 1e-12
LEAST_TOLD, TOLD = 1e-6, 2.0**-14


def product_block(names: AttributeSet, matrices: Sequence[Floats], share: float, noise: str) -> Block:
    """The product of one matrix an attribute; an attribute that is only summed is left out."""
    kept = [(name, matrix) for name, matrix in zip(names, matrices, strict=True) if not _is_total(matrix)]
    bits = bits_for(sum(not _is_identity(matrix) for _, matrix in kept))
    factors = tuple(rounded(matrix, bits) for _, matrix in kept)
    return Block(tuple(name for name, _ in kept), factors, share * BELOW_ONE, True, noise)


def joint_block(names: AttributeSet, shape: tuple[int, ...], matrix: Floats, noise: str) -> Block:
    """One matrix on all cells of several attributes, with the whole budget."""
    return Block(names, (full_factor(_of_full_rank(matrix), shape, LARGEST_BITS),), BELOW_ONE, True, noise)


def rounded(matrix: Floats, bits: int) -> Factor:
    """A strategy of sensitivity 1 as an integer factor; exact where it is the identity."""
    size = matrix.shape[1]
    return identity_factor(size) if _is_identity(matrix) else full_factor(_of_full_rank(matrix), (size,), bits)


def _of_full_rank(matrix: Floats) -> Floats:
    """The strategy, with every cell told a little where it leaves some untold: marginals must be estimable."""
    values = np.linalg.svd(matrix, compute_uv=False)
    if len(values) == matrix.shape[1] and values[-1] > LEAST_TOLD * values[0]:
        return matrix
    return np.concatenate([matrix, TOLD * values[0] * np.eye(matrix.shape[1])])


def _is_identity(matrix: Floats) -> bool:
    return matrix.shape[0] == matrix.shape[1] and bool(
        np.abs(matrix - matrix[0, 0] * np.eye(len(matrix))).max() <= SAME
    )


def _is_total(matrix: Floats) -> bool:
    return len(matrix) == 1 and matrix.shape[1] > 1 and float(np.ptp(matrix)) <= SAME
