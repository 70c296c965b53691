"""Expected links of every pair of profiles from noisy sums: prior, shrinkage and fit, in this order.

One-way sums are shrunk towards random links. Pairwise sums are shrunk towards those of the fit to the one-way sums,
because a pair that departs only as implied by them contains no new information.

*Fit.* The distribution of maximum entropy near random links, constrained by the measured sums.
Many-to-many: every pair of rows of profiles (i, j) is linked with probability b = expit(α + φθ_u + ψθ_v + φΘψᵀ), so 0 ≤
b ≤ 1 by construction; W = cap · b, with cap the number of pairs of rows. One-to-many: every child of profile j has one
parent, of profile i with probability ∝ rows_i exp(φθ_u + φΘψᵀ). Both minimise a convex function: log-partition − ⟨x, z⟩
+ ½ λ x². All rows of a profile have equal probabilities, so the fit over profiles equals that over pairs of rows.

*Parameters.* They are one vector: α if `alone`, then θ_u, θ_v and Θ, as far as their sums are constrained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpscale.base.numerics import Floats, Integers, NDArray, optimize
from dpscale.privacy.streams import PublicStream
from dpscale.relational.budget_shares import CHUNK, Expected, Shares
from dpscale.relational.features import STEP, Side

Partition = Callable[[Floats], tuple[float, Floats]]
STEPS, MEMORY = 80, 20  # of L-BFGS: steps of a large problem; steps that it keeps
# of a small one: most steps; steps times pairs of profiles; slope at which it ends
MOST, WORK, GRADIENT = 3000, 3e6, 1e-9


@dataclass(frozen=True, eq=False)
class Constraint:
    """Sum that the fit is constrained to: `target`, `ridge`, and `curvature` for its scale, of one shape."""

    target: Floats
    ridge: Floats
    curvature: Floats


@dataclass(frozen=True, eq=False)
class Links:
    """Inputs of the fit.

    Attributes
    ----------
    u, v : ndarray, shapes (p, k) and (q, l)
        Features of the profiles.
    u_rows, v_rows : ndarray
        Number of rows of each profile.
    links : float
        Number of links.
    """

    u: Floats
    v: Floats
    u_rows: Floats
    v_rows: Floats
    links: float

    @property
    def cap(self) -> Floats:
        return np.multiply.outer(self.u_rows, self.v_rows)


@dataclass(frozen=True, eq=False)
class Fitted:
    """Fitted expected links of every pair of profiles, `weights` (p, q), with θ_u, θ_v and Θ, 0 if unconstrained."""

    weights: Floats
    u: Floats
    v: Floats
    both: Floats


@dataclass(frozen=True, eq=False)
class _Parameters:
    """Parameters as one vector: α if `alone`, then θ_u, θ_v, Θ if they are constrained."""

    links: Links
    constraints: tuple[Constraint | None, Constraint | None, Constraint | None]
    alone: bool

    @property
    def ridge(self) -> Floats:
        return np.concatenate(
            [np.zeros(int(self.alone)), *(constraint.ridge.ravel() for constraint in self.constraints if constraint)]
        )

    @property
    def target(self) -> Floats:
        total = [np.full(int(self.alone), self.links.links)]
        return np.concatenate([*total, *(constraint.target.ravel() for constraint in self.constraints if constraint)])

    @property
    def steps(self) -> Floats:
        """Scale of every parameter."""
        total = [np.full(int(self.alone), 1 / math.sqrt(self.links.links))]
        scales = [
            1 / np.sqrt(np.maximum(constraint.curvature, 1e-6) + constraint.ridge).ravel()
            for constraint in self.constraints
            if constraint
        ]
        return np.concatenate([*total, *scales])

    def energy(self, x: Floats) -> Floats:
        """Return the logits of the parameters, shape (p, q)."""
        at, links = int(self.alone), self.links
        logits = np.full((len(links.u), len(links.v)), x[0] if self.alone else 0.0)
        for number, constraint in enumerate(self.constraints):
            if constraint is not None:
                parameters = x[at : at + constraint.target.size]
                at += constraint.target.size
                logits += self._part(number, parameters.reshape(constraint.target.shape))
        return logits

    def split(self, x: Floats) -> list[Floats]:
        """Return θ_u, θ_v and Θ of a vector of parameters."""
        at, shapes = int(self.alone), ((self.links.u.shape[1],), (self.links.v.shape[1],))
        parts = []
        for constraint, shape in zip(self.constraints, (*shapes, (*shapes[0], *shapes[1])), strict=True):
            size = constraint.target.size if constraint else 0
            parts.append(x[at : at + size].reshape(shape) if constraint else np.zeros(shape))
            at += size
        return parts

    def _part(self, number: int, parameters: Floats) -> Floats:
        if number == 2:
            return np.asarray(self.links.u @ parameters @ self.links.v.T)
        return (self.links.u @ parameters)[:, None] if number == 0 else (self.links.v @ parameters)[None]

    def sums(self, weights: Floats) -> Floats:
        """Return the constrained sums of W."""
        links = self.links
        sums_of = (lambda: links.u.T @ weights.sum(axis=1), lambda: links.v.T @ weights.sum(axis=0),
                lambda: (links.u.T @ weights @ links.v).ravel())  # fmt: skip
        total = [np.array([weights.sum()])] if self.alone else []
        return np.concatenate(
            [
                *total,
                *(compute() for compute, constraint in zip(sums_of, self.constraints, strict=True) if constraint),
            ]
        )


def many_to_many(links: Links, u: Constraint | None, v: Constraint | None, pairs: Constraint | None) -> Fitted:
    """Return the expected links of every pair of profiles; they sum to `links`.

    `base` is the logit of a link of random rows, m over the pairs without one. With logit e, log(1 + exp(e)) is max(e,
    0) + log(1 + exp(−|e|)), weighted by the pairs of rows `cap`; its derivative is the expected number of links.
    """
    cap = links.cap
    base = math.log(links.links / max(cap.sum() - links.links, 1e-9 * cap.sum()))

    def partition(energy: Floats) -> tuple[float, Floats]:
        """Return the log-partition and its derivative, the expected links of every pair of profiles.

        `small` is exp(−|e|), so nothing overflows for either sign of the logit e.
        """
        energy = energy + base
        small = np.exp(-np.abs(energy))
        weights = cap * np.where(energy > 0, 1, small) / (1 + small)
        return float((cap * (np.maximum(energy, 0) + np.log1p(small))).sum()), weights

    fitted = _minimise(_Parameters(links, (u, v, pairs), True), partition)
    return replace(fitted, weights=fitted.weights * links.links / fitted.weights.sum())


def one_to_many(links: Links, u: Constraint | None, pairs: Constraint | None) -> Fitted:
    """Return the expected children of every profile at parents of every profile; each child has one parent.

    The log-partition of a child is the logarithm of Σ over parents' profiles of rows · exp(energy); `most` is
    subtracted so that exponentials do not overflow.
    """
    start, children = (
        np.log(links.u_rows / links.u_rows.sum())[:, None],
        links.v_rows * (links.links / links.v_rows.sum()),
    )

    def partition(energy: Floats) -> tuple[float, Floats]:
        """Return the log-partition of all children and its derivative, the expected links of every pair of profiles."""
        energy = energy + start
        most = energy.max(axis=0)
        weights = np.exp(energy - most)
        total = weights.sum(axis=0)
        return float(children @ (most + np.log(total))), weights / total * children

    return _minimise(_Parameters(links, (u, None, pairs), False), partition)


def _minimise(unknown: _Parameters, partition: Partition) -> Fitted:
    """Return the minimum of log Z(x) − x · target + ½ Σ ridge x², the regularised likelihood of the noisy sums.

    Its gradient is the difference between the sums of the model and the target, plus ridge · x. The search runs over
    y = x / steps, in which all parameters have similar curvature.
    """
    steps, ridge, target = unknown.steps, unknown.ridge, unknown.target

    def value(y: Floats) -> tuple[float, Floats]:
        """Return the objective and its gradient at y."""
        x = y * steps
        total, weights = partition(unknown.energy(x))
        slope: Floats = (unknown.sums(weights) - target + ridge * x) * steps
        return float(total - x @ target + 0.5 * (ridge * x) @ x), slope

    x = np.zeros(len(steps))
    if len(steps):
        solution = optimize.minimize(value, x, jac=True, method="L-BFGS-B", options=_options(unknown.links))
        x = solution.x * steps

    return Fitted(partition(unknown.energy(x))[1], *unknown.split(x))


def _options(links: Links) -> dict[str, float]:
    """Return solver options: full precision for small problems; 80 steps suffice for large ones given the noise."""
    most = int(min(WORK // (len(links.u) * len(links.v)), MOST))
    if most <= STEPS:
        return {"maxiter": STEPS, "maxcor": MEMORY}
    return {"maxiter": most, "maxfun": 2 * most, "maxcor": MEMORY, "ftol": 0.0, "gtol": GRADIENT}


SCALES = np.exp(np.linspace(math.log(0.005), math.log(1.5), 36))  # grid of the relative scale of departures
LOGS = np.log(SCALES)
WIDTH, SPIKE, NOTHING = 0.7, 0.3, 0.7  # log-spread of a block's scale around the common one; prior probabilities
SPREAD = 0.2  # log-spread of the common scale around its prior mode; small, so that noise rarely appears as signal
FEW = 300.0  # ridge, in multiples of the curvature, above which a cell has no evidence of a departure


@dataclass(frozen=True, eq=False)
class ShrinkageBlock:
    """Departures of the sums of one block of columns from their prior.

    Attributes
    ----------
    departed : ndarray, shape (k,)
        Noisy sums minus expected sums.
    curvature, carried : ndarray, shape (k,)
        As in `Expected`.
    sigma : float
        Standard deviation of the noise.
    """

    departed: Floats
    curvature: Floats
    carried: Floats
    sigma: float

    @property
    def evidence(self) -> Floats:
        """How much better than noise alone each scale explains the sums: log(likelihood / likelihood at 0), (scales,).

        A departure d (in `departed`) is a noisy sum minus the expected one. Its noise has the variance σ². Where values
        depart from the expectation by the relative scale s, it has another part, of standard deviation s · c; c (in
        `carried`) is the change of the sum per relative departure. So d is normal with variance v = (s c)² + σ², and

            log(likelihood ratio of d) = −½ (log(v / σ²) + d² (1 / v − 1 / σ²)).
        """
        noise_variance = self.sigma**2
        variances = (self.carried * SCALES[:, None]) ** 2 + noise_variance  # shape (scales, departures)
        log_terms = np.log(variances / noise_variance)
        square_terms = self.departed**2 * (1 / variances - 1 / noise_variance)
        return np.asarray(-0.5 * (log_terms + square_terms).sum(axis=1))  # departures are independent: logs add

    def ridge(self, weights: Floats) -> Floats:
        """Return the ridge parameters λ, shape (k,), given the posterior of the scale."""
        real = (self.carried * SCALES[:, None]) ** 2
        shrinkage = (weights[:, None] * real / (real + self.sigma**2)).sum(axis=0)
        return np.asarray(np.maximum(self.curvature, 1e-9) * (1 / np.clip(shrinkage, 1e-4, 1 - 1e-9) - 1))


def ridges(blocks: Sequence[ShrinkageBlock], prior: float) -> list[Floats]:
    """Return λ of every block of one kind; `prior` is the prior mode of the common scale.

    A block has a scale of its own near a common scale. `something` is the probability that there is any departure, with
    NOTHING as that of none before the data; the weights of the common scale are multiplied by it.
    """
    slabs, likely = _block_evidence(blocks)
    before = -0.5 * ((LOGS - math.log(prior)) / SPREAD) ** 2
    common = np.sum(likely, axis=0) + before
    odds = float(_log_sum(common, 0) - _log_sum(before, 0)) + math.log((1 - NOTHING) / NOTHING)
    something = 1 / (1 + math.exp(-min(max(odds, -50.0), 50.0)))
    weights = np.exp(common - _log_sum(common, 0)) * something
    return [block.ridge(np.exp(slab - all_) @ weights) for block, slab, all_ in zip(blocks, slabs, likely, strict=True)]


def scale_evidence(blocks: Sequence[ShrinkageBlock]) -> Floats:
    """Return the log-likelihood of every common scale in SCALES, up to a constant, shape (scales,)."""
    return np.asarray(np.sum(_block_evidence(blocks)[1], axis=0))


def _block_evidence(blocks: Sequence[ShrinkageBlock]) -> tuple[list[Floats], list[Floats]]:
    """Return for each block the evidence of its own and the common scale, (own, common), and that of the common one.

    `near` is the distribution of a block's own scale given the common one, log-normal of width WIDTH; with the
    probability SPIKE a block has no departure.
    """
    near = -0.5 * ((LOGS[:, None] - LOGS) / WIDTH) ** 2
    near -= np.log(np.exp(near).sum(axis=0))
    slabs = [block.evidence[:, None] + near + math.log(1 - SPIKE) for block in blocks]
    return slabs, [np.logaddexp(_log_sum(slab, 0), math.log(SPIKE)) for slab in slabs]


def _log_sum(values: Floats, axis: int) -> Floats:
    most = values.max(axis=axis)
    return np.asarray(np.log(np.exp(values - most).sum(axis=axis)) + most)


def shrink_sums(noisy: Floats, expected: Floats, curvature: Floats, carried: Floats, precision: float,
           kinds: NDArray[np.int64], prior: float) -> tuple[Floats, Floats]:  # fmt: skip
    """Return the sums to fit and their ridges, (k,) each; cells without evidence are set to their expectation.

    `kinds` is the block of every cell.

    A ridge that is large against the curvature means that there is no evidence of a departure.
    """
    names, sigma = np.unique(kinds), 1 / math.sqrt(precision)
    blocks = [
        ShrinkageBlock(
            departed=(noisy - expected)[kinds == i],
            curvature=curvature[kinds == i],
            carried=carried[kinds == i],
            sigma=sigma,
        )
        for i in names
    ]
    ridge, target = np.zeros(len(noisy)), noisy.copy()
    for i, block_ridges in zip(names, ridges(blocks, prior), strict=True):
        ridge[kinds == i] = block_ridges
    is_weak = ridge > FEW * curvature
    target[is_weak] = expected[is_weak]

    return target, ridge


PRIOR_ONES, PRIOR_PAIRS = 0.08, 0.1  # prior modes of the common scale: of one-way sums; of pairwise sums


@dataclass(frozen=True, eq=False)
class Sums:
    """Noisy sums over links in natural units: of φ (k,), of ψ (l,), of φψᵀ (k, l); None if not measured."""

    u: Floats | None
    v: Floats | None
    both: Floats | None


def expected_links(u: Side, v: Side, shares: Shares, sums: Sums, links: float, known: bool = False) -> Floats:
    """Return the expected links, shape (profiles of u, profiles of v), which sum to `links`.

    `known` is that of `budget_shares.LinkProblem`.
    """
    side_u, side_v = Expected.random(u, shares.u, links), Expected.random(v, shares.v, links)
    model = Links(u=side_u.values, v=side_v.values, u_rows=u.counts, v_rows=v.counts, links=links)
    return _fit_model(model, side_u, side_v, shares, sums, known).weights


def _fit_model(model: Links, side_u: Expected, side_v: Expected, shares: Shares, sums: Sums, known: bool) -> Fitted:
    """Return the fit for a model of all profiles, or of a sample that represents them."""
    first = _ones(sums.u, side_u, shares.precisions[0])
    second = None if known else _ones(sums.v, side_v, shares.precisions[1])
    alone = _fit(model, first, second, None, known)
    if sums.both is None:
        return alone
    pairs = _pairs(sums.both, model.u.T @ alone.weights @ model.v, side_u, side_v, shares.precisions[2])
    return _fit(model, first, second, pairs, known)


def fit_sample(u: Side, v: Side, shares: Shares, sums: Sums, links: float, known: bool, stream: PublicStream) -> Fitted:
    """Return the fit for a sample of rows instead of all profiles, weighted to have the same means of features."""
    side_u, side_v = Expected.random(u, shares.u, links), Expected.random(v, shares.v, links)
    (sampled_u, weights_u), (sampled_v, weights_v) = (sample(side, stream) for side in (side_u, side_v))
    model = Links(u=sampled_u, v=sampled_v, u_rows=weights_u * u.rows, v_rows=weights_v * v.rows, links=links)
    return _fit_model(model, side_u, side_v, shares, sums, known)


def _fit(
    model: Links, first: Constraint | None, second: Constraint | None, pairs: Constraint | None, known: bool
) -> Fitted:
    return one_to_many(model, first, pairs) if known else many_to_many(model, first, second, pairs)


def _ones(noisy: Floats | None, side: Expected, precision: float) -> Constraint | None:
    """Return the constraint of the shrunk one-way sums of a side; None if they are not measured."""
    if noisy is None or precision <= 0:
        return None
    target, ridge = shrink_sums(noisy, side.sums, side.curvature, side.carried, precision, side.blocks, PRIOR_ONES)
    return Constraint(target, ridge, side.curvature)


def _pairs(noisy: Floats, expected: Floats, u: Expected, v: Expected, precision: float) -> Constraint:
    """Return the constraint on sums over pairs of features (u × v): shrunken targets, ridges and curvatures."""
    curvature, carried = (
        np.multiply.outer(*both) / u.links for both in ((u.curvature, v.curvature), (u.carried, v.carried))
    )
    kinds = u.blocks[:, None] * (v.blocks.max() + 1) + v.blocks
    noisy_sums, expected_sums, curvatures, carried_sums = (
        table.ravel() for table in (noisy, expected, curvature, carried)
    )
    target, ridge = shrink_sums(
        noisy_sums, expected_sums, curvatures, carried_sums, precision, kinds.ravel(), PRIOR_PAIRS
    )
    return Constraint(target.reshape(noisy.shape), ridge.reshape(noisy.shape), curvature)


# rows sampled of a side; clusters of rows; rounds of Lloyd's algorithm, and points in it
ROWS, GROUPS, ROUNDS, SAMPLE = 1500, 256, 6, 50_000


def sample(side: Expected, stream: PublicStream) -> tuple[Floats, Floats]:
    """Return features of some rows, (k, columns), and weights, (k,), that sum to 1 and match the means of all rows.

    The weights of the sampled profiles are start · exp(values · x), the distribution nearest to the sample with the
    given means; x minimises the convex dual log Σ start · exp(values · x) − x · means.
    """
    drawn = stream.systematic(side.side.shares, min(ROWS, side.side.rows))
    profiles, counts = np.unique(drawn, return_counts=True)
    values = np.asarray(side.features.whole(side.side.profiles[profiles]) * STEP, dtype=np.float64)
    start, means = counts / counts.sum(), side.sums / side.links

    def dual(x: Floats) -> tuple[float, Floats]:
        """Return the dual and its gradient at x; `most` is subtracted so that exponentials do not overflow."""
        energy = values @ x
        most = energy.max()
        weights = start * np.exp(energy - most)
        slope: Floats = values.T @ (weights / weights.sum()) - means
        return float(np.log(weights.sum()) + most - x @ means), slope

    solution = optimize.minimize(dual, np.zeros(values.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 200})
    energy = values @ solution.x
    weights: Floats = start * np.exp(energy - energy.max())
    return values, np.asarray(weights / weights.sum(), dtype=np.float64)


def directions(side: Expected, theta: Floats) -> NDArray[np.float32]:
    """Return φΘ as float32, shape (profiles, columns)."""
    out = np.empty((len(side.side.profiles), theta.shape[1]), np.float32)
    for start in range(0, len(out), CHUNK):
        values = side.features.whole(side.side.profiles[start : start + CHUNK]) * STEP
        out[start : start + CHUNK] = values @ theta
    return out


def cluster(points: NDArray[np.float32], stream: PublicStream) -> tuple[Integers, Floats]:
    """Return the cluster of every point and the centres, by Lloyd's algorithm on a sample.

    Each of ROUNDS rounds moves a centre to the mean of the points nearest to it; a centre without points stays.
    """
    if len(points) <= GROUPS:
        return np.arange(len(points)), points.astype(float)

    sampled = points[stream.permutation(len(points))[:SAMPLE]]
    centres = sampled[:GROUPS].astype(float)
    for _ in range(ROUNDS):
        near = nearest(sampled, centres)
        counts = np.maximum(np.bincount(near, minlength=GROUPS), 1)
        sums = np.stack([np.bincount(near, column, GROUPS) for column in sampled.T], axis=1)
        centres = np.where(np.bincount(near, minlength=GROUPS)[:, None] > 0, sums / counts[:, None], centres)

    return nearest(points, centres), centres


def nearest(points: NDArray[np.float32], centres: Floats) -> Integers:
    """Return the nearest centre of each point."""
    half, out = 0.5 * (centres**2).sum(axis=1), np.empty(len(points), np.int64)
    for start in range(0, len(points), CHUNK):
        out[start : start + CHUNK] = np.argmax(points[start : start + CHUNK] @ centres.T - half, axis=1)
    return out


MOST_CELLS = 1 << 22  # pairs of profiles up to which their links are an array


@dataclass(frozen=True, eq=False)
class Grouped:
    """Expected links by groups of profiles.

    Attributes
    ----------
    links : ndarray, shape (groups of u, groups of v)
    u, v : Side
        The sides with groups instead of profiles.
    u_ends, v_ends : ndarray
        Expected links of every row.
    """

    links: Floats
    u: Side
    v: Side
    u_ends: Floats
    v_ends: Floats


def are_many(u: Side, v: Side) -> bool:
    """Return whether there are too many pairs of profiles for an array."""
    return len(u.profiles) * len(v.profiles) > MOST_CELLS


def grouped_links(
    u: Side, v: Side, shares: Shares, sums: Sums, links: float, known: bool, stream: PublicStream
) -> Grouped:
    """Return the expected links by groups and by rows, which sum to `links`.

    Links of profiles i and j are own_u · own_v · exp(φΘψᵀ); within a group of u, φΘ is replaced by its centre, so only
    sums over groups of u (`mass`) with profiles of v are needed.

    `own_u` and `own_v` are the weights of profiles without the joint term, which the sums over one side give. `of_u`
    and `of_v` are the groups of profiles, `cells` the links by groups, and `ends_u` and `ends_v` their sums by group of
    u and by profile of v.
    """
    fitted = fit_sample(u, v, shares, sums, links, known, stream)
    side_u, side_v = Expected.random(u, shares.u, links), Expected.random(v, shares.v, links)
    of_u, centres = cluster(directions(side_u, fitted.both), stream)
    of_v, _ = cluster(directions(side_v, fitted.both.T), stream)
    own_u, own_v = u.counts * _factors(side_u, fitted.u), v.counts * _factors(side_v, fitted.v)
    mass = np.asarray(np.bincount(of_u, own_u, len(centres)), dtype=np.float64)
    cells, ends_u, ends_v = _sum_weights(side_v, centres, mass, own_v, of_v, known, v.counts)
    # weights become numbers of links
    scale = links / cells.sum()
    by_profile = own_u * (ends_u / np.maximum(mass, 1e-300))[of_u]
    each_u, each_v = scale * by_profile / u.counts, scale * ends_v / v.counts

    return Grouped(
        links=scale * cells, u=_by_group(u, of_u), v=_by_group(v, of_v), u_ends=each_u[u.of], v_ends=each_v[v.of]
    )


def _factors(side: Expected, theta: Floats) -> Floats:
    """Return exp(φθ) of every profile, up to a factor."""
    chunks = range(0, len(side.side.profiles), CHUNK)
    parts = [side.features.whole(side.side.profiles[at : at + CHUNK]) * STEP @ theta for at in chunks]
    energy = np.concatenate(parts)
    return np.asarray(np.exp(energy - energy.max()))


def _sum_weights(
    side_v: Expected, centres: Floats, own_u: Floats, own_v: Floats, of_v: Integers, known: bool, children: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return sums between groups of u and v, of every group of u, and of every profile of v, up to a factor."""
    cells, ends = np.zeros((len(centres), int(of_v.max()) + 1)), np.empty(len(own_v))
    for start in range(0, len(own_v), CHUNK):
        chunk = slice(start, start + CHUNK)
        energy = centres @ (side_v.features.whole(side_v.side.profiles[chunk]) * STEP).T
        weights = own_u[:, None] * np.exp(energy - energy.max(axis=0) * known) * own_v[chunk]
        if known:  # every child has one parent
            weights *= children[chunk] / weights.sum(axis=0)
        ends[chunk] = weights.sum(axis=0)
        np.add.at(cells.T, of_v[chunk], weights.T)

    return cells, cells.sum(axis=1), ends


def _by_group(side: Side, groups: Integers) -> Side:
    group_of_row = groups[side.of]
    counts = np.bincount(group_of_row, minlength=int(groups.max()) + 1).astype(float)
    return Side(sizes=side.sizes, profiles=side.profiles[:0], counts=counts, of=group_of_row)


def row_degrees(ends: Floats, shares: Floats, side: Side, totals: Floats, stream: PublicStream) -> list[Integers]:
    """Return the degrees of the rows of every group, which sum to the group's total.

    Each is drawn from the distribution `shares` of rows by degree, tilted to the row's expected links `ends`.
    """
    from dpscale.relational.degrees import adjust_total, tilt_distributions

    laws, means = tilt_distributions(shares)
    at = np.minimum(np.searchsorted(means, ends), len(means) - 1)
    ordered = np.argsort(at, kind="stable")
    drawn = np.empty(len(ends), np.int64)
    begins = np.searchsorted(at[ordered], np.arange(len(means) + 1))

    for law, first, last in zip(laws, begins, begins[1:], strict=False):
        if last > first:
            drawn[ordered[first:last]] = stream.systematic(law, int(last - first))

    rows = np.argsort(side.of, kind="stable")
    groups = np.split(drawn[rows], np.cumsum(side.counts.astype(np.int64))[:-1])
    return [
        adjust_total(group.copy(), int(total), len(shares) - 1, stream)
        for group, total in zip(groups, totals, strict=True)
    ]
