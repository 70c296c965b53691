"""Intervals of means cover the true mean of the records for every distribution inside the bins."""

from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
import tomli_w

import dpscale as dp
from dpscale.answers.statistics import TooFewRecords, mean
from dpscale.answers.tables import Answered
from dpscale.domain import Domain
from dpscale.reconstruction.estimates import LeastSquaresEstimates
from dpscale.workload import Workload
from tests.messages import refused
from tests.selection import mostly_slow

RECORDS, SIGMA = 20_000, 60.0
LEVEL = 0.95


def make_domain(bins: int) -> Domain:
    edges = np.round(np.linspace(0, 50, bins + 1), 6).tolist()
    attributes = {"fare": {"kind": "bins", "edges": edges, "outside": "clip"}, "kind": {"kind": "coded", "size": 2}}
    return Domain.from_dict({"attributes": attributes})


def release_answers(counts: np.ndarray, domain: Domain, rng: np.random.Generator) -> Answered:
    """Return least-squares answers for the cells of fare by kind, with Gaussian noise of standard deviation SIGMA."""
    workload = Workload(domain).add("marginal", attributes=[("fare", "kind")])
    plan = dp.plan(workload, "identity")
    [block] = plan.blocks
    strategy = np.kron(block.factors[0].explicit(), block.factors[1].explicit()) if len(block.factors) == 2 else None
    exact = (strategy @ counts.reshape(-1)).reshape(block.rows)
    scale = block.squared_l2_sensitivity**0.5
    values = exact + rng.normal(0, SIGMA * scale, exact.shape)
    return Answered(LeastSquaresEstimates(plan, [(SIGMA * scale) ** 2], lambda _: values), "means")


def draw_fares(kind: str, rng: np.random.Generator) -> np.ndarray:
    """Draw records that are skewed, uniform, or all at the lower edge of their bins."""
    drawn = {"skewed": rng.gamma(1.2, 8, RECORDS), "even": rng.uniform(0, 50, RECORDS),
             "at edges": 10.0 * rng.integers(0, 5, RECORDS)}[kind]  # fmt: skip
    return np.clip(drawn, 0, 49.999)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("bins", mostly_slow([5, 20, 100], {20}))
@pytest.mark.parametrize("kind", ["skewed", "even", "at edges"])
def test_mean_interval_covers_true_mean(bins, kind):
    rng, domain, covered, widths = np.random.default_rng(bins), make_domain(bins), 0, []
    edges = np.linspace(0, 50, bins + 1)
    for _ in range(200):
        values = draw_fares(kind, rng)
        cells = np.searchsorted(edges, values, side="right") - 1
        counts = np.zeros((bins, 2))
        np.add.at(counts, (cells, 0), 1)
        one = release_answers(counts, domain, rng)
        found = mean(one, "fare", LEVEL)
        covered += found.low <= values.mean() <= found.high
        assert found.low <= found.estimate <= found.high
        assert found.low >= 0
        assert found.high <= 50
        middles = (edges[1:] + edges[:-1]) / 2
        _, [query_cells] = one.linear(("fare",), (middles - found.estimate)[None])
        sampling = 2 * 1.96 * query_cells / one.linear(("fare",), np.ones((1, bins)))[0][0]
        widths.append((found.high - found.low) / (50 / bins + sampling))
    assert covered / 200 >= 0.91
    assert max(widths) <= 1.05


def test_interval_around_bin_middles_misses_skewed_records():
    """Planted fault: an interval that counts only the noise around the middles of the bins."""
    rng, domain, covered = np.random.default_rng(0), make_domain(5), 0
    for _ in range(20):
        values = draw_fares("at edges", rng)
        counts = np.zeros((5, 2))
        np.add.at(counts, (np.searchsorted(np.linspace(0, 50, 6), values, side="right") - 1, 0), 1)
        one = release_answers(counts, domain, rng)
        middles = np.arange(5, 50, 10.0)
        (records, summed), _ = one.linear(("fare",), np.stack([np.ones(5), middles]))
        _, [query_cells] = one.linear(("fare",), (middles - summed / records)[None])
        covered += abs(summed / records - values.mean()) <= 1.96 * query_cells / records
    assert covered == 0


def test_mean_of_possibly_empty_group_is_refused():
    rng, domain = np.random.default_rng(1), make_domain(8)
    counts = np.zeros((8, 2))
    counts[:, 0], counts[3, 1] = 2_000, 3
    answers = 0
    for _ in range(50):
        one = release_answers(counts, domain, rng)
        assert mean(one, "fare", LEVEL, (("kind", 0),)).estimate == pytest.approx(25, abs=2)
        with suppress(TooFewRecords):
            found = mean(one, "fare", LEVEL, (("kind", 1),))
            answers += 1
            assert 0 <= found.low <= found.estimate <= found.high <= 50
    assert answers < 10  # once in forty runs the noise alone looks like records


def test_table_of_means_gives_reason_for_refused_group(tmp_path):
    rng = np.random.default_rng(2)
    frame = pd.DataFrame({"fare": rng.gamma(1.2, 8, 5000).clip(0, 49), "kind": 0})
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(make_domain(8).to_dict()))
    frame.to_parquet(tmp_path / "data.parquet")
    release = dp.run({"data": {"path": str(tmp_path / "data.parquet"), "domain": str(tmp_path / "domain.toml")},
                      "privacy": {"epsilon": 1.0, "delta": 1e-9, "dataset": "means",
                                  "ledger": str(tmp_path / "ledger.sqlite")},
                      "workload": [{"family": "marginal", "degree": 2}],
                      "engine": {"scheduler": "synchronous", "seed": 3}}, tmp_path / "run")  # fmt: skip
    sure = 1 - 1e-9  # the empty group looks like records once in a billion runs: the noise depends on library versions
    found = release.mean("fare", by="kind", level=sure)
    assert found["estimate"].notna().tolist() == [True, False]
    assert found["reason"][0] is None or pd.isna(found["reason"][0])
    assert "not distinguishable from zero" in found["reason"][1]
    with refused(dp.PlanError):
        mean(release.answered, "fare", sure, (("kind", 1),))
