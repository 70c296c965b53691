"""Intervals of means and deviations from simulated noise cover the exact values of the clipped records."""

import math

import numpy as np
import pytest

import dpscale as dp
from dpscale.answers.number_statistics import deviation_table, mean_table, ratio_table, sum_table
from dpscale.answers.ratios import covariances, mean_figures
from dpscale.answers.tables import Answered
from dpscale.domain import Domain, Number
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.workload import Workload
from dpscale.workload.family import Statistic
from tests.selection import mostly_slow

GROUPS = (30, 100, 300, 1000, 10_000, 100_000)
RUNS = 500


def make_domain(squares: bool = False) -> Domain:
    numbers = {"v": {"low": 0, "high": 1000, "nulls": "skip", "squares": squares}, "w": {"low": 0, "high": 10}}
    return Domain.from_dict({"attributes": {"g": {"kind": "coded", "size": len(GROUPS)}}, "numbers": numbers})


def draw_values(kind: str, count: int, random: np.random.Generator) -> np.ndarray:
    values = {"skewed": random.lognormal(3.5, 1.2, count), "even": random.uniform(0, 1000, count),
              "zero": np.where(random.random(count) < 0.9, 0.0, random.uniform(0, 1000, count))}[kind]  # fmt: skip
    return np.rint(np.clip(values, 0, 1000)).astype(np.int64)


class Simulated:
    """Releases of one table, with new Gaussian noise each."""

    def __init__(self, plan, cells: dict[str, np.ndarray], beta: float) -> None:
        self.plan, self.beta = plan, beta
        self.exact = [self._measured(block, cells) for block in plan.blocks]
        self.variances = [block.unit_variance / beta for block in plan.blocks]

    def _measured(self, block, cells) -> np.ndarray:
        """Return K · marginal; `cells` has the parts of each record on the cells of each axis, shape (rows, cells)."""
        rows = len(next(iter(cells.values())))
        counts = np.ones((rows, 1))
        for name in block.attributes:
            counts = (counts[:, :, None] * cells[name][:, None, :]).reshape(rows, -1)
        shape = self.plan.domain.shape(block.attributes)
        values = counts.sum(axis=0).reshape(shape)
        for axis, factor in enumerate(block.factors):
            values = np.moveaxis(np.tensordot(factor.explicit(), values, axes=(1, axis)), 0, axis)
        return values

    def draw(self, random: np.random.Generator) -> Answered:
        values = [exact + random.normal(0, math.sqrt(v), exact.shape)
                  for exact, v in zip(self.exact, self.variances, strict=True)]  # fmt: skip
        return Answered(LeastSquaresEstimates(self.plan, self.variances, values.__getitem__), "simulated")


def make_release(kind: str, workload: Workload, beta: float = 0.04) -> tuple[Simulated, np.ndarray, np.ndarray]:
    """Return releases of groups of GROUPS records, with a fifth of the values missing; and groups and values."""
    random, domain = np.random.default_rng(11), workload.domain
    group = np.repeat(np.arange(len(GROUPS)), [size + size // 4 for size in GROUPS])
    values = draw_values(kind, len(group), random)
    missing = random.random(len(group)) < 0.2
    number, other = domain["v"], domain["w"]
    assert isinstance(number, Number)
    assert isinstance(other, Number)
    codes = np.where(missing, number.steps + 1, values).astype(np.uint32)
    cells = {"g": np.eye(len(GROUPS))[group], "v": number.parts(codes) / number.denominator,
             "w": other.parts((values % 11).astype(np.uint32)) / other.denominator}  # fmt: skip
    plan = dp.plan(workload, "weighted-residuals")
    return Simulated(plan, cells, beta), group, np.where(missing, np.nan, values)


@pytest.mark.parametrize("kind", mostly_slow(["skewed", "even", "zero"], {"skewed"}))
def test_mean_intervals_cover(kind):
    """With and without the selection of the groups that are distinguished from empty ones."""
    workload = Workload(make_domain()).add("mean", degree=1, of="v").add("marginal", degree=1)
    release, group, values = make_release(kind, workload)
    true = np.array([np.nanmean(values[group == own]) for own in range(len(GROUPS))])
    random, inside, seen = np.random.default_rng(1), np.zeros(len(GROUPS)), np.zeros(len(GROUPS))
    for _ in range(RUNS):
        table = mean_table(release.draw(random), "v", ["g"], 0.95)
        low, high = (table[name].to_numpy() for name in ("low", "high"))
        seen += np.isfinite(low)
        inside += (low <= true) & (true <= high)
    assert seen[-4:].tolist() == [RUNS] * 4
    often = seen > RUNS // 5
    spread = 2.6 * np.sqrt(0.95 * 0.05 / seen[often])  # of a share over so many runs
    assert (np.abs(inside[often] / seen[often] - 0.95) <= 0.02 + spread).all()
    assert 0.93 <= inside[seen == RUNS].sum() / seen[seen == RUNS].sum() <= 0.97


def test_deviation_intervals_cover():
    workload = Workload(make_domain(squares=True)).add("variance", degree=1, of="v")
    release, group, values = make_release("skewed", workload, beta=0.2)
    true = np.array([np.nanstd(values[group == own]) for own in range(len(GROUPS))])
    random, inside = np.random.default_rng(2), np.zeros(len(GROUPS))
    for _ in range(RUNS):
        table = deviation_table(release.draw(random), "v", ["g"], 0.95)
        inside += (table["low"].to_numpy() <= true) & (true <= table["high"].to_numpy())
    assert (inside[-3:] / RUNS >= 0.92).all()
    assert (inside[-3:] / RUNS <= 0.98).all()


@pytest.mark.slow
def test_sums_and_ratios_cover():
    """Ratios of two numbers whose sums share the noise of the count."""
    workload = Workload(make_domain()).add("sum", degree=1, of="v").add("sum", degree=1, of="w")
    release, group, values = make_release("even", workload)
    true = np.array([np.nansum(values[group == own]) for own in range(len(GROUPS))])
    rows = np.bincount(group)
    random, inside = np.random.default_rng(3), np.zeros((3, len(GROUPS)))
    filled = draw_values("even", len(group), np.random.default_rng(11))
    others = np.bincount(group, filled % 11)
    for _ in range(200):
        one = release.draw(random)
        tables = sum_table(one, "v", ["g"], 0.95), ratio_table(one, "v", "records", ["g"], 0.95), ratio_table(
            one, "v", "w", ["g"], 0.95)  # fmt: skip
        for place, (table, exact) in enumerate(zip(tables, (true, true / rows, true / others), strict=True)):
            inside[place] += (table["low"].to_numpy() <= exact) & (exact <= table["high"].to_numpy())
    assert (inside[:, -3:] / 200 >= 0.9).all()
    assert 0.93 <= inside[:, -3:].mean() / 200 <= 0.97


def test_empty_group_has_no_mean_and_means_stay_in_range():
    figures = mean_figures(Statistic(1, 5.0, 5.0), np.array([[1.0, 3.0, 4.0], [805.0, 800.0, 1605.0]]),
                           np.array([[2.0, 2.0, 2.8], [30.0, 20.0, 36.0]]), 1.96)  # fmt: skip
    assert np.isnan(figures.estimates[0])
    assert np.isnan(figures.low[0])
    assert figures.estimates[1] == figures.high[1] == 10.0
    assert 9 < figures.low[1] < 10


def test_covariances_follow_from_errors_of_sums():
    random = np.random.default_rng(0)
    root = random.normal(size=(3, 5))
    exact = root @ root.T
    rows = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [1, 0, 1], [0, 1, 1]])
    errors = np.sqrt(np.einsum("ij,jk,ik->i", rows, exact, rows))
    np.testing.assert_allclose(covariances(errors, 3), exact)
