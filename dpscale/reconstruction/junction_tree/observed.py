"""Noisy linear measurements inside attribute sets, as a model is fitted to them: y = (⊗ Kᵢ) μ + noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpscale.base.arrays import Floats
from dpscale.base.names import AttributeSet
from dpscale.workload.residual.groups import Groups, coarsened, expanded


@dataclass(frozen=True, eq=False)
class Observed:
    """`values` measured on the marginal of `attributes` over `groups` of cells, each with noise of `variance`.

    `operators`: K of every axis, (rows, groups), None for the cells themselves; or a single one over all cells of
    several attributes. Attributes in the domain's order.
    """

    attributes: AttributeSet
    groups: tuple[Groups, ...]
    operators: tuple[Floats | None, ...]
    values: Floats
    variance: float

    @property
    def joint(self) -> bool:
        return len(self.operators) == 1 and len(self.attributes) > 1

    @property
    def column(self) -> float:
        """The largest squared norm of a column of ⊗ K."""
        return math.prod(1.0 if one is None else float((one**2).sum(axis=0).max()) for one in self.operators)

    @cached_property
    def total(self) -> tuple[float, float]:
        """What it says of the number of records, and with which precision 1/σ²; (0, 0) where nothing.

        The unbiased estimate is c·y, where c (⊗ Kᵢ) = 1ᵀ and c is shortest; its noise is |c|² σ².
        """
        coefficients = [_summing(operator) for operator in self._matrices()]
        if any(one is None for one in coefficients):
            return 0.0, 0.0
        value, length = np.asarray(self.values).reshape([-1] if self.joint else self.values.shape), 1.0
        for one in coefficients:
            assert one is not None
            value, length = np.tensordot(one, value, axes=(0, 0)), length * float(one @ one)
        return float(value), 1 / (length * self.variance)

    def _matrices(self) -> list[Floats]:
        if self.joint:
            return [_explicit(self.operators[0], 0)]
        return [_explicit(one, grouping.count) for one, grouping in zip(self.operators, self.groups, strict=True)]

    def of(self, marginal: Floats, runs: Sequence[Groups]) -> Floats:
        """K applied to a marginal over finer groups, of which these are runs (`runs_of`)."""
        table = coarsened(marginal, runs)
        if self.joint:
            return np.asarray(_explicit(self.operators[0], 0) @ table.reshape(-1)).reshape(self.values.shape)
        for axis, operator in enumerate(self.operators):
            if operator is not None:
                table = _along(operator, table, axis)
        return np.asarray(table)

    def back(self, values: Floats, runs: Sequence[Groups]) -> Floats:
        """Kᵀ applied to numbers of the shape of `values`: one for every finer cell."""
        table = values
        if self.joint:
            flat = _explicit(self.operators[0], 0).T @ table.reshape(-1)
            table = flat.reshape([grouping.count for grouping in self.groups])
        else:
            for axis, operator in enumerate(self.operators):
                if operator is not None:
                    table = _along(operator.T, table, axis)
        return expanded(table, runs)


def _along(operator: Floats, table: Floats, axis: int) -> Floats:
    """An operator along one axis."""
    if axis == table.ndim - 1:
        return np.asarray(table @ operator.T)
    if axis == 0:
        return (operator @ table.reshape(len(table), -1)).reshape(len(operator), *table.shape[1:])
    return np.moveaxis(np.tensordot(operator, table, axes=(1, axis)), 0, axis)


def _explicit(operator: Floats | None, size: int) -> Floats:
    return np.eye(size) if operator is None else operator


def _summing(operator: Floats) -> Floats | None:
    """The shortest c with c K = 1ᵀ, or None where the rows do not span it."""
    ones = np.ones(operator.shape[1])
    found: Floats = np.asarray(np.linalg.lstsq(operator.T, ones, rcond=None)[0], dtype=np.float64)
    return found if np.abs(operator.T @ found - ones).max() < 1e-8 else None


def runs_of(coarse: Sequence[Groups], fine: Sequence[Groups]) -> list[Groups]:
    """Groups as runs of finer ones."""
    return [Groups(other.count, tuple(np.searchsorted(other.starts, one.starts).tolist()))
            for one, other in zip(coarse, fine, strict=True)]  # fmt: skip


def total_of(observed: Iterable[Observed]) -> float:
    """The number of records, ≥ 1: what all measurements say of it, by inverse variance."""
    said = [one.total for one in observed]
    precision = sum(one for _, one in said)
    return max(sum(value * one for value, one in said) / precision, 1.0) if precision else 1.0


def refined(sizes: Iterable[tuple[str, int]], observed: Sequence[Observed]) -> dict[str, Groups]:
    """The groups of every attribute that all measurements of several attributes are over: starts of any of them."""
    found: dict[str, set[int]] = {}
    for one in observed:
        if len(one.attributes) > 1:
            for name, grouping in zip(one.attributes, one.groups, strict=True):
                found.setdefault(name, set()).update(grouping.starts)
    return {name: Groups(size, tuple(sorted(found.get(name, {0})))) for name, size in sizes}
