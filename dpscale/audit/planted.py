"""Planted violations: cases that claim what they do not keep. An audit that lets one pass is broken itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dpscale.audit.releases import Case
from dpscale.base.arrays import Floats
from dpscale.counting import ExactMarginal
from dpscale.measurement import measure_block
from dpscale.plans.block import Block
from dpscale.plans.schedule import Draws
from dpscale.privacy.draws import Draw, LaplaceDraw


def noise_scaled(case: Case, factor: float) -> Case:
    """The noise is drawn at `factor` times the scale that was charged."""

    def measure(block: Block, draw: Draw, marginal: ExactMarginal, secret: bytes, record: dict[str, Any]) -> Floats:
        return measure_block(block, _scaled(draw, factor), marginal, secret, record)

    return replace(case, measure=measure)


def _scaled(draw: Draw, factor: float) -> Draw:
    """The draw with its noise scaled, and nothing else."""
    if isinstance(draw, LaplaceDraw):
        return replace(draw, scale=int(draw.scale * factor))
    return replace(draw, variance=int(draw.variance * factor**2))


def sensitivity_off(case: Case) -> Case:
    """The schedule was made from a sensitivity that is too small by sqrt 2: less noise for the same claim."""
    draws = case.schedule.draws
    scaled = Draws(tuple(_scaled(draw, 0.5**0.5) for draw in draws.kinds), draws.which)
    return replace(case, schedule=replace(case.schedule, draws=scaled))


def key_reused(case: Case) -> Case:
    """All blocks share one stream, so their noise cancels in a difference."""

    def measure(block: Block, draw: Draw, marginal: ExactMarginal, secret: bytes, record: dict[str, Any]) -> Floats:
        return measure_block(block, draw, marginal, secret, {})

    return replace(case, measure=measure)


def noise_on_floats(case: Case) -> Case:
    """The strategy is applied in reals and integer noise is added to that: what is after the point is exact."""

    def measure(block: Block, draw: Draw, marginal: ExactMarginal, secret: bytes, record: dict[str, Any]) -> Floats:
        values = measure_block(block, draw, marginal, secret, record)
        return values + 0.1 * (marginal.counts.sum() % 7 + 1)

    return replace(case, measure=measure)


def domain_of_the_data(case: Case) -> Case:
    """Cells that no record falls into are left out of the release."""

    def measure(block: Block, draw: Draw, marginal: ExactMarginal, secret: bytes, record: dict[str, Any]) -> Floats:
        values = measure_block(block, draw, marginal, secret, record).reshape(-1)
        return values[: int((marginal.counts > 0).sum())]

    return replace(case, measure=measure)


PLANTED: dict[str, Callable[[Case], Case]] = {
    "scale x 0.7": lambda case: noise_scaled(case, 0.7),
    "sensitivity off by sqrt 2": sensitivity_off,
    "a reused key": key_reused,
    "noise on floats": noise_on_floats,
    "a data-dependent domain": domain_of_the_data,
}
