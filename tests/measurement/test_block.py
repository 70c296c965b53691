"""Values of measured blocks, against Python integers: exact for every number of limbs, multiplier and order of axes."""

from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from dpscale import Domain, Workload, plan
from dpscale.counting import ExactMarginal
from dpscale.measurement import measure_block, measurement as block_module
from dpscale.plans.blocks import Block
from dpscale.plans.factor import Factor
from dpscale.plans.measurement_plan import plan_draws
from dpscale.privacy.draws import GaussianDraw
from dpscale.privacy.noise import discrete_gaussian, wide_gaussian
from dpscale.privacy.streams import open_stream, seeded_secret

DOMAIN = Domain({"a": 5, "b": 6, "c": 4})
SECRET = seeded_secret(1)


def make_counts(largest: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, largest, DOMAIN.shape(DOMAIN.names))


def python_product(block: Block, counts: np.ndarray) -> np.ndarray:
    """Return K · counts in Python integers."""
    values = counts.sum(axis=tuple(i for i, n in enumerate(DOMAIN.names) if n not in block.attributes)).astype(object)
    if block.joint:
        return block.factors[0].explicit().astype(object) @ values.reshape(-1)
    for axis, factor in enumerate(block.factors):
        values = np.moveaxis(np.tensordot(factor.explicit().astype(object), values, axes=(1, axis)), 0, axis)
    return np.asarray(values).reshape(block.rows)


PLANS = ("product", "joint", "low rank", "center", "whole")


@cache
def make_plans():
    return {
        "product": plan(Workload(DOMAIN).add("prefix", degree=3)),
        "joint": plan(Workload(DOMAIN).add("prefix", degree=2).add("marginal", degree=2)),
        "low rank": plan(Workload(DOMAIN).add("affine", degree=2)),
        "center": plan(Workload(DOMAIN).add("marginal", degree=3), "residual-planner"),
        "whole": plan(Workload(DOMAIN).add("marginal", degree=2), "identity"),
    }


@pytest.mark.parametrize("largest", [10, 2**20, 2**38])
@pytest.mark.parametrize("name", PLANS)
def test_measured_block_is_exact(name, largest):
    built = make_plans()[name]
    marginal = ExactMarginal(DOMAIN.names, make_counts(largest))
    marginal.counts.flags.writeable = False  # other measurements take from them too
    for block, draw in zip(built.blocks, plan_draws(built, 1.0), strict=True):
        record = {"attributes": list(block.attributes)}
        values = measure_block(block, draw, marginal, SECRET, record)
        size = int(np.prod(block.rows, dtype=int))
        high, low = wide_gaussian(open_stream(SECRET, "noise", record), draw.variance, size)
        noise = (high.astype(object) * 2**64 + low).reshape(block.rows)
        expected = python_product(block, marginal.counts) * draw.multiplier + noise
        exact = np.array([float(int(v)) for v in np.asarray(expected).reshape(-1)]).reshape(block.rows)
        np.testing.assert_array_equal(values, exact)


@pytest.mark.parametrize("entry", [2**30, 2**37, 2**40, 2**52])
def test_strategy_beyond_64_bits_is_exact(entry):
    """The strategy has wide rows with large entries, and the counts are large."""
    rng = np.random.default_rng(0)
    half = rng.integers(-entry, entry, (3, 60))
    factor = Factor("matrix", (5, 6, 4), np.concatenate([half, -half], axis=1))
    block = Block(DOMAIN.names, (factor,), 1.0)
    counts = make_counts(2**36)
    values = measure_block(
        block, GaussianDraw(1, 1 << 60, Fraction(1)), ExactMarginal(DOMAIN.names, counts), SECRET, {}
    )
    noise = discrete_gaussian(open_stream(SECRET, "noise", {}), 1 << 60, 3)
    exact = [float(int(v) + int(z)) for v, z in zip(python_product(block, counts), noise, strict=True)]
    np.testing.assert_array_equal(values, exact)


@pytest.mark.parametrize("name", PLANS)
def test_limbs_and_plain_integers_give_same_bytes(name, monkeypatch):
    built = make_plans()[name]
    marginal = ExactMarginal(DOMAIN.names, make_counts(1000))
    draws = plan_draws(built, 1.0)

    def measure_all():
        return [measure_block(b, d, marginal, SECRET, {}).tobytes() for b, d in zip(built.blocks, draws, strict=True)]

    baseline = measure_all()
    monkeypatch.setattr(block_module, "SAFE", 0)
    assert measure_all() == baseline
    monkeypatch.setattr(block_module, "MOST_WIDE", 0)
    assert measure_all() == baseline


def test_repr_hides_exact_counts():
    assert "12345" not in repr(ExactMarginal(("a",), np.array([12345])))
