"""Compiled loops that shrink many noisy tables at once and compute each likelihood once.

Tables are concatenated in flat arrays, table t from `starts[t]` to `starts[t + 1]`. The loops use no BLAS, one order of
summation, and an exponential of products and sums alone, which the compiler vectorises. The bytes are the same on every
machine.
"""

from __future__ import annotations

from math import exp, log, sqrt

import numpy as np

from dpscale.base.compilation import compiled
from dpscale.base.numerics import Floats, Integers

# least log-density relative to the largest; below, a density is 0; factor before eight squarings
FARTHEST, PART = -60.0, 1 / 256
# 1/k!, the coefficients of the series of exp
C2, C3, C4, C5, C6 = 1 / 2, 1 / 6, 1 / 24, 1 / 120, 1 / 720
C7, C8, C9, C10, C11 = 1 / 5040, 1 / 40320, 1 / 362880, 1 / 3628800, 1 / 39916800


@compiled("Tuple((float64[:, ::1], float64[::1]))(float64[::1], float64[::1], float64, float64[::1], float64[::1])")
def likelihoods(
    values: Floats, reference: Floats, deviation: float, ratios: Floats, widths: Floats
) -> tuple[Floats, Floats]:
    """Return normal densities of every value under each component, divided by exp of the second result.

    A component's centre and width are `ratios` and `widths` times the cell's reference; noise with standard deviation
    `deviation` is added.

    The density of a value x in a component is exp(−(x − centre)² / 2v) / √v with v = deviation² + width², without the
    factor 1/√(2π). Dividing by the largest exponential of the cell (`tops`) avoids an underflow of all.

    Returns
    -------
    densities : ndarray, shape (cells, components)
    tops : ndarray, shape (cells,)
        Largest log-density of each cell.
    """
    cells, parts = len(values), len(ratios)
    densities, tops, variances = np.empty((cells, parts)), np.empty(cells), np.empty(parts)
    for cell in range(cells):
        top = -np.inf
        for part in range(parts):
            offset, width = values[cell] - reference[cell] * ratios[part], reference[cell] * widths[part]
            variances[part] = deviation * deviation + width * width
            densities[cell, part] = -0.5 * offset * offset / variances[part]
            top = max(top, densities[cell, part])

        for part in range(parts):
            relative = densities[cell, part] - top
            densities[cell, part] = exp(relative) / sqrt(variances[part]) if relative > FARTHEST else 0.0

        tops[cell] = top

    return densities, tops


@compiled("float64[::1](float64[:, ::1], float64[::1], float64, int64)")
def mixture_weights(likelihood: Floats, start: Floats, strength: float, rounds: int) -> Floats:
    """Return the weights of a mixture by EM from `start`, which counts as `strength` cells.

    A round sets w_p ∝ strength · start_p + Σ_c L_cp w_p / Σ_q L_cq w_q, scaled to sum 1: the expected number of cells c
    of component p, with a Dirichlet prior. `likelihood` L has the shape (cells, components).

    Four cells are processed at a time, for speed; a, b, c and d are their totals, and then the inverses of these.
    """
    cells, parts = likelihood.shape
    weights, scaled = start.copy(), np.empty(parts)
    in_fours = cells - cells % 4

    for _ in range(rounds):
        for part in range(parts):
            scaled[part] = 0.0
        for cell in range(0, in_fours, 4):
            a, b, c, d = 0.0, 0.0, 0.0, 0.0
            for part in range(parts):
                a += likelihood[cell, part] * weights[part]
                b += likelihood[cell + 1, part] * weights[part]
                c += likelihood[cell + 2, part] * weights[part]
                d += likelihood[cell + 3, part] * weights[part]

            a, b, c, d = 1 / a, 1 / b, 1 / c, 1 / d
            for part in range(parts):
                scaled[part] += (
                    likelihood[cell, part] * a
                    + likelihood[cell + 1, part] * b
                    + likelihood[cell + 2, part] * c
                    + likelihood[cell + 3, part] * d
                )

        # the last cells, one by one
        for cell in range(in_fours, cells):
            a = 0.0
            for part in range(parts):
                a += likelihood[cell, part] * weights[part]
            for part in range(parts):
                scaled[part] += likelihood[cell, part] / a

        total = 0.0
        for part in range(parts):
            # the factor w_p, the same for all cells, is multiplied after the sum
            weights[part] = strength * start[part] + weights[part] * scaled[part]
            total += weights[part]

        for part in range(parts):
            weights[part] /= total

    return weights


@compiled(
    "float64[::1](float64[::1], float64[::1], float64, float64[::1], float64[::1], float64[:, ::1], float64[::1])"
)
def posterior_means(
    values: Floats,
    reference: Floats,
    deviation: float,
    ratios: Floats,
    widths: Floats,
    likelihood: Floats,
    weights: Floats,
) -> Floats:
    """Return posterior means of the counts; component means below 0 are replaced by 0.

    In a component with mean c and variance w², a value y with noise s² has the posterior mean c + w²/(w² + s²) (y − c);
    components count by their posterior probability, `chance`.
    """
    cells, parts = likelihood.shape
    means = np.empty(cells)
    noise = deviation * deviation

    for cell in range(cells):
        total, mean = 0.0, 0.0
        for part in range(parts):
            chance = likelihood[cell, part] * weights[part]
            center, width = reference[cell] * ratios[part], reference[cell] * widths[part]
            inside = center + (1 - noise / (noise + width * width)) * (values[cell] - center)
            total += chance
            mean += chance * max(inside, 0.0)
        means[cell] = mean / total

    return means


@compiled("float64(float64)", inline="always", checked=False)
def exponential(x: float) -> float:
    """Return exp(x) for x from −60 to 0, with relative error 10⁻¹³: a series for exp(x/256), squared eight times.

    y is x/256 and z its exponential. Products and sums give the same bytes on every machine, unlike a library's
    exponential.
    """
    y = x * PART
    upper = C6 + y * (C7 + y * (C8 + y * (C9 + y * (C10 + y * C11))))
    z = 1.0 + y * (1.0 + y * (C2 + y * (C3 + y * (C4 + y * (C5 + y * upper)))))
    z = z * z
    z = z * z
    z = z * z
    z = z * z
    z = z * z
    z = z * z
    z = z * z

    return z * z


@compiled(
    "float64(float64, float64, float64, float64[::1], float64[::1], float64[::1], float64[::1])",
    inline="always",
    checked=False,
)
def weigh(
    value: float, expected: float, noise: float, ratios: Floats, widths: Floats, spreads: Floats, out: Floats
) -> float:
    """Write the densities of a value under its components divided by exp of the result.

    `noise` is a variance; `spreads` is working memory.

    The density of a component is exp(−(y − c)²/(2v))/√v with v = noise + width². The result is the largest exponent, by
    which all are reduced, so that none overflows.
    """
    parts = len(ratios)
    for part in range(parts):
        offset, width = value - expected * ratios[part], expected * widths[part]
        spread = noise + width * width
        spreads[part] = spread
        out[part] = -0.5 * offset * offset / spread

    top = out[0]
    for part in range(1, parts):
        top = max(top, out[part])
    for part in range(parts):
        relative = out[part] - top
        height = exponential(max(relative, FARTHEST)) / sqrt(spreads[part])
        out[part] = height if relative > FARTHEST else 0.0

    return top


@compiled(
    "void(float64[::1], float64[::1], int64, int64, int64, float64, float64[::1], float64[::1], float64[:, ::1],"
    " float64[::1])",
    checked=False,
)
def weigh_every(
    values: Floats, reference: Floats, first: int, step: int, count: int, deviation: float, ratios: Floats, widths:
    Floats, densities: Floats, tops: Floats,
) -> None:  # fmt: skip
    """Write the densities of `count` cells at intervals of `step` cells from `first`.

    A cell has `densities` under each component, divided by exp of its entry of `tops`; expectations are at least 1e-6.
    """
    spreads = np.empty(len(ratios))
    for number in range(count):
        cell, expected = first + number * step, max(reference[first + number * step], 1e-6)
        noise = deviation * deviation
        tops[number] = weigh(values[cell], expected, noise, ratios, widths, spreads, densities[number])


@compiled(
    "void(float64[::1], float64[::1], int64[::1], float64[::1], int64[::1], int64[::1], float64[::1], float64[::1],"
    " float64[:, ::1], float64[::1])"
)
def weigh_sample(
    values: Floats, reference: Floats, starts: Integers, deviations: Floats, steps: Integers, taken: Integers,
    ratios: Floats, widths: Floats, densities: Floats, tops: Floats,
) -> None:  # fmt: skip
    """Write the densities of every table's first sampled cells into rows taken[t] to taken[t + 1].

    starts[t] is the first cell of table t, steps[t] the interval of its sampled cells.
    """
    for t in range(len(deviations)):
        rows = densities[taken[t] : taken[t + 1]], tops[taken[t] : taken[t + 1]]
        weigh_every(values, reference, starts[t], steps[t], taken[t + 1] - taken[t], deviations[t], ratios, widths,
                    rows[0], rows[1])  # fmt: skip


@compiled("float64(float64[:, ::1], float64[::1], float64[::1])")
def evidence(likelihood: Floats, tops: Floats, weights: Floats) -> float:
    """Return the log-density of the values, rounded to sixteenths so that the last bits of floats do not decide."""
    total = 0.0
    for cell in range(len(likelihood)):
        density = 0.0
        for part in range(len(weights)):
            density += likelihood[cell, part] * weights[part]
        total += log(density) + tops[cell]
    return np.rint(16 * total) / 16


@compiled(
    "void(float64[::1], float64[::1], float64, float64[::1], float64[::1], float64[:, ::1], float64[::1],"
    " float64[::1])",
    checked=False,
)
def estimate(
    values: Floats,
    reference: Floats,
    deviation: float,
    ratios: Floats,
    widths: Floats,
    likelihood: Floats,
    weights: Floats,
    found: Floats,
) -> None:
    """Write (E √x)² of cells with given likelihoods; x as in `posterior_means`.

    `reference` are the expectations, and `ratios` and `widths` those of the components as multiples of them; `found`
    receives the result.

    The mean of √x is less than the root of the mean of x, so uncertain cells are shrunk more. `chances` are the
    components' posterior weights, not normalised, and `rooted` these times √mean.
    """
    noise, parts = deviation * deviation, len(weights)
    chances, rooted = np.empty(parts), np.empty(parts)
    for cell in range(len(values)):
        expected, total, root = max(reference[cell], 1e-6), 0.0, 0.0
        for part in range(parts):
            center, width = expected * ratios[part], expected * widths[part]
            # noise / (noise + width²) is the weight of the component's centre
            mean = center + (1 - noise / (noise + width * width)) * (values[cell] - center)  # posterior, in this part
            chances[part] = likelihood[cell, part] * weights[part]
            rooted[part] = chances[part] * sqrt(mean if mean > 0.0 else 0.0)

        for part in range(parts):
            total += chances[part]
            root += rooted[part]

        found[cell] = (root / total) * (root / total)


@compiled(
    "void(float64[::1], float64[::1], int64[::1], float64[::1], int64[::1], int64[::1], float64[::1], float64[::1],"
    " float64[:, ::1], float64[::1], float64[::1], float64, int64, int64, float64[::1], float64[::1])"
)
def shrink_every(
    values: Floats, reference: Floats, starts: Integers, deviations: Floats, steps: Integers, taken: Integers,
    ratios: Floats, widths: Floats, densities: Floats, tops: Floats, law: Floats, strength: float, rounds: int,
    block: int, best: Floats, found: Floats,
) -> None:  # fmt: skip
    """Fit mixture weights to every table and, if their evidence exceeds `best`, write the estimates of its cells.

    `taken` is where each table's precomputed likelihoods begin; a table without all of them computes its own. With
    `step` > 1 weights were learnt from a sample of cells, and all cells are then evaluated by blocks.

    `ratios` and `widths` are the components' centres and widths relative to a cell's reference, `law` and `strength`
    the prior of their weights. `densities` and `tops` are the likelihoods of `likelihoods`. `best` has the evidence of
    the best estimate so far and `found` its values.
    """
    for t in range(len(deviations)):
        first, end, step = starts[t], starts[t + 1], steps[t]
        count = (end - first + step - 1) // step
        likelihood, top = densities[taken[t] : taken[t + 1]], tops[taken[t] : taken[t + 1]]
        if len(likelihood) < count:
            likelihood, top = np.empty((count, len(ratios))), np.empty(count)
            weigh_every(values, reference, first, step, count, deviations[t], ratios, widths, likelihood, top)

        weights = mixture_weights(likelihood, law, strength, rounds)
        support = evidence(likelihood, top, weights)
        # an earlier call explains the table at least as well
        if not support > best[t]:
            continue

        best[t] = support
        for at in range(first, end, block):
            until = min(at + block, end)
            if step > 1:
                likelihood, top = np.empty((until - at, len(ratios))), np.empty(until - at)
                weigh_every(values, reference, at, 1, until - at, deviations[t], ratios, widths, likelihood, top)
            rows = likelihood if step > 1 else likelihood[at - first : until - first]
            estimate(
                values[at:until], reference[at:until], deviations[t], ratios, widths, rows, weights, found[at:until]
            )

        for cell in range(first, end):
            # at least 0.1 % of the reference, so that no estimate is 0 or negative
            found[cell] = max(found[cell], 1e-3 * reference[cell])
