"""OPT0: strategy for one explicit Gram matrix, for either noise (HDMM, section 4).

Gaussian: the certified optimum of `convex` on rows of the Gram matrix, not centred. Laplace: p-Identity with restarts;
its bound is the SVD bound, which is loose for Laplace noise. A Gram matrix c·11ᵀ (Total) is answered by Total alone
under both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpscale.base.deadline import check_planning_time
from dpscale.base.numerics import Floats, linalg, optimize
from dpscale.optimize.convex import optimise
from dpscale.optimize.long_axis import chain_of
from dpscale.workload import root_of

TimesGram = Callable[[Floats], Floats]
CELLS_PER_QUERY = 16  # cells for one row of Θ in p-Identity, if p is not given
FEWEST_QUERIES = 4  # least number of rows of Θ, if there are as many cells
SCALES = (1.0, 5.0)  # largest entry of Θ at a random start; starts alternate between them
FIRST_STEPS = 80  # most L-BFGS steps from every start
STEPS = 800  # most further steps of the descents that are continued
FLAT = 1e-9  # ftol of L-BFGS: relative decrease at which a descent ends
MOST_STARTS = 24  # most random starts, those of a Gram matrix of few cells
START_CELLS = 4096  # number of random starts times cells, between the two limits of their number
FEWEST_STARTS = 4  # least number of random starts; one start of so many is continued
SAME = 1e-12  # difference of entries that are equal in a symmetric Gram matrix, relative to the diagonal
LARGEST = 1e3  # bound of Θ: at 10,000 the two sums of the error cancel in floating point


@dataclass(frozen=True, eq=False)
class PIdentity:
    """Strategy given by its parameters Θ, (p, n), and its error coefficient tr(G (AᵀA)⁻¹)."""

    parameters: Floats
    error: float

    @property
    def matrix(self) -> Floats:
        """A, at most (n + p, n), without zero rows: every column has L1 norm 1."""
        scale = 1 / (1 + self.parameters.sum(axis=0))
        rows = self.parameters[self.parameters.any(axis=1)]
        return np.concatenate([np.diag(scale), rows * scale])


def optimise_p_identity(
    gram: Floats,
    p: int | None = None,
    starts: int | None = None,
    seed: int = 0,
    warm: Floats | None = None,
    times: TimesGram | None = None,
) -> PIdentity:
    """Return the best p-Identity strategy for a Gram matrix (n, n) among several seeded starts.

    A Gram matrix a·I + b·11ᵀ (marginals) needs one query only, found by a line search.

    Parameters
    ----------
    gram : ndarray, shape (n, n)
    p : int, optional
        Number of queries in addition to the identity; n/16, at least 4, by default.
    starts, seed : int
    warm : ndarray, optional
        Parameters of an earlier strategy, used as an additional start.
    times : callable, optional
        Faster product of rows (r, n) with the Gram matrix.
    """
    if is_symmetric(gram):
        return _on_a_line(gram)
    first = [descend(gram, start, FIRST_STEPS, times) for start in starting_points(len(gram), p, starts, seed, warm)]
    return best_end(gram, [descend(gram, start, STEPS, times) for start in promising(first)])


def starting_points(n: int, p: int | None, starts: int | None, seed: int, warm: Floats | None) -> list[Floats]:
    """Return the parameters from which the first descents start, the last those of an earlier strategy.

    Entries of Θ are uniform on [0, 1) or [0, 5), in turn. The number of starts decreases with the number of cells. `n`
    is the number of cells and `p` the rows of Θ, by default a fraction of the cells; `warm` is the Θ of the earlier
    strategy.
    """
    generator = np.random.default_rng(seed)
    rows = p or max(min(n, FEWEST_QUERIES), n // CELLS_PER_QUERY)
    count = starts if starts is not None else max(FEWEST_STARTS, min(MOST_STARTS, START_CELLS // n))
    random_starts = [generator.random((rows, n)) * SCALES[i % len(SCALES)] for i in range(count)]
    return random_starts if warm is None else [*random_starts, warm]


def promising(first: Sequence[PIdentity]) -> list[Floats]:
    """Return the parameters of the best quarter of the first descents, which are continued."""
    by_error = sorted(first, key=lambda strategy: strategy.error)
    return [strategy.parameters for strategy in by_error[: max(1, len(first) // FEWEST_STARTS)]]


def best_end(gram: Floats, ends: Sequence[PIdentity]) -> PIdentity:
    """Return the best of the continued descents, or the identity, with its error to the last digit."""
    best = min([PIdentity(np.zeros((1, len(gram))), 1.0), *ends], key=lambda strategy: strategy.error)
    return PIdentity(best.parameters, _to_the_last_digit(gram, best.matrix))


def p_identity_error(gram: Floats, parameters: Floats, times: TimesGram | None = None) -> tuple[float, Floats]:
    """Return tr(G (AᵀA)⁻¹) and its gradient with respect to Θ, (p, n).

    With c = 1 + Θᵀ1 and C = diag(c), the strategy is A = [I; Θ] C⁻¹, so (AᵀA)⁻¹ = C (I − ΘᵀNΘ) C with N = (I + ΘΘᵀ)⁻¹
    (Woodbury). With H = C G C the error is tr H − tr(NΘHΘᵀ). In the code, `turned` = ΘC, `weighted` = NΘCG and `scaled`
    = NΘH. The gradient is the derivative by c, which every entry of a column changes by 1 (`of_columns`), less 2 NΘH (I
    − ΘᵀNΘ).

    Parameters
    ----------
    gram : ndarray, shape (n, n)
    parameters : ndarray, shape (p, n)
    times : callable, optional
        Faster product of rows (r, n) with the Gram matrix.
    """
    column = 1 + parameters.sum(axis=0)
    diagonal = np.diagonal(gram)
    inverse = np.linalg.inv(np.eye(len(parameters)) + parameters @ parameters.T)
    turned = parameters * column
    weighted = inverse @ (turned @ gram if times is None else times(turned))
    scaled = weighted * column
    of_columns = 2 * (column * diagonal - (parameters * weighted).sum(axis=0))
    value = float((column**2 * diagonal).sum() - (scaled * parameters).sum())

    return value, of_columns - 2 * (scaled - (scaled @ parameters.T) @ (inverse @ parameters))


def _to_the_last_digit(gram: Floats, matrix: Floats) -> float:
    """Return tr(G (AᵀA)⁻¹) without the cancellation of large sums, once at the end: O(n³)."""
    return float(np.trace(linalg.cho_solve(linalg.cho_factor(matrix.T @ matrix), gram)))


def descend(gram: Floats, start: Floats, steps: int, times: TimesGram | None = None) -> PIdentity:
    """Run L-BFGS-B from one start; the error is that of the Gram matrix scaled to trace 1.

    A Gram matrix of a chain (`chain_of`) has a fast product with rows, which is used unless `times` is given.

    Parameters
    ----------
    gram : ndarray, shape (n, n)
    start : ndarray, shape (p, n)
    steps : int
    times : callable, optional
        Faster product of rows (r, n) with the Gram matrix.
    """
    trace = float(np.trace(gram))
    scaled, chain = gram / trace, chain_of(gram) if times is None else None
    times_gram = times if chain is None else chain.times
    times_scaled = None if times_gram is None else lambda rows: times_gram(rows) / trace

    def function(flat: Floats) -> tuple[float, Floats]:
        check_planning_time()
        value, gradient = p_identity_error(scaled, flat.reshape(start.shape), times_scaled)
        return value, gradient.reshape(-1)

    options = {"maxiter": steps, "maxfun": 2 * steps, "ftol": FLAT, "gtol": 0.0}
    bounds = [(0.0, LARGEST)] * start.size
    optimum = optimize.minimize(
        function, start.reshape(-1), jac=True, method="L-BFGS-B", bounds=bounds, options=options
    )
    parameters = np.asarray(optimum.x.reshape(start.shape))

    error, _ = p_identity_error(scaled, parameters, times_scaled)
    return PIdentity(parameters, error)


def is_symmetric(gram: Floats) -> bool:
    """Return whether the Gram matrix is a·I + b·11ᵀ."""
    if len(gram) == 1:
        return True
    expected = np.full(gram.shape, gram[0, 1])
    np.fill_diagonal(expected, gram[0, 0])
    return bool(np.abs(gram - expected).max() <= SAME * gram[0, 0])


def _on_a_line(gram: Floats) -> PIdentity:
    """Return the best single query c·1 for a·I + b·11ᵀ: error (1 + c)² (a (n − 1) + (a + bn) / (1 + nc²)).

    If a = 0, Total alone would be optimal; it is not a p-Identity strategy, but the limit of large c.

    Θ = c·1ᵀ has the same symmetry as G. On the n − 1 centred directions (AᵀA)⁻¹ is (1 + c)², and on 1 it is (1 + c)²/(1
    + nc²); `inner` = a and `outer` = b. A grid of c is refined around its best point.
    """
    n = len(gram)
    outer = float(gram[0, 1]) if n > 1 else 0.0
    inner = float(gram[0, 0]) - outer

    def error(c: float) -> float:
        return (1 + c) ** 2 * (inner * (n - 1) + (inner + outer * n) / (1 + n * c**2))

    grid = [0.0, *np.geomspace(1e-6, LARGEST, 181)]
    best = min(grid, key=error)
    if best > 0:
        around = (math.log(best) - 0.2, min(math.log(best) + 0.2, math.log(LARGEST)))
        fine = math.exp(
            optimize.minimize_scalar(lambda c: error(math.exp(c)), bounds=around, options={"xatol": 1e-10}).x
        )
        best = min(best, fine, key=error)

    return PIdentity(np.full((1, n), best), error(best))


Noise = Literal["gaussian", "laplace"]
TOLERANCE = 1e-7  # certified relative gap at which the Gaussian search ends
RANK = 1e-12  # relative size below which an eigenvalue, or the range of the Gram matrix' entries, is taken as 0
SPAN = 1e-6  # part of G outside the span of a strategy that is rounding, relative to the largest entry


@dataclass(frozen=True, eq=False)
class Strategy:
    """Strategy (rows × cells) of sensitivity 1 with its error coefficient and a lower bound over all strategies.

    `warm` is a warm start for the optimisation of a similar Gram matrix.
    """

    matrix: Floats
    error: float
    bound: float
    warm: Floats | None = None

    @property
    def ratio(self) -> float:
        """Square root of error over bound: the largest possible ratio of this RMSE to the optimal one."""
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
    times: TimesGram | None = None,
) -> Strategy:
    """Solve OPT0 for a Gram matrix (n, n).

    A constant Gram matrix is answered by one query of all ones, whose value is its own bound. Laplace noise has no
    certified optimum, so it is searched by p-Identity.

    Parameters
    ----------
    gram : ndarray, shape (n, n)
    noise : {"gaussian", "laplace"}
    tolerance, seconds : float
        Gaussian noise only: gap and time limit of the convex solver.
    seed, starts, p : int
        Laplace noise only (see `optimise_p_identity`).
    warm : ndarray, optional
        `Strategy.warm` of a similar Gram matrix.
    times : callable, optional
        Laplace noise only: faster product of rows (r, n) with the Gram matrix.
    """
    if np.ptp(gram) <= RANK * float(gram[0, 0]):
        value = float(gram[0, 0])
        return Strategy(np.ones((1, len(gram))), value, value)

    scale = float(np.trace(gram))
    if noise == "laplace":
        return with_bound(gram, optimise_p_identity(gram, p=p, starts=starts, seed=seed, warm=warm, times=times))

    chain = chain_of(gram / scale)
    if chain is not None:
        optimum = chain.optimum(tolerance, warm)
    else:
        optimum = optimise(root_of(gram / scale), (len(gram),), tolerance, seconds, warm)

    return Strategy(matrix=optimum.root, error=optimum.primal * scale, bound=optimum.dual * scale, warm=optimum.weights)


def with_bound(gram: Floats, strategy: PIdentity) -> Strategy:
    """Return a p-Identity strategy with the SVD bound of its Gram matrix.

    The bound is (Σ √eigenvalue)²/n: the trace of the root of G, squared, over the number of cells.
    """
    roots = np.sqrt(np.maximum(np.linalg.eigvalsh(gram), 0.0)).sum()
    bound = float(roots**2 / len(gram))
    return Strategy(matrix=strategy.matrix, error=strategy.error, bound=bound, warm=strategy.parameters)


def sensitivity(matrix: Floats, noise: Noise) -> float:
    """Return the largest norm of a column: L1 for Laplace, L2 for Gaussian noise."""
    return float(np.linalg.norm(matrix, ord=1 if noise == "laplace" else 2, axis=0).max())


def inverse_gram(matrix: Floats) -> Floats:
    """Return (AᵀA)⁺ of a strategy, (n, n)."""
    return np.asarray(np.linalg.pinv(matrix.T @ matrix, rcond=RANK, hermitian=True))


def error_of(gram: Floats, matrix: Floats, noise: Noise) -> float:
    """Return tr(G (AᵀA)⁺) Δ² of any strategy matrix; inf if its rows do not span the workload.

    G (AᵀA)⁺ AᵀA = G if and only if the rows of A span those of the workload.
    """
    inverse = inverse_gram(matrix)
    residue = gram - (gram @ inverse) @ (matrix.T @ matrix)
    if np.abs(residue).max() > SPAN * np.abs(gram).max():
        return math.inf
    return float((gram * inverse).sum()) * sensitivity(matrix, noise) ** 2
