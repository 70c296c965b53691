"""Fields of an integer strategy for JSON, from which any reader can compute its norms and its digest.

Small matrices are written as numbers, larger ones compressed, and the largest as the norms of their columns.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

from dpscale.base.numerics import Integers
from dpscale.plans.circulant import CirculantFactor
from dpscale.plans.factor import Factor
from dpscale.plans.layered import LayeredFactor
from dpscale.plans.nested import NestedFactor
from dpscale.plans.spectral import SpectralFactor
from dpscale.plans.tree import TreeFactor

SHOWN, MOST = 1 << 12, 1 << 23  # most entries of a matrix that is written as numbers, and compressed
LEVEL = 4  # of compression: the highest takes 15 times as long for 4 % fewer bytes

Fields = dict[str, Any]


def factor_fields(factor: Factor) -> Fields:
    """Return a strategy's integers: as numbers if small, compressed if large, as column norms if too large.

    The order is that of the classes: strategies without a matrix state their integers, and a matrix its entries. A
    matrix of at most SHOWN entries is stated as numbers, one of at most MOST compressed.
    """
    fields: Fields = {"kind": factor.kind, "shape": list(factor.shape)}
    if isinstance(factor, NestedFactor):
        return fields | {
            "levels": [factor_fields(part) for part in factor.parts],
            "counts": [run.count for run in factor.runs],
        }
    if isinstance(factor, TreeFactor):
        return fields | {
            "parents": [packed(of_level) for of_level in factor.levels.parents],
            "multipliers": [packed(of_level) for of_level in factor.multipliers],
            "spread": None if factor.spread is None else packed(factor.spread),
            "known": factor.known,
        }
    if isinstance(factor, LayeredFactor):
        return fields | {
            "widths": list(factor.widths),
            "top": packed(factor.top),
            "multipliers": packed(factor.multipliers),
        }
    if isinstance(factor, SpectralFactor):
        integers = {"coefficients": packed(factor.coefficients), "multipliers": packed(factor.multipliers)}
        return fields | integers | {"spread": packed(factor.spread), "even": factor.even}
    if isinstance(factor, CirculantFactor):
        return fields | {"packed": packed(factor.kernel)}
    if factor.matrix is None:
        return fields
    if factor.matrix.size <= SHOWN:
        return fields | {"matrix": factor.matrix.tolist()}
    if factor.matrix.size <= MOST:
        return fields | {"packed": packed(factor.matrix)}
    return fields | {"columns": _columns(factor)}


def packed(values: Integers) -> str:
    compressed = zlib.compress(np.ascontiguousarray(values, dtype="<i8").tobytes(), LEVEL)
    return base64.b64encode(compressed).decode()


def _columns(factor: Factor) -> Fields:
    """Return the exact sums of squares and of absolute entries of every column of a matrix, as text, and its digest."""
    squared, absolute = [], []
    for column in np.asarray(factor.matrix).T:
        values = column.astype(object)
        squared.append(str((values**2).sum()))
        absolute.append(str(abs(values).sum()))
    return {"sha256": factor.digest, "squared": squared, "absolute": absolute}
