"""Accuracy: the errors that a plan's blocks leave, of planned noise and of drawn noise alike.

Where every block's estimates of different residuals are independent, a query's variance is the sum over its pieces
(`independent`; QuerySmasher, section 7); else the blocks' covariances are carried along (`coupled`).
"""

from __future__ import annotations

from collections.abc import Sequence

from dpscale.domain import Domain
from dpscale.plans.block import Block
from dpscale.plans.blocks import Blocks
from dpscale.plans.coupled import CoupledResiduals
from dpscale.plans.independent import IndependentResiduals
from dpscale.plans.told import Accuracy

__all__ = ["Accuracy", "accuracy_of"]


def accuracy_of(domain: Domain, blocks: Sequence[Block], variances: Sequence[float] | None = None) -> Accuracy:
    """The accuracy of blocks under noise of these variances, in lattice units; where none are given, of the planned."""
    columns = Blocks.of(domain.names, blocks)
    drawn = columns.unit_variances.tolist() if variances is None else variances
    kind = IndependentResiduals if columns.commutes else CoupledResiduals
    return kind(domain, columns, drawn)
