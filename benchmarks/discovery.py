"""Searches for cells that are not public, beside public cells and other mechanisms at the same cost.

threeway: adult with seven, and salary with two columns whose values are searched, released by aim-grem at epsilon 1 and
delta 1e-9; L1 error of all 3-way tables on the found cells (all other values are one cell), beside a release of the
same job whose domain lists all values, coarsened to the same cells. Printed with the least share of the records of a
column whose value was found, and the largest threshold in records.
single: jobs whose only set is a column of salary whose values are searched, at delta 1e-9, beside Gaussian noise on all
counts with the threshold 1 + Q^-1(delta/2)/mu at mu = gdp_mu(epsilon, delta/2): mean number of values found, root mean
square error of the counts of found values, and that of all values, where one that is not found has the count 0; by
jobs with the default share, with that of other jobs (0.05), and by the one-shot threshold.
bins: private edges of six columns beside 128 bins of equal width and PrivTree, all at mu = gdp_mu(1, 1e-9) sqrt(.3/14)
for finding and counting; mean error of the counts of 400 ranges between random quantiles, in percent of the records.
ends: mean arrival delay by carrier and departure delay by destination of all flights, the range found in the data's
noisy histogram (10 % of the squared mu), beside the same estimator without a histogram whose range has the least
expected error on the data itself, at the same total cost; 30 draws of each.
tails: means of five groups and totals of skewed columns whose upper end is searched with 10 % of the squared mu at a
delta of 1e-6, beside a range from a base-2 histogram (the largest octave of windows that exceed 4.5 standard
deviations) at the same cost: coverage of the true means by intervals of 95 %, median half width as a ratio to the
truth, median error of the groups, refusals, and error of a number of which only the total is asked; 200 draws of each.
strings: 10^7 distinct values and 1,000 frequent ones within memory settings; peak memory and time of the stage.
codes: 74,736 codes of ICD-10-CM with a Zipf distribution; share of records in cells below the top level.
Tables of ../shared/data are not part of dpscale.

    python benchmarks/discovery.py [threeway single bins ends tails strings codes] [--seeds 8]
"""

from __future__ import annotations

import csv
import json
import math
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import base
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from base import DATA

import dpscale as dp
from dpscale.discovery.dyadic_tree import EdgePlan, TreeMeasurement, dyadic_bins, found_edges, measure_tree
from dpscale.discovery.ends import choose_ends
from dpscale.domain import Domain
from dpscale.privacy import gdp_mu

DELTA = 1e-9
SEARCHED = {
    "adult": ("workclass", "marital-status", "occupation", "relationship", "race", "native-country", "education-num"),
    "salary": ("first-name", "organization-name"),
}  # fmt: skip
SHARES = {"adult": 0.05, "salary": 0.0667}  # the default, and the one of a sketch of the method


def write_toml(path: Path, content: dict[str, Any]) -> str:
    import tomli_w

    path.write_text(tomli_w.dumps(content))
    return str(path)


# ---- three-way tables ----------------------------------------------------------------------------------------------


def print_threeway(seeds: int) -> None:
    print("L1 error of 3-way tables on found cells, as a share of the records")
    print("table    seed  known  found  ratio  least covered  largest threshold")
    for name, searched in SEARCHED.items():
        sizes = json.loads((DATA / name / f"{name}-domain.json").read_text())
        frame = pd.read_csv(DATA / name / f"{name}.csv")[list(sizes)]
        for column in searched:
            frame[column] = "v" + frame[column].astype(str)
        ratios = []
        for seed in range(seeds):
            known, found, covered, needed = _threeway(frame, sizes, searched, SHARES[name], seed)
            ratios.append(found / known)
            errors = f"{known:.4f} {found:.4f} {found / known:>6.3f}"
            print(f"{name:<8} {seed:>4}  {errors}  {covered:>13.3f} {needed:>18.0f}", flush=True)
        print(f"{name:<8} mean ratio {np.mean(ratios):.3f}")


def _threeway(
    frame: pd.DataFrame, sizes: dict[str, int], searched: Sequence[str], share: float, seed: int
) -> tuple[float, float, float, float]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        frame.to_parquet(place / "data.parquet")
        public = {name: {"kind": "coded", "size": size} for name, size in sizes.items() if name not in searched}
        listed = {
            name: {"kind": "categories", "values": [f"v{code}" for code in range(sizes[name])]} for name in searched
        }
        domains = {"known": listed, "found": {name: {"kind": "discover"} for name in searched}}
        releases = {}
        for which, own in domains.items():
            attributes = {name: (public | own)[name] for name in sizes}
            job = {
                "data": {"path": str(place / "data.parquet"),
                         "domain": write_toml(place / f"{which}.toml", {"attributes": attributes}), },
                "privacy": {"epsilon": 1.0, "delta": DELTA, "ledger": str(place / f"{which}.sqlite")},
                "workload": [{"family": "marginal", "degree": 3}],
                "mechanism": {"name": "aim-grem"},
                "engine": {"seed": seed},
                "output": {"max_rows": 0},
                "budget": {"discover": share},
            }  # fmt: skip
            releases[which] = dp.run(job, run_dir=place / which)
        searches = json.loads((place / "found/domain/searches.json").read_text())
        needed = max(one["threshold"] for one in searches.values())
        return *_compared(frame, list(sizes), searched, releases["known"], releases["found"]), needed


def _compared(
    frame: pd.DataFrame, names: Sequence[str], searched: Sequence[str], known: dp.Release, found: dp.Release
) -> tuple[float, float, float]:
    """Return both errors, and the least share of the records of a column whose value was found."""
    codes, maps, covered = {}, {}, []
    for name in names:
        values = list(found.domain[name].values) if name in searched else list(range(found.domain[name].size))
        cell = {value: at for at, value in enumerate(values)}
        codes[name] = frame[name].map(cell).fillna(len(values)).astype(int).to_numpy()
        if name in searched:
            covered.append((codes[name] < len(values)).mean())
        labels = known.domain[name].labels
        maps[name] = np.array([cell.get(label, len(values)) for label in labels])
    errors = []
    for names_of in combinations(names, 3):
        shape = found.domain.shape(names_of)
        exact = np.zeros(shape)
        np.add.at(exact, tuple(codes[name] for name in names_of), 1)
        coarse = np.zeros(shape)
        np.add.at(coarse, np.ix_(*(maps[name] for name in names_of)), known.marginal(names_of))
        errors.append([np.abs(one - exact).sum() / len(frame) for one in (coarse, found.marginal(names_of))])
    return (*np.mean(errors, axis=0), min(covered))


# ---- one column ----------------------------------------------------------------------------------------------------

SINGLE = ("first-name", "organization-name")


def print_single(seeds: int) -> None:
    print("column             epsilon   found: default   0.05  one-shot   error: default    0.05  one-shot"
          "   of all: default    0.05  one-shot")  # fmt: skip
    for name in SINGLE:
        values = "v" + pd.read_csv(DATA / "salary/salary.csv", usecols=[name])[name].astype(str)
        exact = values.value_counts()
        with tempfile.TemporaryDirectory() as folder:
            values.to_frame().to_parquet(f"{folder}/data.parquet")
            for epsilon in (0.3, 1.0, 3.0):
                drawn = [[_single_job(Path(folder), name, epsilon, seed, 0.999, exact),
                          _single_job(Path(folder), name, epsilon, seed, 0.05, exact),
                          _one_shot(epsilon, seed, exact)] for seed in range(seeds)]  # fmt: skip
                found, error, of_all = np.array(drawn).transpose(2, 1, 0).mean(axis=2)
                error, of_all = error**0.5, of_all**0.5
                print(f"{name:<18} {epsilon:>7g} {found[0]:>16.1f} {found[1]:>6.1f} {found[2]:>9.1f} {error[0]:>16.2f}"
                      f" {error[1]:>7.2f} {error[2]:>9.2f} {of_all[0]:>17.2f} {of_all[1]:>7.2f} {of_all[2]:>9.2f}",
                      flush=True)  # fmt: skip


def _single_job(
    folder: Path, name: str, epsilon: float, seed: int, share: float, exact: pd.Series
) -> tuple[int, float, float]:
    job = {"data": {"path": str(folder / "data.parquet"),
                    "domain": write_toml(folder / "domain.toml", {"attributes": {name: {"kind": "discover"}}})},
           "privacy": {"epsilon": epsilon, "delta": DELTA, "ledger": str(folder / "ledger.sqlite"),
                       "dataset": f"{epsilon} {seed} {share}"},
           "workload": [{"family": "marginal", "attributes": [[name]]}], "engine": {"seed": seed},
           **({} if share > 0.5 else {"budget": {"discover": share}})}  # fmt: skip
    with tempfile.TemporaryDirectory(dir=folder) as run:
        release = dp.run(job, run_dir=Path(run) / "run")
        estimates = pd.Series(release.marginal((name,)), release.domain[name].labels)
    return _single_errors(estimates.drop("(outside)"), exact)


def _one_shot(epsilon: float, seed: int, exact: pd.Series) -> tuple[int, float, float]:
    from scipy.special import ndtri

    mu = gdp_mu(epsilon, DELTA / 2)
    noisy = exact + np.random.default_rng(seed).normal(0, 1 / mu, len(exact))
    return _single_errors(noisy[noisy >= 1 - ndtri(DELTA / 2) / mu], exact)


def _single_errors(found: pd.Series, exact: pd.Series) -> tuple[int, float, float]:
    """Return the number of values, and the mean squared errors of found and of all values."""
    inside = found[found.index.isin(exact.index)]
    squares = (inside - exact[inside.index]) ** 2
    missed = exact.drop(inside.index) ** 2
    return len(inside), float(squares.mean()), float((squares.sum() + missed.sum()) / len(exact))


# ---- bins ----------------------------------------------------------------------------------------------------------


def columns() -> dict[str, tuple[np.ndarray, int]]:
    """Columns of integers and the number of binary digits of their public axes."""
    files = [(DATA / "adult/raw" / name).read_text().splitlines() for name in ("adult.data", "adult.test")]
    lines = [row for file in files for row in csv.reader(file, skipinitialspace=True)]
    raw = [row for row in lines if len(row) > 13 and row[0] != "age"]
    bank = list(csv.DictReader((DATA / "berka/trans_48k.asc").read_text().splitlines(), delimiter=";"))
    balance = np.clip(np.array([int(float(row["balance"])) for row in bank]) + 2**17, 0, 2**20 - 1)
    return {
        "age": (np.array([int(row[0]) for row in raw]), 7),
        "hours": (np.array([int(row[12]) for row in raw]), 7),
        "capital-gain": (np.array([int(row[10]) for row in raw]), 17),
        "fnlwgt": (np.array([int(row[2]) for row in raw]), 21),
        "amount": (np.array([int(float(row["amount"])) for row in bank]), 20),
        "balance": (balance, 20),
    }


Cumulative = Callable[[np.ndarray], np.ndarray]


def print_bins(seeds: int) -> None:
    mu = gdp_mu(1.0, DELTA) * math.sqrt(0.3 / 14)
    print("mean error of range counts, % of the records")
    print("column        bins  dpscale  128 equal  PrivTree  64-bit axis")
    for name, (column, bits) in columns().items():
        values = np.sort(column.astype(np.int64))
        trees = [_tree(values, bits, mu, seed) for seed in range(seeds)]
        methods = {
            "dpscale": [_interpolated(*one) for one in trees],
            "equal": [_equal(values, bits, mu, seed) for seed in range(seeds)],
            "PrivTree": [_privtree(values, bits, mu, seed) for seed in range(seeds)],
            "wide": [_interpolated(*_tree(values, 64, mu, seed)) for seed in range(seeds)],
        }
        ours, equal, tree, wide = (_range_error(values, found) for found in methods.values())
        bins = np.mean([len(edges) - 1 for edges, _ in trees])
        print(f"{name:<12} {bins:>5.0f} {ours:>8.3f} {equal:>10.3f} {tree:>9.3f} {wide:>12.3f}", flush=True)


def _range_error(values: np.ndarray, found: Sequence[Cumulative]) -> float:
    """Mean error of the counts of 400 ranges between random quantiles, in percent of the records."""
    ends = np.sort(values[np.random.default_rng(9).integers(0, len(values), (400, 2))], axis=1)
    exact = np.searchsorted(values, ends[:, 1] + 1) - np.searchsorted(values, ends[:, 0])
    errors = [np.abs(one(ends[:, 1] + 1.0) - one(ends[:, 0] * 1.0) - exact).mean() for one in found]
    return 100 * float(np.mean(errors)) / len(values)


def _tree(values: np.ndarray, bits: int, mu: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    ends = {} if bits == 64 else {"low": 0, "high": (1 << bits) - 1}
    attribute = Domain.from_dict({"attributes": {"a": {"kind": "bins", "edges": "private", **ends}}})["a"]
    plan = EdgePlan(attribute, Fraction(mu**2), 1)
    places = values.view(np.uint64) - np.uint64(plan.search.axis[0] % 2**64)

    def count(level: int, index: np.ndarray) -> np.ndarray:
        nodes = np.zeros_like(places) if bits - level == 64 else places >> np.uint64(bits - level)
        return np.searchsorted(nodes, index, "right") - np.searchsorted(nodes, index, "left")

    measured = TreeMeasurement(plan, seed.to_bytes(32, "big"), {"release": "benchmark"}, count)
    _, released = found_edges(plan, measure_tree(measured))
    return np.array(released["edges"]), np.array(released["counts"])


def _interpolated(edges: np.ndarray, counts: np.ndarray) -> Cumulative:
    sums = np.concatenate([[0.0], np.cumsum(counts)])
    return lambda at: np.interp(at, edges, sums)


def _counted(values: np.ndarray, edges: np.ndarray, mu: float, random: np.random.Generator) -> Cumulative:
    counts = np.histogram(values, edges)[0] + random.normal(0, 1 / mu, len(edges) - 1)
    return _interpolated(edges, np.maximum(counts, 0))


def _equal(values: np.ndarray, bits: int, mu: float, seed: int) -> Cumulative:
    return _counted(values, np.linspace(0, 2**bits, 129), mu, np.random.default_rng(seed))


def _privtree(values: np.ndarray, bits: int, mu: float, seed: int) -> Cumulative:
    """PrivTree (Zhang, Xiao, Xie 2016) on half of the squared mu; the other half counts the leaves."""
    random, epsilon, leaves, todo = np.random.default_rng(seed), math.sqrt(0.5) * mu, [], [(0, 2**bits, 0)]
    scale = 3 / epsilon
    while todo:
        low, high, depth = todo.pop()
        count = np.searchsorted(values, high) - np.searchsorted(values, low)
        biased = max(count - depth * scale * math.log(2), -scale * math.log(2))
        if high - low > 1 and biased + random.laplace(0, scale) > 0:
            middle = (low + high) // 2
            todo += [(low, middle, depth + 1), (middle, high, depth + 1)]
        else:
            leaves.append((low, high))
    edges = np.array([low for low, _ in sorted(leaves)] + [2**bits], float)
    return _counted(values, edges, mu * math.sqrt(0.5), random)


# ---- ranges --------------------------------------------------------------------------------------------------------


SHARE, RUNS = 0.1, 30


def print_ends(seeds: int) -> None:
    flights = pd.read_parquet(DATA / "more/nycflights13.parquet")
    print("mean error of the means of groups of 50 records and more; ratio to the best range of the data")
    print("delay             sides  epsilon   range found       best range      error    best  ratio")
    ratios = []
    for delay, by in (("arr_delay", "carrier"), ("dep_delay", "dest")):
        own = flights.dropna(subset=[delay])
        for sides in ("one", "two"):
            values = own[delay].to_numpy().astype(np.int64)
            values = np.maximum(values, 0) if sides == "one" else values
            groups = pd.factorize(own[by])[0]
            for epsilon in (0.1, 1.0, 10.0):
                line, ratio = _ends_line(values, groups, sides, gdp_mu(epsilon, DELTA))
                ratios.append(ratio)
                print(f"{delay} by {by:<8} {sides:<5} {epsilon:>7g}  {line}", flush=True)
    print(f"geometric mean {np.exp(np.mean(np.log(ratios))):.3f}, largest {max(ratios):.3f}")


def _ends_line(values: np.ndarray, groups: np.ndarray, sides: str, mu: float) -> tuple[str, float]:
    low = 0 if sides == "one" else None
    sizes = np.bincount(groups)
    true = np.bincount(groups, values) / sizes
    scale = np.abs(true) if sides == "one" else np.abs(values - values.mean()).mean()
    bins, ends = dyadic_bins(), []
    exact = np.bincount(np.searchsorted(bins.first, values, "right") - 1, minlength=len(bins.first))
    random, errors = np.random.default_rng(0), []
    for _ in range(RUNS):
        noise = 1 / (mu * math.sqrt(SHARE))
        chosen = choose_ends(
            exact + random.normal(0, noise, len(exact)), noise, len(sizes), (1 - SHARE) * mu**2 / 2, low
        )
        assert chosen is not None
        ends.append((chosen.low, chosen.high))
        errors.append(_means_error(values, groups, ends[-1], (1 - SHARE) * mu**2 / 2, true, scale, random))
    best = _best_range(values, groups, low, mu**2 / 2, true, scale)
    oracle = np.mean([_means_error(values, groups, best, mu**2 / 2, true, scale, random) for _ in range(10 * RUNS)])
    typical = tuple(int(np.median(one)) for one in zip(*ends, strict=True))
    ratio = float(np.mean(errors) / oracle)
    return f"{typical!s:<17} {best!s:<15} {np.mean(errors):>8.4f} {oracle:>7.4f} {ratio:>6.3f}", ratio


def _means_error(
    values: np.ndarray, groups: np.ndarray, ends: tuple[int, int], precision: float, true: np.ndarray, scale: Any,
    random: np.random.Generator, draws: int = 1,
) -> float:  # fmt: skip
    """Mean error of centred clipped means with noise of one precision for counts and sums."""
    low, high = ends
    half, centre, noise = (high - low) / 2, (high + low) / 2, 1 / math.sqrt(precision)
    sizes = np.bincount(groups)
    sums = np.bincount(groups, np.clip(values, low, high) - centre) / half
    counted = np.maximum(sizes + random.normal(0, noise, (draws, len(sizes))), 2 * noise)
    means = centre + half * (sums + random.normal(0, noise, (draws, len(sizes)))) / counted
    large = sizes >= 50
    return float((np.abs(means - true)[:, large] / np.broadcast_to(scale, len(sizes))[large]).mean())


def _best_range(
    values: np.ndarray, groups: np.ndarray, low: int | None, precision: float, true: np.ndarray, scale: Any
) -> tuple[int, int]:
    """Return the range with the least error on the data, among those that clip at most half of the records."""
    ends = dyadic_bins().ends
    ends = ends[(ends >= values.min() - 2) & (ends <= 2 * values.max())]
    lows = [low] if low is not None else ends[ends <= np.median(values)].tolist()
    found = {}
    for one in lows:
        for other in ends[ends > max(one, np.median(values) if low is None else one)].tolist():
            if ((values < one) | (values > other)).mean() <= 0.5:
                found[one, other] = _means_error(values, groups, (one, other), precision, true, scale,
                                                 np.random.default_rng(1), 30)  # fmt: skip
    return min(found, key=lambda key: found[key])


# ---- skewed columns ------------------------------------------------------------------------------------------------


DRAWS, POWERS, DETECTION = 200, 31, 4.5
GROUP_SHARES, SCALES = [0.5, 0.25, 0.15, 0.07, 0.03], np.array([1, 1.3, 0.7, 2, 1.0])


def print_tails(seeds: int) -> None:
    print("means of groups (coverage, half width, error) and totals of skewed columns; upper end by a search with 10 %")
    print("  rows  epsilon column     refused  base-2  coverage  half width  error  base-2   total  base-2  ratio")
    for rows in (2_000, 20_000):
        for epsilon in (0.2, 1.0):
            for name in ("lognormal", "pareto", "zeros"):
                print(_tails_line(name, rows, epsilon), flush=True)


def skewed_column(name: str, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return groups and values of a column."""
    random = np.random.default_rng(seed)
    group = random.choice(5, rows, p=GROUP_SHARES)
    if name == "lognormal":
        drawn = random.lognormal(8, 1.2, rows)
    elif name == "pareto":
        drawn = 100 * (1 + random.pareto(1.8, rows))
    else:
        drawn = np.where(random.random(rows) < 0.8, 0, random.lognormal(6, 1, rows))
    return group, np.round(SCALES[group] * drawn).astype(np.int64)


def _tails_line(name: str, rows: int, epsilon: float) -> str:
    from dpscale.answers.ratios import mean_figures
    from dpscale.discovery.ends import GROUP
    from dpscale.workload.family import Statistic

    mu, bins = gdp_mu(epsilon, 1e-6), dyadic_bins()
    noise, precision = 1 / (mu * math.sqrt(SHARE)), (1 - SHARE) * mu**2 / 2
    deviation = 1 / math.sqrt(precision)
    refused, covered, widths = [0, 0], list[bool](), list[float]()
    errors, totals = ([list[float](), list[float]()] for _ in range(2))
    for seed in range(DRAWS):
        group, values = skewed_column(name, rows, seed)
        sizes, random = np.bincount(group, minlength=5), np.random.default_rng(1000 + seed)
        true = np.bincount(group, values, minlength=5) / sizes
        exact = np.bincount(np.searchsorted(bins.first, values, "right") - 1, minlength=len(bins.first))
        noisy = exact + random.normal(0, noise, len(exact))
        chosen = [choose_ends(noisy, noise, groups, precision, 0) for groups in (5, 1)]
        simple = _base_two_end(values, noise, random)
        ends = [(0 if one is None else one.high, 0 if one is None else GROUP * one.above_limit) for one in chosen]
        for at, (high, total) in enumerate(((ends[0], ends[1]), ((simple or 0, 0.0), (simple or 0, 0.0)))):
            if not high[0]:
                refused[at] += 1
                continue
            means, seen, low, top = _group_means(values, group, high, deviation, random, mean_figures, Statistic)
            errors[at].append(float(np.median(np.abs(means - true) / true)))
            half = total[0] / 2
            summed = np.minimum(values, total[0]).sum() + half * random.normal(0, deviation, 2).sum()
            totals[at].append(abs(summed - values.sum()) / values.sum())
            if at == 0:
                covered += ((low <= true) & (true <= top))[seen].tolist()
                widths += ((top - low) / 2 / true)[seen].tolist()
    error, total = ([float(np.mean(one)) if one else math.nan for one in both] for both in (errors, totals))
    coverage, width = (np.mean(covered), np.median(widths)) if covered else (math.nan, math.nan)
    begin = f"{rows:>6} {epsilon:>8g} {name:<10} {refused[0]:>7} {refused[1]:>7}"
    return (f"{begin} {coverage:>9.3f} {width:>11.3f} {error[0]:>6.3f} {error[1]:>7.3f}"
            f" {total[0]:>7.3f} {total[1]:>7.3f} {total[0] / total[1]:>6.2f}")  # fmt: skip


def _group_means(
    values: np.ndarray, group: np.ndarray, end: tuple[float, float], deviation: float, random: np.random.Generator,
    mean_figures: Any, statistic: Any,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Return the means of groups with noise on counts and centred sums, which are seen, and ends of the intervals."""
    half, sizes = end[0] / 2, np.bincount(group, minlength=5)
    t = np.bincount(group, np.minimum(values, end[0]) / half - 1, minlength=5) + random.normal(0, deviation, 5)
    n = sizes + random.normal(0, deviation, 5)
    parts = np.broadcast_to(deviation * np.array([1, 1, math.sqrt(2)]), (5, 3))
    figures = mean_figures(statistic(1, half, half, 1.0, (0.0, end[1])), np.stack([t, n, t + n], 1), parts, 1.96)
    seen = np.isfinite(figures.estimates)
    means = np.clip(half + half * t / np.maximum(n, 2 * deviation), 0, end[0])
    return means, seen, figures.low, figures.high


def _base_two_end(values: np.ndarray, noise: float, random: np.random.Generator) -> float | None:
    """Return the upper end of the last octave in a window of 1 to 4 octaves that exceeds DETECTION deviations."""
    places = np.minimum(np.ceil(np.log2(values + 1)).astype(int), POWERS)
    counts = np.bincount(places, minlength=POWERS + 1) + random.normal(0, noise, POWERS + 1)
    last = [first + width - 1 for width in (1, 2, 3, 4) for first in range(1, POWERS + 2 - width)
            if counts[first : first + width].sum() > DETECTION * math.sqrt(width) * noise]  # fmt: skip
    return 2.0 ** max(last) - 1 if last else None


# ---- strings and codes ---------------------------------------------------------------------------------------------


def print_strings(seeds: int) -> None:
    print("values in 10^7 rows that are nearly all distinct, and 1,000 values of 2,000 rows")
    print("(a value of one row is found with a probability of at most 5e-10: 0.005 of 10^7 are expected)")
    print("memory    found  wrong  seconds  peak MiB")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "data").mkdir()
        writer = multiprocessing.get_context("spawn").Process(target=write_strings, args=(place / "data",))
        writer.start()  # a process of its own, whose memory is not counted
        writer.join()
        domain = write_toml(place / "domain.toml", {"attributes": {"a": {"kind": "discover"}}})
        for memory in ("128MiB", "512MiB", "4GiB"):
            job = {"data": {"path": str(place / "data"), "domain": domain}, "engine": {"memory": memory, "seed": 1},
                   "privacy": {"epsilon": 1.0, "delta": DELTA, "ledger": str(place / f"{memory}.sqlite")},
                   "workload": [{"family": "marginal", "attributes": [["a"]]}]}  # fmt: skip
            began = time.perf_counter()
            release = dp.run(job, run_dir=place / memory)
            seconds, found = time.perf_counter() - began, release.domain["a"].values
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            wrong = sum(not one.startswith("often") for one in found)
            print(f"{memory:<8} {len(found):>6} {wrong:>6} {seconds:>8.1f} {peak:>9.0f}", flush=True)


def write_strings(folder: Path) -> None:
    random = np.random.default_rng(0)
    for part in range(10):
        rare = np.arange(part * 1_000_000, (part + 1) * 1_000_000)
        texts = np.char.add("value ", rare.astype(str))
        often = np.char.add("often ", np.repeat(np.arange(1000), 200).astype(str))
        frame = pd.DataFrame({"a": random.permutation(np.concatenate([texts, often]))})
        frame.to_parquet(folder / f"{part}.parquet", row_group_size=100_000)


def print_codes(seeds: int) -> None:
    tree = pq.read_table(DATA / "more/icd10cm_tree.parquet").to_pandas()
    codes, random = tree.code.drop_duplicates().to_numpy(), np.random.default_rng(0)
    weights = 1 / np.arange(1, len(codes) + 1) ** 1.1
    rows = random.permutation(codes)[random.choice(len(codes), 1_000_000, p=weights / weights.sum())]
    print("ICD-10-CM codes of 10^6 records (Zipf 1.1): cells, and shares of the records by the kind of their cell")
    print("epsilon  cells  of one code  of several  outside")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        pd.DataFrame({"code": rows}).to_parquet(place / "data.parquet")
        levels = [name for name in tree.columns if name.startswith("l")]
        table = {"kind": "discover", "file": str(DATA / "more/icd10cm_tree.parquet"), "levels": levels}
        domain = write_toml(place / "domain.toml", {"attributes": {"code": table}})
        for epsilon in (0.3, 1.0, 10.0):
            job = {"data": {"path": str(place / "data.parquet"), "domain": domain}, "engine": {"seed": 1},
                   "privacy": {"epsilon": epsilon, "delta": DELTA, "ledger": str(place / f"{epsilon}.sqlite")},
                   "workload": [{"family": "marginal", "attributes": [["code"]]}]}  # fmt: skip
            attribute = dp.run(job, run_dir=place / f"{epsilon}").domain["code"]
            size = {code: len(group) for group in attribute.groups for code in group}
            sizes = pd.Series(rows).map(size).fillna(0).to_numpy()
            shares = (sizes == 1).mean(), (sizes > 1).mean(), (sizes == 0).mean()
            print(
                f"{epsilon:>7g} {attribute.size:>6} {shares[0]:>12.3f} {shares[1]:>11.3f} {shares[2]:>8.3f}", flush=True
            )


PARTS = {"threeway": print_threeway, "single": print_single, "bins": print_bins, "ends": print_ends,
         "tails": print_tails, "strings": print_strings, "codes": print_codes}  # fmt: skip

if __name__ == "__main__":
    parser = base.command_parser(__doc__)
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--seeds", type=int, default=8)
    given = parser.parse_args()
    for part in given.parts or PARTS:
        if not DATA.exists() and part not in ("strings", "tails"):
            print(f"no ../shared/data: {part} not measured")
            continue
        PARTS[part](given.seeds)
