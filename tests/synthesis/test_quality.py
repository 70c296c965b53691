"""The self-check of rows: correct rows pass in 99 % of simulations, and rows without a law fail."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
import tomli_w

import dpscale as dp
from dpscale.base.errors import PlanError
from dpscale.reconstruction.estimates import HEAVY
from dpscale.runs import estimates as run_estimates
from dpscale.runs.stages.synthesize import RowsWarning
from dpscale.synthesis.quality import (
    MOST_CELLS,
    MOST_COMPARED,
    ResidualNoise,
    compare,
    compared_sets,
    rows_warning,
    worst_set,
)
from dpscale.synthesis.set_layout import SetLayout
from dpscale.workload.residual import center
from tests.selection import mostly_slow


def test_all_subsets_of_requested_sets_are_compared() -> None:
    layout = compared_sets([(0, 1, 2), (2, 3)], [2, 3, 4, 5])
    expected = [(0,), (1,), (2,), (3,), (0, 1), (0, 2), (1, 2), (2, 3), (0, 1, 2)]
    assert list(layout.sets) == expected


def test_number_of_compared_sets_is_limited_and_targets_are_always_compared() -> None:
    every = list(combinations(range(100), 3))
    layout = compared_sets(every, [10] * 100, further=[(7, 11, 13, 17)])
    assert {len(columns) for columns in layout.sets} == {1, 2, 3, 4}
    assert len(layout.sets) <= MOST_COMPARED + 1
    assert (7, 11, 13, 17) in layout.sets
    assert len({columns[0] for columns in layout.sets if len(columns) == 2}) > 50, "evenly spaced"


def test_large_sets_are_left_out() -> None:
    assert compared_sets([(0, 1)], [MOST_CELLS, 2]).sets == ((0,), (1,))


SIZES = (2, 3, 2, 4)


def make_shares(law: float) -> np.ndarray:
    """Return a distribution over SIZES with dependent pairs; `law` is an interaction of the first three attributes."""
    shares = np.random.default_rng(1).dirichlet(np.full(48, 4.0)).reshape(SIZES)
    sign = 1 - 2 * (np.indices(SIZES)[:3].sum(axis=0) % 2)
    return shares * (1 + law * sign)


def residual(table: np.ndarray) -> np.ndarray:
    return center(table, range(table.ndim))


def check(rows: np.ndarray, layout: SetLayout, noisy: dict, deviation: float, heavy: float = 1.0) -> str:
    """Return the warning for rows and noisy marginals with independent noise in every cell of each residual."""
    names = tuple("abcd")

    def noise(subset) -> ResidualNoise:
        freedom = float(np.prod([SIZES[names.index(name)] - 1 for name in subset]))
        return ResidualNoise(lambda counts: residual(counts) - noisy[subset], deviation**2 * freedom, freedom / heavy)

    tables = {subset: expanded(noisy, subset) for subset in noisy if subset}
    comparisons = compare(layout, names, layout.count(rows), len(rows), tables.__getitem__, noise=noise)
    return rows_warning(comparisons)


def expanded(noisy: dict, subset: tuple[str, ...]) -> np.ndarray:
    """Return the marginal as the sum of the residuals inside, each spread evenly over the other attributes."""
    names, total = tuple("abcd"), 0.0
    for inside, values in noisy.items():
        if set(inside) <= set(subset):
            shape = [SIZES[names.index(name)] if name in inside else 1 for name in subset]
            outside = np.prod([SIZES[names.index(name)] for name in subset if name not in inside])
            total = total + np.asarray(values).reshape(shape) / outside
    return np.asarray(total)


def noisy_residuals(
    shares: np.ndarray, records: float, deviation: float, rng: np.random.Generator, laplace: bool = False
) -> dict:
    """Return the residual of every set of up to three attributes, with noise."""
    draw, scale = (rng.laplace, deviation / np.sqrt(2)) if laplace else (rng.normal, deviation)
    names = tuple("abcd")
    noisy = {(): np.array(records)}
    for degree in (1, 2, 3):
        for subset in combinations(names, degree):
            axes = tuple(i for i, name in enumerate(names) if name not in subset)
            exact = records * shares.sum(axis=axes)
            noisy[subset] = residual(exact + draw(0, scale, exact.shape))
    return noisy


def sample_rows(shares: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    cells = rng.choice(shares.size, count, p=shares.ravel() / shares.sum())
    return np.stack(np.unravel_index(cells, shares.shape), axis=1).astype(np.int32)


CORRECT = [(5.0, 2000, False), (60.0, 2000, False), (60.0, 20_000, False), (60.0, 20_000, True)]


@pytest.mark.parametrize("simulations", mostly_slow([300, 1000], {300}))
@pytest.mark.parametrize("case", mostly_slow(CORRECT, {CORRECT[0], CORRECT[3]}))
def test_at_most_one_percent_of_correct_rows_warn(case: tuple[float, int, bool], simulations: int) -> None:
    """With fixed seeds: noise is redrawn, and rows are a sample of the measured table."""
    deviation, count, laplace = case
    rng = np.random.default_rng(7)
    layout = compared_sets(list(combinations(range(4), 3)), SIZES)
    shares = make_shares(0.3)
    warned = 0
    for _ in range(simulations):
        noisy = noisy_residuals(shares, 2000.0, deviation, rng, laplace)
        heavy = HEAVY if laplace else 1.0
        warned += bool(check(sample_rows(shares, count, rng), layout, noisy, deviation, heavy))
    assert warned <= simulations // 100


@pytest.mark.parametrize("epsilon", [{"epsilon": 1.0}, {"epsilon": 1.0, "delta": 1e-9}])
def test_noise_of_a_residual_is_that_of_its_measurement(monkeypatch, tmp_path, epsilon) -> None:
    """Marginals with identity strategies: Π (size − 1) degrees of freedom, less for Laplace noise."""
    monkeypatch.setenv("DPSCALE_DATA", str(tmp_path))
    plan = dp.plan([["a", "b"]], dp.Domain(a=2, b=3), "residual-planner", **epsilon)
    release = dp.run(plan, data=pd.DataFrame({"a": [0, 1] * 30, "b": [0, 1, 2] * 20}))
    estimates = release.answered.estimates
    difference, variance, freedom = estimates.residual_noise(("a", "b"))
    assert np.abs(difference(estimates.marginal(("a", "b")))).max() < 1e-9
    assert variance == pytest.approx(6 * estimates.group_variance(("a", "b"), {}))
    assert freedom == pytest.approx(2 if "delta" in epsilon else 2 / HEAVY)


@pytest.mark.parametrize("deviation", [5.0, 20.0])
def test_rows_without_a_law_warn(deviation: float) -> None:
    """Planted fault: rows of the table without its interaction of three attributes."""
    rng = np.random.default_rng(8)
    layout = compared_sets(list(combinations(range(4), 3)), SIZES)
    noisy = noisy_residuals(make_shares(0.5), 20_000.0, deviation, rng)
    warning = check(sample_rows(make_shares(0.0), 20_000, rng), layout, noisy, deviation)
    assert "over a, b, c:" in warning
    assert "standard errors" in warning


def test_distance_decides_where_noise_is_not_known() -> None:
    rng = np.random.default_rng(9)
    layout, names = compared_sets([(0, 1, 2)], SIZES), tuple("abcd")
    lawful, lawless = make_shares(0.5), make_shares(0.0)

    def released(subset):
        if "d" in subset:
            raise PlanError("attributes", "d", "a set", "none")
        return 1000 * lawful.sum(axis=tuple(i for i, name in enumerate(names) if name not in subset))

    kept, lost = (
        compare(layout, names, layout.count(sample_rows(shares, 20_000, rng)), 20_000, released)
        for shares in (lawful, lawless)
    )
    assert rows_warning(kept) == ""
    assert "over a, b, c:" in rows_warning(lost)
    worst = worst_set(lost)
    assert worst is not None
    assert (worst.names, worst.standard_errors) == (("a", "b", "c"), None)
    assert worst.distance == pytest.approx(0.25, abs=0.02), "half the L1 distance of an interaction of 0.5"


@pytest.mark.parametrize("mechanism", ["weighted-residuals", "aim-grem"])
def test_release_whose_rows_lose_a_law_warns(tmp_path, monkeypatch, mechanism: str) -> None:
    """Planted fault: rows of the model of all pairs, for a table with a parity of three attributes."""
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 2, (8000, 4))
    frame = pd.DataFrame(bits, columns=list("abcd"))
    frame["y"] = bits[:, 0] ^ bits[:, 1] ^ (rng.random(8000) < 0.05)
    bit = {"kind": "coded", "size": 2}
    (tmp_path / "bits.toml").write_text(tomli_w.dumps({"attributes": dict.fromkeys("abcdy", bit)}))
    monkeypatch.setenv("DPSCALE_DATA", str(tmp_path))
    job = {"data": {"domain": str(tmp_path / "bits.toml")},
           "privacy": {"epsilon": 4.0, "delta": 1e-9, "dataset": "law"},
           "workload": [{"family": "marginal", "degree": 3}], "mechanism": {"name": mechanism},
           "engine": {"scheduler": "synchronous", "seed": 1}, "synthesize": {"rows": 8000}}  # fmt: skip

    def described(name: str) -> dict:
        dp.run(job, tmp_path / name, data=frame, fresh=True)
        return json.loads((tmp_path / name / "synthetic" / "_rows.json").read_text())

    kept = described("kept")
    assert "warning" not in kept
    assert kept["worst"]["distance"] < 0.05
    assert (kept["worst"]["standard_errors"] is None) == (mechanism == "aim-grem")

    original = run_estimates.read_sampler
    monkeypatch.setattr(run_estimates, "read_sampler", lambda folder, name: _without_laws(original(folder, name)))
    run_estimates._open.clear()
    with pytest.warns(RowsWarning, match="over a, b, y:"):
        lost = described("lost")
    assert lost["worst"]["attributes"] == ["a", "b", "y"]
    assert lost["worst"]["distance"] > 0.3
    assert lost["warning"] in (tmp_path / "lost" / "report.html").read_text()


def _without_laws(sampler):
    from dataclasses import replace

    return replace(sampler, larger=None)
