"""Noise of whole runs against the scheduled distribution.

Every run here draws at least 1,000 numbers, so the scale test rejects a factor of 0.7 or 1.3 with p < 1e-9. Draws
depend on the release id, which depends on the path of the test; therefore a fault must occur in two runs, and a
wrong distribution must be detected in one of two.
"""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

import dpscale as dp
from dpscale.audit.selftest import (
    MECHANISMS,
    applied,
    case_of,
    faults,
    low_bits_p,
    noise_of,
    noise_on_floats,
    noise_scaled,
    scale_p,
    shape_p,
)
from dpscale.counting.count import count_marginals
from dpscale.records import Table
from tests.audit.small import write
from tests.selection import mostly_slow

SIZES = {"a": 30, "b": 40}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    import pandas as pd

    folder = tmp_path_factory.mktemp("law")
    (folder / "data").mkdir()
    rng = np.random.default_rng(1)
    pd.DataFrame({name: rng.integers(0, n, 5000) for name, n in SIZES.items()}).to_parquet(folder / "data/0.parquet")
    return folder


def noise_of_run(place, mechanism, noise, seed):
    """Return measured minus exact values by block, from the files of a whole run, and the scheduled standard
    deviations.
    """
    import tomli_w

    budget = {"privacy_cost": 0.5} if noise == "gaussian" else {"epsilon": 0.5}
    path = write(place, f"{mechanism}-{noise}-{seed}.toml", mechanism={"name": mechanism}, engine={"seed": seed},
                 workload=[{"family": "prefix", "degree": 2}, {"family": "marginal", "degree": 1}],
                 privacy=budget | {"dataset": "law"})  # fmt: skip
    attributes = {name: {"kind": "coded", "size": n} for name, n in SIZES.items()}
    (place / "domain.toml").write_text(tomli_w.dumps({"attributes": attributes}))
    release = dp.run(path, place / f"run-{mechanism}-{noise}-{seed}")
    table = Table.open(place / "data", release.domain)
    released = release._run.table.measurements
    first, parts = released.measurement_plan.first_decision(), []
    for order, value in zip(first.requests, released.values(first), strict=True):
        block, draw = order.block, order.draw
        counts = count_marginals(table, [block.attributes])[block.attributes]
        exact = applied(block.factors, counts) * draw.multiplier
        parts.append(value.reshape(-1) * draw.multiplier - exact)
    return parts, [math.sqrt(order.draw.variance) for order in first.requests]


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
@pytest.mark.parametrize("mechanism", mostly_slow(MECHANISMS, list(MECHANISMS)[:2]))
def test_noise_of_run_has_charged_distribution(place, mechanism, noise):
    pure = noise == "laplace"
    runs = [noise_of_run(place, mechanism, noise, seed) for seed in (1, 2)]
    assert set.intersection(*(set(faults(*run, pure)) for run in runs)) == set()
    assert "shape" in set.union(*(set(faults(*run, not pure)) for run in runs))
    for (parts, deviations), wrong in product(runs, (0.7, 1.3)):
        together = np.concatenate(parts)
        assert len(together) > 1000
        scales = np.concatenate([np.full(len(p), d * wrong) for p, d in zip(parts, deviations, strict=True)])
        assert scale_p(together, scales, pure) < 1e-9


@pytest.mark.parametrize("mechanism", mostly_slow(MECHANISMS, list(MECHANISMS)[:2]))
@pytest.mark.parametrize("factor", [0.7, 1.3])
@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_planted_noise_scale_is_detected(mechanism, factor, noise):
    case = noise_scaled(case_of(mechanism, (30, 40), noise=noise), factor)
    assert "scale" in faults(*noise_of(case), case.pure)


def test_planted_float_noise_is_detected():
    assert "not on the integer lattice" in faults(*noise_of(noise_on_floats(case_of("identity", (30, 40)))))
    rng = np.random.default_rng(0)
    deviation = 5000.0
    rounded = np.rint(rng.normal(0, deviation, 2000))
    assert faults([rounded], [deviation]) == []
    coarse = np.rint(rng.normal(0, deviation / 16, 2000)) * 16  # integers, but made on a coarser lattice
    assert low_bits_p(rng.normal(0, deviation, 2000)) == 0.0
    assert low_bits_p(coarse) < 1e-9


def test_other_noise_shape_is_detected():
    laplace = np.rint(np.random.default_rng(0).laplace(0, 5000 / math.sqrt(2), 2000))
    assert shape_p(laplace, np.full(2000, 5000.0)) < 1e-3


def test_planted_shared_stream_is_detected():
    from dpscale.audit.selftest import key_reused

    assert "shared by two measurements" in faults(*noise_of(key_reused(case_of("residual-planner", (30, 40)))))


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_p_values_of_many_secrets_are_uniform(mechanism):
    """Over 300 releases, a bias too small for one release changes the distribution of p values."""
    case = case_of(mechanism, (10, 12))
    counts = np.zeros((10, 12), dtype=np.int64)
    p_values = [scale_p(case.release(counts, seed), case.deviations) for seed in range(300)]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3
