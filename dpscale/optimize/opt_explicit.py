"""OPT0: the strategy for one explicit Gram, for either noise (HDMM, section 4).

Gaussian: the certified optimum of `convex` on rows of the Gram, not centred. Laplace: p-Identity with restarts; its
bound is the SVD bound, which is loose there. A Gram c·11ᵀ (Total) is answered by Total alone under both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.optimize.convex import optimise
from dpscale.optimize.p_identity import optimise_p_identity
from dpscale.workload import root_of

Noise = Literal["gaussian", "laplace"]
TOLERANCE = 1e-7
RANK = 1e-12
SPAN = 1e-6


@dataclass(frozen=True, eq=False)
class Strategy:
    """A strategy (rows × cells) of sensitivity 1 with its error coefficient and what no strategy can go below.

    `warm`: what an optimisation of a similar Gram can start from.
    """

    matrix: Floats
    error: float
    bound: float
    warm: Floats | None = None

    @property
    def ratio(self) -> float:
        """Root of error over bound: how many times the least possible RMSE this can be at most."""
        return math.sqrt(self.error / self.bound)


def optimise_explicit(
    gram: Floats,
    noise: Noise,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    seconds: float = math.inf,
    starts: int | None = None,
    p: int | None = None,
    warm: Floats | None = None,
) -> Strategy:
    """OPT0 of a Gram (n, n); `tolerance` and `seconds` are for Gaussian, `seed`, `starts` and `p` for Laplace noise."""
    if np.ptp(gram) <= RANK * float(gram[0, 0]):
        value = float(gram[0, 0])
        return Strategy(np.ones((1, len(gram))), value, value)
    scale = float(np.trace(gram))
    if noise == "laplace":
        strategy = optimise_p_identity(gram, p=p, starts=starts, seed=seed, warm=warm)
        roots = np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0.0)).sum()
        return Strategy(strategy.matrix, strategy.error, float(roots**2 / len(gram)), strategy.parameters)
    optimum = optimise(root_of(gram / scale), (len(gram),), tolerance, seconds, warm)
    return Strategy(optimum.root, optimum.primal * scale, optimum.dual * scale, optimum.weights)


def sensitivity(matrix: Floats, noise: Noise) -> float:
    """The largest norm of a column: L1 for Laplace, L2 for Gaussian noise."""
    return float(np.linalg.norm(matrix, ord=1 if noise == "laplace" else 2, axis=0).max())


def inverse_gram(matrix: Floats) -> Floats:
    """(AᵀA)⁺ of a strategy, (n, n)."""
    return np.asarray(np.linalg.pinv(matrix.T @ matrix, rcond=RANK, hermitian=True))


def error_of(gram: Floats, matrix: Floats, noise: Noise) -> float:
    """tr(G (AᵀA)⁺) Δ² of any strategy matrix; inf where its rows do not span the workload."""
    inverse = inverse_gram(matrix)
    lost = gram - (gram @ inverse) @ (matrix.T @ matrix)
    if np.abs(lost).max() > SPAN * np.abs(gram).max():
        return math.inf
    return float((gram * inverse).sum()) * sensitivity(matrix, noise) ** 2
