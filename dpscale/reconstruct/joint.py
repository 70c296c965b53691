"""Intervals that hold all at once: how many standard errors wide they are, by simulation of the plan's noise.

Least squares is linear, so the error of every answer is the answer that the noise alone would give. With all noise of
the plan drawn anew, max |error_i / std_error_i| over the queries has the distribution that it has in the release; its
quantile at a level is the width (max-|Z| intervals, Westfall and Young 1993). No covariance is ever built, nothing of
the data is in it, and the streams here are no part of any privacy argument.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from dpscale.names import AttributeSet
from dpscale.privacy.budget import LAPLACE
from dpscale.reconstruct.estimates import LeastSquaresEstimates
from dpscale.workload import Part

Array = NDArray[np.float64]
DRAWS = 2000  # the width's own standard error is then about a hundredth of it


def half_width(level: float, noise: str) -> float:
    """Of one interval, in standard errors; for Laplace noise as wide as a sum of such noise may need."""
    normal = NormalDist().inv_cdf((1 + level) / 2)
    return max(normal, -math.log1p(-level) / math.sqrt(2)) if noise == LAPLACE else normal


def joint_width(estimates: LeastSquaresEstimates, part: Part, names: AttributeSet, level: float, seed: str) -> float:
    """Of intervals for all queries of a part over one set that hold at once. `seed`: any public text."""
    errors = np.sqrt(estimates.part_variances(part, names)).reshape(-1)
    told = errors > 0
    if not told.any():
        return half_width(level, estimates.noise)
    most = [np.abs(one.reshape(-1)[told] / errors[told]).max() for one in drawn(estimates, part, names, seed)]
    return float(np.quantile(most, level, method="higher"))


def drawn(estimates: LeastSquaresEstimates, part: Part, names: AttributeSet, seed: str) -> list[Array]:
    """Errors of a part's answers over one set, as other noise would have left them."""
    words = np.frombuffer(hashlib.sha256(f"{seed} {names} {part.name}".encode()).digest(), np.uint32)
    rng = np.random.Generator(np.random.PCG64(words.tolist()))
    return [estimates.reading(_noise(estimates, rng)).span_answers(part, names) for _ in range(DRAWS)]


def _noise(estimates: LeastSquaresEstimates, rng: np.random.Generator) -> Callable[[int], Array]:
    """Reads noise where values were read; a block's is drawn once, for several residuals are told by it."""
    known: dict[int, Array] = {}

    def read(index: int) -> Array:
        if index not in known:
            rows, spread = estimates.plan.blocks[index].rows, math.sqrt(estimates.variances[index])
            laplace = estimates.noise == LAPLACE
            known[index] = rng.laplace(0, spread / math.sqrt(2), rows) if laplace else rng.normal(0, spread, rows)
        return known[index]

    return read
