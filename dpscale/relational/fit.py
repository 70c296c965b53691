"""Maximum-entropy distribution of links over pairs of profiles, near random links, constrained by the measured sums.

Many-to-many: every pair of rows of profiles (i, j) is linked with probability b = expit(α + φθ_u + ψθ_v + φΘψᵀ), so 0 ≤
b ≤ 1 by construction; W = cap · b, with cap the number of pairs of rows. One-to-many: every child of profile j has one
parent, of profile i with probability ∝ rows_i exp(φθ_u + φΘψᵀ). Both minimise a convex function: log-partition − ⟨x, z⟩
+ ½ λ x². All rows of a profile have equal probabilities, so the fit over profiles equals that over pairs of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dpscale.base.numerics import Floats, optimize

Partition = Callable[[Floats], tuple[float, Floats]]
STEPS, MEMORY = 80, 20
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
        whole = [np.full(int(self.alone), self.links.links)]
        return np.concatenate([*whole, *(constraint.target.ravel() for constraint in self.constraints if constraint)])

    @property
    def steps(self) -> Floats:
        """Scale of every parameter."""
        whole = [np.full(int(self.alone), 1 / math.sqrt(self.links.links))]
        own = [
            1 / np.sqrt(np.maximum(constraint.curvature, 1e-6) + constraint.ridge).ravel()
            for constraint in self.constraints
            if constraint
        ]
        return np.concatenate([*whole, *own])

    def energy(self, x: Floats) -> Floats:
        """Return the logits of the parameters, shape (p, q)."""
        at, links = int(self.alone), self.links
        found = np.full((len(links.u), len(links.v)), x[0] if self.alone else 0.0)
        for number, constraint in enumerate(self.constraints):
            if constraint is not None:
                own = x[at : at + constraint.target.size]
                at += constraint.target.size
                found += self._part(number, own.reshape(constraint.target.shape))
        return found

    def split(self, x: Floats) -> list[Floats]:
        """Return θ_u, θ_v and Θ of a vector of parameters."""
        at, shapes = int(self.alone), ((self.links.u.shape[1],), (self.links.v.shape[1],))
        found = []
        for constraint, shape in zip(self.constraints, (*shapes, (*shapes[0], *shapes[1])), strict=True):
            size = constraint.target.size if constraint else 0
            found.append(x[at : at + size].reshape(shape) if constraint else np.zeros(shape))
            at += size
        return found

    def _part(self, number: int, own: Floats) -> Floats:
        if number == 2:
            return np.asarray(self.links.u @ own @ self.links.v.T)
        return (self.links.u @ own)[:, None] if number == 0 else (self.links.v @ own)[None]

    def sums(self, weights: Floats) -> Floats:
        """Return the constrained sums of W."""
        links = self.links
        made = (lambda: links.u.T @ weights.sum(axis=1), lambda: links.v.T @ weights.sum(axis=0),
                lambda: (links.u.T @ weights @ links.v).ravel())  # fmt: skip
        whole = [np.array([weights.sum()])] if self.alone else []
        return np.concatenate(
            [
                *whole,
                *(make() for make, constraint in zip(made, self.constraints, strict=True) if constraint is not None),
            ]
        )


def many_to_many(links: Links, u: Constraint | None, v: Constraint | None, both: Constraint | None) -> Fitted:
    """Return the expected links of every pair of profiles; they sum to `links`."""
    cap = links.cap
    base = math.log(links.links / max(cap.sum() - links.links, 1e-9 * cap.sum()))

    def partition(energy: Floats) -> tuple[float, Floats]:
        energy = energy + base
        small = np.exp(-np.abs(energy))
        weights = cap * np.where(energy > 0, 1, small) / (1 + small)
        return float((cap * (np.maximum(energy, 0) + np.log1p(small))).sum()), weights

    fitted = _minimise(_Parameters(links, (u, v, both), True), partition)
    return replace(fitted, weights=fitted.weights * links.links / fitted.weights.sum())


def one_to_many(links: Links, u: Constraint | None, both: Constraint | None) -> Fitted:
    """Return the expected children of every profile at parents of every profile; each child has one parent."""
    start, children = (
        np.log(links.u_rows / links.u_rows.sum())[:, None],
        links.v_rows * (links.links / links.v_rows.sum()),
    )

    def partition(energy: Floats) -> tuple[float, Floats]:
        energy = energy + start
        most = energy.max(axis=0)
        weights = np.exp(energy - most)
        total = weights.sum(axis=0)
        return float(children @ (most + np.log(total))), weights / total * children

    return _minimise(_Parameters(links, (u, None, both), False), partition)


def _minimise(unknown: _Parameters, partition: Partition) -> Fitted:
    steps, ridge, target = unknown.steps, unknown.ridge, unknown.target

    def value(y: Floats) -> tuple[float, Floats]:
        x = y * steps
        total, weights = partition(unknown.energy(x))
        slope: Floats = (unknown.sums(weights) - target + ridge * x) * steps
        return float(total - x @ target + 0.5 * (ridge * x) @ x), slope

    x = np.zeros(len(steps))
    if len(steps):
        found = optimize.minimize(value, x, jac=True, method="L-BFGS-B", options=_options(unknown.links))
        x = found.x * steps

    return Fitted(partition(unknown.energy(x))[1], *unknown.split(x))


def _options(links: Links) -> dict[str, float]:
    """Return solver options: full precision for small problems; 80 steps suffice for large ones given the noise."""
    most = int(min(WORK // (len(links.u) * len(links.v)), MOST))
    if most <= STEPS:
        return {"maxiter": STEPS, "maxcor": MEMORY}
    return {"maxiter": most, "maxfun": 2 * most, "maxcor": MEMORY, "ftol": 0.0, "gtol": GRADIENT}
