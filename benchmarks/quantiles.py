"""Rank errors and coverage of 99 quantiles, compared with exponential mechanisms at the same zCDP budget.

Columns of 336,776 flights with public ranges. "dpscale": 1-way prefix queries by the default mechanism, all quantiles
from its cumulative counts. "exponential": 99 exponential mechanisms with epsilon = sqrt(8 rho/99) each. "approximate":
Approximate Quantiles (Kaplan, Schnapp and Stemmer, 2022), a tree of exponential mechanisms, seven levels with epsilon =
sqrt(8 rho/7) each. Error: mean over quantiles q and seeds of the distance of qN to the ranks of the returned value, in
% of N. Coverage: share of the 95 % intervals that contain the true quantile. CPU seconds: of 99 quantiles after the
first. Tables of ../shared/data are not part of dpscale.
tails: quantiles of lognormal and Pareto columns of 20,000 rows over bins with private edges and a public end of 2^24,
found with 5 % of the budget of epsilon 1 and delta 1e-6: medians over 50 draws of the ratio to the true quantile, by
uniform records in every bin and by dpscale, numbers of missing estimates, and coverage and median width (in true
quantiles) of the 95 % intervals.

    python benchmarks/quantiles.py [ranks tails] [--seeds 30]
"""

from __future__ import annotations

import argparse
import time
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd

import dpscale as dp
from dpscale.answers.quantiles import WideInterval, quantile
from dpscale.answers.tables import Answered
from dpscale.discovery.dyadic_tree import EdgePlan, TreeMeasurement, found_edges, measure_tree
from dpscale.privacy import gdp_mu, zcdp_rho
from dpscale.reconstruction.estimates import LeastSquaresEstimates

FLIGHTS = Path(__file__).parents[2] / "shared/data/more/nycflights13.parquet"
COLUMNS = {"dep_delay": (-60, 180), "air_time": (0, 700), "sched_dep_time": (0, 2400), "distance": (0, 5000)}
SHARES = [place / 100 for place in range(1, 100)]
DELTA = 1e-9


def rank_error(cumulative: np.ndarray, q: float, cell: int) -> float:
    """Return the distance of qN to the ranks of a value, those from records below it to records up to it."""
    wanted, before = q * cumulative[-1], cumulative[cell - 1] if cell else 0.0
    return max(before - wanted, wanted - cumulative[cell], 0.0)


def exponential(counts: np.ndarray, q: float, epsilon: float, low: int, high: int, random: np.random.Generator) -> int:
    """Return a cell in low ... high by the exponential mechanism of the rank distance, of sensitivity 1."""
    own = np.cumsum(counts[low : high + 1])
    wanted, before = q * own[-1], np.concatenate([[0.0], own[:-1]])
    distance = np.maximum(np.maximum(before - wanted, wanted - own), 0.0)
    keys = -epsilon / 2 * distance + random.gumbel(size=len(own))
    return low + int(np.argmax(keys))


def approximate(
    counts: np.ndarray, shares: list[float], epsilon: float, low: int, high: int, random: np.random.Generator
) -> list[int]:
    """Return all quantiles of the records in low ... high: the middle one first, then those of both sides."""
    if not shares:
        return []
    middle = len(shares) // 2
    cell = exponential(counts, shares[middle], epsilon, low, high, random)
    left, right = counts.copy(), counts.copy()
    inside = counts[cell]
    below = counts[low:cell].sum()
    part = np.clip(shares[middle] * counts[low : high + 1].sum() - below, 0, inside)  # records of the cell on its left
    left[cell], right[cell] = part, inside - part
    return [
        *approximate(left, [q / shares[middle] for q in shares[:middle]], epsilon, low, cell, random),
        cell,
        *approximate(right, [(q - shares[middle]) / (1 - shares[middle]) for q in shares[middle + 1 :]], epsilon, cell,
                     high, random),
    ]  # fmt: skip


def release(plan: dp.plan, counts: np.ndarray, cost: float, random: np.random.Generator) -> Answered:
    """Return estimates of a plan with new Gaussian noise."""
    values, variances = [], []
    for block in plan.blocks:
        exact = counts if block.attributes else counts.sum()
        measured = block.factors[0].apply(exact) if block.factors else np.asarray(exact)
        variances.append(block.unit_variance / cost)
        values.append(measured + random.normal(0, variances[-1] ** 0.5, np.shape(measured)))
    return Answered(LeastSquaresEstimates(plan, variances, values.__getitem__), "simulated")


def print_column(name: str, values: np.ndarray, seeds: int) -> None:
    low, high = COLUMNS[name]
    counts = np.bincount(np.clip(values, low, high).astype(int) - low, minlength=high - low + 1).astype(float)
    cumulative, size = np.cumsum(counts), len(counts)
    domain = dp.Domain({name: size})
    plan = dp.plan(dp.Workload(domain).add("prefix", degree=1))
    for epsilon in (0.1, 1.0):
        rho, random = zcdp_rho(epsilon, DELTA), np.random.default_rng(5)
        errors, inside, spent = dict.fromkeys(("dpscale", "exponential", "approximate"), 0.0), 0, 0.0
        for _ in range(seeds):
            one = release(plan, counts, 2 * rho, random)
            quantile(one, name, 0.5, 0.95)
            start = time.process_time()
            found = [quantile(one, name, q, 0.95) for q in SHARES]
            spent += time.process_time() - start
            cells = {
                "dpscale": [int(own.estimate) for own in found],
                "exponential": [exponential(counts, q, (8 * rho / 99) ** 0.5, 0, size - 1, random) for q in SHARES],
                "approximate": approximate(counts, SHARES, (8 * rho / 7) ** 0.5, 0, size - 1, random),
            }
            for kind, own in cells.items():
                errors[kind] += sum(rank_error(cumulative, q, cell) for q, cell in zip(SHARES, own, strict=True))
            true = [int(np.searchsorted(cumulative, q * cumulative[-1])) for q in SHARES]
            inside += sum(own.low <= cell <= own.high for own, cell in zip(found, true, strict=True))
        scale = 100 / (seeds * len(SHARES) * cumulative[-1])
        ours, each, tree = (scale * errors[kind] for kind in ("dpscale", "exponential", "approximate"))
        print(f"{name:<15} {size:>6} {epsilon:>8g} {ours:>9.4f} {each:>12.4f} {ours / each:>6.2f} {tree:>12.4f}"
              f" {ours / tree:>6.2f} {100 * inside / (seeds * len(SHARES)):>9.1f} {spent / seeds:>7.3f}")  # fmt: skip


TAILS = (0.95, 0.99, 0.995)


def print_tails(draws: int = 50) -> None:
    print("column     most bins   q      uniform  dpscale  missing  coverage  width")
    for name in ("lognormal", "pareto"):
        for bins in (None, 12, 25, 40):
            found = np.array([_tail_draw(name, bins, seed) for seed in range(draws)])
            for place, q in enumerate(TAILS):
                uniform, ours, _, width = np.nanmedian(found[:, place], axis=0)
                missing, coverage = np.isnan(found[:, place, 1]).sum(), np.nanmean(found[:, place, 2])
                print(f"{name:<10} {bins or 'all':>9}   {q:<6g} {uniform:>7.2f} {ours:>8.3f} {missing:>8}"
                      f" {coverage:>9.2f} {width:>6.2f}")  # fmt: skip


def _tail_draw(name: str, bins: int | None, seed: int) -> list[list[float]]:
    """Return the ratios of both estimates to the truth, whether the interval covers it, and its width."""
    random, mu = np.random.default_rng(seed), gdp_mu(1.0, 1e-6)
    drawn = random.lognormal(8, 1.2, 20_000) if name == "lognormal" else 100 * (1 + random.pareto(1.8, 20_000))
    values = np.sort(np.round(drawn).astype(np.uint64))
    table = {"kind": "bins", "edges": "private", "low": 0, "high": 2**24 - 1} | ({"bins": bins} if bins else {})
    plan = EdgePlan(dp.Domain.from_dict({"attributes": {name: table}})[name], Fraction(0.05 * mu**2), 1)

    def count(level: int, index: np.ndarray) -> np.ndarray:
        nodes = values >> np.uint64(24 - level)
        return np.searchsorted(nodes, index, "right") - np.searchsorted(nodes, index, "left")

    attribute, _ = found_edges(plan, measure_tree(TreeMeasurement(plan, seed.to_bytes(32, "big"), {}, count)))
    counts = np.histogram(values, attribute.edges)[0].astype(float)
    domain = dp.Domain.from_dict({"attributes": {name: attribute.describe()}})
    one = release(dp.plan(dp.Workload(domain).add("marginal", degree=1)), counts, 0.95 * mu**2, random)
    shares = np.append(0, np.cumsum(np.maximum(one.estimates.marginal((name,)), 0)))
    lines = []
    for q in TAILS:
        true = float(values[int(q * len(values))])
        uniform = np.interp(q, shares / shares[-1], attribute.edges) / true
        ours = [np.nan] * 3
        with suppress(WideInterval):
            found = quantile(one, name, q, 0.95)
            ours = [found.estimate / true, found.low <= true <= found.high, (found.high - found.low) / true]
        lines.append([uniform, *ours])
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["ranks", "tails"])
    parser.add_argument("--seeds", type=int, default=30)
    given = parser.parse_args()
    if "tails" in given.parts:
        print_tails()
    if "ranks" not in given.parts:
        return
    if not FLIGHTS.exists():
        print("no ../shared/data: not measured")
        return
    frame = pd.read_parquet(FLIGHTS, columns=list(COLUMNS))
    print("column           cells  epsilon   dpscale  exponential  ratio  approximate  ratio  coverage   CPU-s")
    for name in COLUMNS:
        print_column(name, frame[name].dropna().to_numpy(), given.seeds)


if __name__ == "__main__":
    main()
