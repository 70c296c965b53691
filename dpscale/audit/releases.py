"""Releases of a tiny table by the real measuring code: what the audits look at.

A `Release` here is all the numbers of one plan, block after block, as `measure_block` gives them. The claim under test
is the schedule's: its cost is the squared Gaussian-DP mu of everything that is drawn, or its pure epsilon.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from dpscale.base.arrays import Floats, Integers
from dpscale.counting import ExactMarginal
from dpscale.domain import Domain
from dpscale.measurement import measure_block
from dpscale.mechanisms import plan
from dpscale.plans.blocks import Block
from dpscale.plans.factor import Factor
from dpscale.plans.plan import Plan
from dpscale.plans.requests import Schedule, make_schedule
from dpscale.privacy.draws import GAUSSIAN, LAPLACE, Draw
from dpscale.privacy.streams import seeded_secret
from dpscale.workload import Workload

Measure = Callable[[Block, Draw, ExactMarginal, bytes, dict[str, Any]], Floats]
MECHANISMS = ("query-smasher", "residual-planner", "hdmm", "identity")


@dataclass(frozen=True)
class Case:
    """A plan with the noise it draws and the cost it claims. Honest unless a test plants something."""

    plan: Plan
    schedule: Schedule
    claimed: float
    measure: Measure = measure_block

    def release(self, counts: Integers, seed: int) -> Floats:
        """All numbers of one release of a table, given as counts over the whole domain."""
        marginal, secret = ExactMarginal(self.plan.domain.names, counts), seeded_secret(seed)
        return np.concatenate([values.reshape(-1) for values in self._blocks(marginal, secret)])

    def _blocks(self, marginal: ExactMarginal, secret: bytes) -> Iterator[Floats]:
        for index, (block, draw) in enumerate(zip(self.plan.blocks, self.schedule.draws, strict=True)):
            yield self.measure(block, draw, marginal, secret, record_of(index, block, draw))

    @property
    def pure(self) -> bool:
        """Whether the claim is a pure epsilon."""
        return self.plan.noise == LAPLACE

    def exact(self, counts: Integers) -> Floats:
        """The numbers before the noise, by explicit matrices: slow, and independent of the measuring code."""
        parts = []
        for block, draw in zip(self.plan.blocks, self.schedule.draws, strict=True):
            others = tuple(i for i, name in enumerate(self.plan.domain.names) if name not in block.attributes)
            parts.append(applied(block.factors, counts.sum(axis=others)) * draw.multiplier)
        return np.concatenate(parts)

    @property
    def deviations(self) -> Floats:
        """The standard deviation that the schedule gives each number."""
        parts = zip(self.plan.blocks, self.schedule.draws, strict=True)
        return np.concatenate([np.full(int(np.prod(b.rows, dtype=int)), d.variance**0.5) for b, d in parts])


def record_of(index: int, block: Block, draw: Draw) -> dict[str, Any]:
    """A record that no two measurements of a case share."""
    return {"index": index, "attributes": list(block.attributes), **draw.noise_spec}


def applied(factors: tuple[Factor, ...], counts: Integers) -> Floats:
    """A strategy as one explicit integer matrix, times the counts of its own attributes."""
    matrix = np.ones((1, 1), dtype=np.int64)
    for factor in factors:
        matrix = np.kron(matrix, factor.explicit())
    return np.asarray(matrix.astype(object) @ counts.reshape(-1), dtype=np.float64)


def case_of(
    mechanism: str,
    sizes: Sequence[int] = (2, 3),
    cost: float = 1.0,
    rows_per_unit: int = 1,
    noise: str = GAUSSIAN,
) -> Case:
    """An honest case: prefixes and marginals of a small domain; of a single attribute, the total alone.

    For one number with Laplace noise the claim is reached by an event of probability ½, so that attacks have power.
    """
    domain = Domain({f"x{i}": size for i, size in enumerate(sizes)})
    asked = Workload(domain)
    asked = (
        asked.add("prefix", degree=2).add("marginal", degree=1) if len(sizes) > 1 else asked.add("marginal", degree=0)
    )
    planned = plan(asked, mechanism, noise=noise)
    schedule = make_schedule(planned, cost, rows_per_unit)
    return Case(planned, schedule, float(schedule.cost))


def small_table(domain: Domain) -> Integers:
    """A fixed table of a few rows in every cell."""
    shape = domain.shape(domain.names)
    return np.arange(3, 3 + int(np.prod(shape)), dtype=np.int64).reshape(shape)


def one_more(counts: Integers) -> Iterator[tuple[tuple[int, ...], Integers]]:
    """Every table with one record more, and the cell of that record."""
    for cell in product(*map(range, counts.shape)):
        more = counts.copy()
        more[cell] += 1
        yield cell, more
