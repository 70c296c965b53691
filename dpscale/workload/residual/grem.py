"""GReM: one estimate per residual from repeated measurements, and marginals as sums of residuals.

GReM-MLE is the inverse-variance average of each residual (AIM+GReM, algorithm 3). Residuals are stored centred, with n
entries along each of their axes: N(0, σ²) noise on the τ-marginal gives the residual the covariance σ² · (centring
projector), so the precision 1/σ² describes it completely. Residuals that were never measured are zero, which
corresponds to a uniform distribution. GReM-LNN (Mullins et al. 2024) additionally requires the requested marginals to
be non-negative: least squares under local non-negativity, solved here by the alternating direction method of
multipliers, whose two steps both have a closed form.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from dpscale.base.numerics import AttributeSet, Floats
from dpscale.workload.residual.axes import residual_of, smear, subsets

# most iterations if some residuals were not measured; violation at the end, as a share of the total
ITERATIONS, TOLERANCE = 500, 1e-7
MEASURED_ITERATIONS = 5000  # if all residuals were measured, so that the optimum is unique


@dataclass(frozen=True, eq=False)
class Residuals:
    """Immutable estimates of residuals.

    Attributes
    ----------
    sizes : mapping of str to int
        Sizes of the attributes.
    values : mapping of AttributeSet to ndarray
        Centred residual of each set τ, in the shape of τ.
    precisions : mapping of AttributeSet to float
        Precision 1/σ² of each residual.
    """

    sizes: Mapping[str, int]
    values: Mapping[AttributeSet, Floats] = field(default_factory=dict)
    precisions: Mapping[AttributeSet, float] = field(default_factory=dict)

    def precision(self, names: AttributeSet) -> float:
        """Return the precision 1/σ² of a residual's estimate; 0 if it was never measured."""
        return self.precisions.get(names, 0.0)

    def updated(self, measured: Iterable[tuple[AttributeSet, Floats, float]]) -> Residuals:
        """Return the estimates averaged with further measurements (τ, centred values, precision).

        The average of z with precision a and a value with precision b is z + (value − z) b/(a + b), of precision a + b.
        """
        values, precisions = dict(self.values), dict(self.precisions)
        for names, value, precision in measured:
            had = precisions.get(names, 0.0)
            old = values.get(names, 0.0)
            values[names] = np.asarray(old + (value - old) * (precision / (had + precision)))
            precisions[names] = had + precision
        return Residuals(self.sizes, values, precisions)

    def marginal(self, names: AttributeSet) -> Floats:
        """Return the estimated marginal: the sum of its known residuals."""
        total = np.zeros(self.shape(names))
        for kept in subsets(names):
            if kept in self.values:
                total += spread(self.values[kept], kept, names, total.shape)
        return total

    def within(self, sets: Iterable[AttributeSet]) -> Residuals:
        """Return the residuals that the marginals of the given sets require."""
        needed = {kept for names in sets for kept in subsets(names)}
        values = {kept: value for kept, value in self.values.items() if kept in needed}
        return Residuals(self.sizes, values, {kept: self.precisions[kept] for kept in values})

    def shape(self, names: Sequence[str]) -> tuple[int, ...]:
        return tuple(self.sizes[name] for name in names)


@dataclass(frozen=True, eq=False)
class LazyMarginals:
    """Marginals that are updated by the changes of their residuals (AIM+GReM, proposition 4.2).

    The marginal of γ after a round is that before it, plus Recon(z' − z, α, γ) for every α ⊆ γ whose estimate z the
    round changed, in the order of `subsets(γ)`; before the first round it is the sum of its residuals. It is therefore
    a function of the sequence of estimates, regardless of when and in which order marginals are requested.

    Attributes
    ----------
    first : Residuals
        Estimates before the first round.
    changes : tuple of mapping of AttributeSet to ndarray
        Change of each residual that a round changed.
    known : dict of AttributeSet to (int, ndarray)
        Latest requested marginals with their number of rounds; a cache that all rounds share.
    """

    first: Residuals
    changes: tuple[Mapping[AttributeSet, Floats], ...] = ()
    known: dict[AttributeSet, tuple[int, Floats]] = field(default_factory=dict, repr=False)

    def updated(self, before: Residuals, after: Residuals) -> LazyMarginals:
        """Return the marginals after a round that changed the estimates from `before` to `after`."""
        changed = {names: np.asarray(value - before.values.get(names, 0.0))
                   for names, value in after.values.items() if value is not before.values.get(names)}  # fmt: skip
        return LazyMarginals(self.first, (*self.changes, changed), self.known)

    def marginal(self, names: AttributeSet) -> Floats:
        """Return the estimated marginal. The array must not be changed, because later calls start from it.

        `known` has for a set its last marginal and the number of rounds of `changes` that it includes; only the changes
        of later rounds are added. Each change of a residual α ⊆ names is spread over the cells of the marginal.
        """
        rounds, total = self.known.get(names, (0, None))
        # the cache is shared by the objects of all rounds: an object of an earlier round cannot use a later marginal
        if total is None or rounds > len(self.changes):
            rounds, total = 0, self.first.marginal(names)
        inside = subsets(names)

        for changed in self.changes[rounds:]:
            parts = [spread(changed[kept], kept, names, total.shape) for kept in inside if kept in changed]
            # a new array, because the old one was returned to callers; further parts are added to the new one in place
            total = total + parts[0] if parts else total
            for part in parts[1:]:
                total += part

        self.known[names] = len(self.changes), total
        return total


def spread(value: Floats, kept: AttributeSet, names: AttributeSet, shape: Sequence[int]) -> Floats:
    """Spread a centred residual over the marginal of `names` (Recon)."""
    return smear(value, [names.index(name) for name in kept], shape)


def non_negative(residuals: Residuals, sets: Sequence[AttributeSet], iterations: int | None = None) -> Residuals:
    """Return the residuals nearest to the measured ones whose marginals `sets` are non-negative (GReM-LNN).

    The distance is weighted by precision, and residuals that were not measured are free. Measured residuals outside
    `sets` do not change. Iterates until the violation is below TOLERANCE of the total, or for `iterations` steps, by
    default ITERATIONS or MEASURED_ITERATIONS.
    """
    inside = {names: subsets(names) for names in sets}
    spaces = sorted({kept for own in inside.values() for kept in own}, key=lambda kept: (len(kept), kept))
    step = float(np.median([p for p in residuals.precisions.values()] or [1.0]))
    solution = residuals
    lifted = {names: np.maximum(residuals.marginal(names), 0) for names in sets}
    duals = {names: np.zeros(residuals.shape(names)) for names in sets}
    unique = all(kept in residuals.precisions for kept in spaces)

    for _ in range(iterations or (MEASURED_ITERATIONS if unique else ITERATIONS)):
        targets = {names: lifted[names] - duals[names] for names in sets}
        solution = _nearest(residuals, spaces, inside, targets, step)
        gap = 0.0
        for names in sets:
            marginal = solution.marginal(names)
            lifted[names] = np.maximum(marginal + duals[names], 0)
            duals[names] += marginal - lifted[names]
            gap = max(gap, float(np.abs(marginal - lifted[names]).max()))

        if gap <= TOLERANCE * max(1.0, float(np.abs(solution.values[()]))):
            break

    return Residuals(residuals.sizes, {**residuals.values, **solution.values}, residuals.precisions)


def _nearest(
    residuals: Residuals,
    spaces: Sequence[AttributeSet],
    inside: Mapping[AttributeSet, Sequence[AttributeSet]],
    targets: Mapping[AttributeSet, Floats],
    step: float,
) -> Residuals:
    """Return, per residual, the weighted average of the measurement and the targets, which have weight step/Πn.

    The residual z minimises precision · |z − measured|² plus Σ over targets of step/Πn · |z − residual of the target|²,
    with n the sizes outside the residual.
    """
    totals: dict[AttributeSet, Floats] = {}
    weights = {kept: residuals.precision(kept) for kept in spaces}
    for kept, weight in weights.items():
        totals[kept] = weight * residuals.values[kept] if weight else np.zeros(residuals.shape(kept))

    for names, target in targets.items():
        for kept in inside[names]:
            share = step / math.prod(residuals.sizes[name] for name in names if name not in kept)
            totals[kept] = totals[kept] + share * residual_of(target, [names.index(name) for name in kept])
            weights[kept] += share

    values = {kept: np.asarray(total / weights[kept]) for kept, total in totals.items()}
    return Residuals(residuals.sizes, values, residuals.precisions)
