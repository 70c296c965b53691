"""Baseline strategies of the literature, each a function that returns a strategy matrix, shape (rows, cells).

The matrices do not have sensitivity 1; `scaled` normalises them. DataCube returns marginals instead of a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats, NDArray, optimize
from dpscale.optimize.implicit_workload import Implicit
from dpscale.optimize.opt_explicit import Noise, sensitivity
from dpscale.optimize.opt_marginals import marginal_error, requested_terms, residual_traces
from dpscale.plans.layered import LayeredFactor
from dpscale.workload import root_of

Interval = tuple[int, int]
BOUNDS = 16  # most bounds on the summed cells for which `data_cube` computes a cover
WAVELET_BITS = 20  # integer multipliers are multiples of 2^20, times √2 at the last level and rounded
MANY = 3600  # candidate marginals above which no further unions are added


def scaled(matrix: Floats, noise: Noise) -> Floats:
    """Return the strategy scaled to sensitivity 1."""
    return matrix / sensitivity(matrix, noise)


def identity(size: int) -> Floats:
    """Return the strategy that measures every cell."""
    return np.eye(size)


def workload_itself(gram: Floats) -> Floats:
    """Return rows with the workload's Gram matrix: for Gaussian noise equivalent to its queries, never more rows."""
    return root_of(gram)


def wavelet(size: int) -> Floats:
    """Return the Haar wavelet (Xiao et al., 2011) of any size: the total, and left minus right of halved intervals."""
    rows = [np.ones(size)]
    for low, high in _nodes(size, 2):
        if high - low > 1:
            middle = _cuts(low, high, 2)[1]
            row = np.zeros(size)
            row[low:middle], row[middle:high] = 1.0, -1.0
            rows.append(row)
    return np.stack(rows)


def hierarchical(size: int, branching: int = 2, root: bool = True) -> Floats:
    """Return the sums of all intervals of a tree whose leaves are the cells (Hay et al., 2010); branching 2 is H2."""
    nodes = list(_nodes(size, branching))
    return np.stack([_indicator(size, node) for node in (nodes if root or size == 1 else nodes[1:])])


def hb(size: int) -> Floats:
    """Return the hierarchy without its root with the best branching factor for range queries (Qardaji et al., 2013)."""
    return hierarchical(size, hb_branching(size), root=False)


def layered_tree(size: int, branching: int = 2, root: bool = True) -> LayeredFactor:
    """Return the sums of the nodes of a regular tree over a wide axis (`hierarchical`), without a matrix.

    The nodes of a level have equal numbers of cells, so the last ones reach beyond the axis. The blocks are the nodes
    below the root; `top` has a row over the blocks for the root, and `multipliers` the factor of every level by block.

    Parameters
    ----------
    size, branching : int
    root : bool
        Whether the sum of all cells is measured.
    """
    widths = [1]
    while widths[0] * branching < size:
        widths.insert(0, widths[0] * branching)
    blocks = -(-size // widths[0])
    top, ones = np.ones((int(root), blocks), np.int64), np.ones((len(widths), blocks), np.int64)
    return LayeredFactor("layered", (size,), top=top, multipliers=ones, widths=tuple(widths))


def layered_wavelet(size: int) -> LayeredFactor:
    """Return sums of the nodes of a binary tree with the Gram matrix of the Haar wavelet, for Gaussian noise alone.

    With the multiplier 2^½ of the cells and 1 of the other nodes below the root, the eigenvalue of the differences
    between the halves of a node of w cells is w, as for the rows of `wavelet`.
    """
    tree = layered_tree(size)
    multipliers = np.ldexp(np.ones(tree.multipliers.shape), WAVELET_BITS)
    multipliers[-1] *= math.sqrt(2)
    return replace(tree, top=np.zeros((0, tree.blocks), np.int64), multipliers=np.rint(multipliers).astype(np.int64))


def hb_branching(size: int) -> int:
    """Return the b that minimises (b − 1) h³ − 2 (b + 1) h² / 3 with h = ⌈log_b n⌉ levels; b = n is the identity.

    The mean variance of range queries on a tree of h levels whose nodes have b children, up to a common factor.
    """

    def variance(branching: int) -> float:
        levels = max(1, math.ceil(round(math.log(size, branching), 9)))
        return (branching - 1) * levels**3 - 2 * (branching + 1) * levels**2 / 3

    return min(range(2, max(size, 2) + 1), key=variance)


def greedy_h(gram: Floats, noise: Noise) -> Floats:
    """Return GreedyH (Li et al., 2014): the binary hierarchy with weights optimised for the workload inside each node.

    The recursion starts at the leaves: a node's sum has weight λ and all nodes below it 1 − λ (Gaussian: √(1 − λ²)).
    With M the inverse Gram matrix of the nodes below at weight 1 and κ their weight, the error is (tr GM − λ² 1ᵀMGM1 /
    (κ² + λ² 1ᵀM1)) / κ².
    """
    rows, _ = _greedy(gram, (0, len(gram)), noise)
    return rows


def fourier(size: int) -> Floats:
    """Return the orthonormal real basis of the discrete Fourier transform: a cosine and a sine for every frequency."""
    cell = np.arange(size)
    rows = [np.full(size, 1 / math.sqrt(size))]
    for frequency in range(1, size // 2 + 1):
        angle = 2 * np.pi * frequency * cell / size
        rows += [np.cos(angle), np.sin(angle)] if 2 * frequency < size else [np.cos(angle)]
    return np.stack([row / np.linalg.norm(row) for row in rows])


def walsh(size: int) -> Floats:
    """Return the orthonormal Walsh-Hadamard basis, the Fourier basis of binary attributes (Barak et al., 2007).

    A size 2^a · m with odd m has the product with the real Fourier basis of m cells: the characters of Z₂^a × Z_m.
    """
    twos = size & -size
    rows = np.ones((1, 1))
    while len(rows) < twos:
        rows = np.block([[rows, rows], [rows, -rows]]) / math.sqrt(2)
    return np.asarray(np.kron(rows, fourier(size // twos)), np.float64)


def data_cube(union: Implicit, noise: Noise) -> dict[AttributeSet, float]:
    """Return BMAX (Ding et al., 2011): the fewest marginals, of equal weight, that cover the workload's marginals.

    A greedy cover is computed for every bound on the number of summed cells. The cover with the smallest least-squares
    error is returned, as in the published tables (the paper itself minimises the worst marginal only).

    `sums[i, j]` is the number of cells of candidate i that a cell of requested marginal j sums (inf if it does not
    cover it), and `bounds` a selection of these numbers. Each of k marginals has the share 1/k: precision 1/k
    (Gaussian) or 1/k² (Laplace).
    """
    wanted = np.argwhere(requested_terms(union)).astype(bool)
    sums, candidates = _summed(union, wanted)
    bounds = np.unique(sums[np.isfinite(sums)])
    bounds = bounds[np.unique(np.linspace(0, len(bounds) - 1, BOUNDS).astype(int))]
    traces = residual_traces(union)

    def weights(chosen: list[int]) -> Floats:
        """Return the inverse variances of equal shares of the budget, up to a factor."""
        marginal_weights = np.zeros(traces.shape)
        marginal_weights[tuple(candidates[chosen].T.astype(int))] = 1 / len(chosen) ** (2 if noise == "laplace" else 1)
        return marginal_weights

    is_wanted = (candidates[:, None] == wanted[None]).all(axis=2).any(axis=1)[:, None]
    pools = (is_wanted, True)  # marginals of the workload alone, and all: the greedy cover may be better with fewer
    covers = [_cover((sums <= bound) & pool) for bound in bounds for pool in pools]
    best = min(covers, key=lambda chosen: marginal_error(traces, weights(chosen), union.sizes))

    weight = 1 / len(best) if noise == "laplace" else 1 / math.sqrt(len(best))
    marginals = {}
    for index in best:
        names = tuple(name for name, present in zip(union.names, candidates[index], strict=True) if present)
        marginals[names] = weight
    return marginals


def _cuts(low: int, high: int, branching: int) -> list[int]:
    parts = min(branching, high - low)
    return [low + round(i * (high - low) / parts) for i in range(parts + 1)]


def _nodes(size: int, branching: int) -> Iterator[Interval]:
    """Yield all intervals of the tree level by level, the root first; each node is cut into `branching` parts."""
    level: list[Interval] = [(0, size)]
    while level:
        yield from level
        cuts = [_cuts(low, high, branching) for low, high in level if high - low > 1]
        level = [pair for cut in cuts for pair in pairwise(cut)]


def _indicator(size: int, node: Interval) -> Floats:
    row = np.zeros(size)
    row[node[0] : node[1]] = 1.0
    return row


def _greedy(gram: Floats, node: Interval, noise: Noise) -> tuple[Floats, Floats]:
    """Return the rows at and below a node, (rows, n), of sensitivity 1 within it, and their inverse Gram matrix.

    The rows are those of both halves and the node's indicator, with the weights that minimise the error of the node's
    part of the Gram matrix.

    With V the inverse Gram matrix of both halves and weights λ (`weight`) of the indicator and b (`below`) of the rows
    below, the new inverse is (V − λ²/(b² + λ² 1ᵀV1) V11ᵀV)/b², by Sherman and Morrison.
    """
    low, high = node
    size = len(gram)
    if high - low == 1:
        return _indicator(size, node)[None], np.ones((1, 1))

    middle = _cuts(low, high, 2)[1]
    (left, left_inverse), (right, right_inverse) = (
        _greedy(gram, half, noise) for half in ((low, middle), (middle, high))
    )
    inverse = np.zeros((high - low,) * 2)
    inverse[: middle - low, : middle - low], inverse[middle - low :, middle - low :] = left_inverse, right_inverse
    local, row_sums = gram[low:high, low:high], inverse.sum(axis=1)
    weight, below = _node_weight(
        float((local * inverse).sum()), float(row_sums @ local @ row_sums), float(row_sums.sum()), noise
    )
    rows = np.concatenate([weight * _indicator(size, node)[None], below * left, below * right])
    shrunk = weight**2 / (below**2 + weight**2 * row_sums.sum())

    return rows, (inverse - shrunk * np.outer(row_sums, row_sums)) / below**2


def _node_weight(trace: float, moment: float, total: float, noise: Noise) -> tuple[float, float]:
    """Return the weight λ of a node's indicator that minimises the error, and the remaining weight of the nodes below.

    The indicator 1 is added to rows with the inverse Gram matrix V, for the Gram matrix G: `trace` is tr(GV), `moment`
    (V1)ᵀG(V1) and `total` 1ᵀV1.

    With b the weight below, Δ = 1 requires b = 1 − λ (L1) or b² = 1 − λ² (L2); the error is (tr(GV) − λ² (V1)ᵀG(V1)/(b²
    + λ² 1ᵀV1))/b², by Sherman and Morrison.
    """

    def weight_below(weight: float) -> float:
        return 1 - weight if noise == "laplace" else math.sqrt(1 - weight**2)

    def error(weight: float) -> float:
        below = weight_below(weight) ** 2
        return (trace - weight**2 * moment / (below + weight**2 * total)) / below

    grid = np.linspace(0, 0.99, 100)
    start = float(min(grid, key=error))
    bounds = (max(start - 0.01, 0.0), min(start + 0.01, 0.995))
    fine = float(optimize.minimize_scalar(error, bounds=bounds, method="bounded").x)
    best = min(start, fine, key=error)

    return best, weight_below(best)


def _summed(union: Implicit, wanted: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the summed cells for every candidate and requested marginal, inf if not covered, and the candidates.

    The candidates are the requested marginals, all unions of two of them and unions of those with a third, up to a
    limit. A marginal is a row of `wanted` or of the candidates that marks its attributes.
    """
    candidates = wanted
    for _ in range(2):
        pairs = candidates[:, None, :] | wanted[None, :, :]
        if len(candidates) > MANY:
            break
        candidates = np.unique(np.concatenate([candidates, pairs.reshape(-1, wanted.shape[1])]), axis=0)

    covers = ~(wanted[None] & ~candidates[:, None]).any(axis=2)
    sizes = np.log(np.array(union.sizes, dtype=np.float64))
    cells = np.round(np.exp((candidates @ sizes)[:, None] - (wanted @ sizes)[None]), 6)
    return np.where(covers, cells, np.inf), candidates


def _cover(spans: NDArray[np.bool_]) -> list[int]:
    """Return a greedy set cover: rows that together cover every column, each the one that covers most of the rest."""
    uncovered = np.ones(spans.shape[1], dtype=bool)
    chosen: list[int] = []
    while uncovered.any():
        gains = (spans & uncovered).sum(axis=1)
        chosen.append(int(gains.argmax()))
        uncovered &= ~spans[chosen[-1]]
    return chosen
