"""Block: one measurement of a plan, an integer strategy on a marginal with its share of the privacy cost.

It measures K·marginal, K = ⊗ K_i; at privacy cost 1 with Gaussian noise of variance Δ² / share, Δ² the largest squared
L2 norm of a column of K, or with Laplace noise of scale Δ / share, Δ the largest L1 norm. Over axes the norms multiply.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from dpscale.base.names import AttributeSet
from dpscale.plans.allocation import GAUSSIAN, LAPLACE
from dpscale.plans.factor import Factor
from dpscale.workload.residual import Weights, subsets


@dataclass(frozen=True, eq=False)
class Block:
    """One measurement: an integer strategy on the marginal of `attributes`.

    `factors`: one per attribute, applied as a Kronecker product; or one joint factor over all cells. `share`: the part
    of the privacy cost that it takes. `whole` blocks see the marginal itself and tell of every residual inside it;
    the others see only the residual of exactly `attributes`, or those of a joint factor's `spaces`.
    `noise`: "gaussian", or "laplace" for pure ε.
    """

    attributes: AttributeSet
    factors: tuple[Factor, ...]
    share: float
    whole: bool = False
    noise: str = GAUSSIAN

    @property
    def joint(self) -> bool:
        return len(self.factors) == 1 and len(self.attributes) > 1

    @property
    def squared_l2_sensitivity(self) -> int:
        """Largest squared L2 norm of a column of the strategy, exactly."""
        return math.prod(factor.squared_l2_sensitivity for factor in self.factors)

    @property
    def l1_sensitivity(self) -> int:
        """Largest L1 norm of a column of the strategy, exactly."""
        return math.prod(factor.l1_sensitivity for factor in self.factors)

    @property
    def commutes(self) -> bool:
        """Whether its estimates of different residuals are independent."""
        return all(factor.commutes for factor in self.factors)

    @property
    def tells(self) -> list[AttributeSet]:
        """The residuals that it tells of."""
        if self.whole:
            return subsets(self.attributes)
        if self.joint and self.factors[0].spaces is not None:
            return [tuple(self.attributes[axis] for axis in kept) for kept in self.factors[0].spaces]
        return [self.attributes]

    @property
    def weights(self) -> Iterator[tuple[str, Weights]]:
        """The attributes whose totals are spread by weights, with those."""
        for axes, factor in zip([self.attributes] if self.joint else zip(self.attributes), self.factors, strict=True):
            for name, own in zip(axes, factor.weights or (), strict=False):
                if own is not None:
                    yield name, own

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the integer strategy."""
        return hashlib.sha256("".join(factor.digest for factor in self.factors).encode()).hexdigest()

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(factor.rows for factor in self.factors)

    @property
    def unit_variance(self) -> float:
        """Noise variance of one measured number at privacy cost 1, in lattice units."""
        if self.noise == LAPLACE:
            return 2 * (self.l1_sensitivity / self.share) ** 2
        return self.squared_l2_sensitivity / self.share
