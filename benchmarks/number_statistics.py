"""Statistics of numbers: sums, means and quantiles.

python benchmarks/number_statistics.py sums         errors, coverage, bounds on totals, time
python benchmarks/number_statistics.py quantiles    errors and coverage of quantiles, and of fitted tails
"""

from __future__ import annotations

import resource
import tempfile
import time
from contextlib import suppress
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

import base
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from base import DATA

import dpscale as dp
from dpscale.answers.number_statistics import mean_table
from dpscale.answers.quantiles import WideInterval, quantile
from dpscale.answers.tables import Answered
from dpscale.counting.count import Layout, count
from dpscale.discovery.dyadic_tree import EdgePlan, TreeMeasurement, found_edges, measure_tree
from dpscale.domain import Domain
from dpscale.privacy import gdp_mu, zcdp_rho
from dpscale.reconstruction.estimates import LeastSquaresEstimates

FLIGHTS = DATA / "more" / "nycflights13.parquet"
DELTA = 1e-9
DELAYS = {"dep_delay": (-60, 180), "arr_delay": (-60, 180)}
GROUPS = [["carrier"], ["dest"], ["carrier", "month"]]
LEAST = 50  # records of a group that counts in the error
TRANSACTIONS = DATA / "berka" / "trans_48k.asc"
BOUNDS: dict[str, dict[str, Any]] = {
    **{f"each value <= {high:,}": {"low": 0, "high": high} for high in (5_000, 20_000, 76_500)},
    **{f"total <= {high:,}": {"high": high, "per_unit": "total"} for high in (300_000, 600_000, 1_200_000)},
}
SIZES = (30, 100, 300, 1000, 10_000, 100_000)
ATTRIBUTES = (2, 5, 7, 10, 16, 20, 12, 4, 50)


def flights_domain(frame: pd.DataFrame) -> Domain:
    names = {name: {"kind": "categories", "values": sorted(frame[name].unique())} for name in ("carrier", "dest")}
    names["month"] = {"kind": "integer", "low": 1, "high": 12}
    numbers = {name: {"low": low, "high": high, "nulls": "skip"} for name, (low, high) in DELAYS.items()}
    return Domain.from_dict({"attributes": names, "numbers": numbers})


def print_errors(seeds: int) -> None:
    if not FLIGHTS.exists():
        print("no ../shared/data: errors not measured")
        return
    frame = pd.read_parquet(FLIGHTS, columns=["carrier", "dest", "month", *DELAYS])
    domain = flights_domain(frame)
    workload = dp.Workload(domain).add("marginal", degree=2)
    for name in DELAYS:
        workload.add("mean", attributes=GROUPS, of=name)
    with tempfile.TemporaryDirectory() as folder:
        frame.to_parquet(f"{folder}/flights.parquet")
        table = dp.Table.open(f"{folder}/flights.parquet", domain)
        plan = dp.plan(workload)
        release = Simulated(plan, table)
        random = np.random.default_rng(1)
        print("mean |error| of the mean of a group, in minutes, and its ratio to the peers")
        print("  epsilon number     by              dpscale     peer   ratio  uncentred   ratio")
        for epsilon in (0.1, 1.0, 10.0):
            cost = gdp_mu(epsilon, DELTA) ** 2
            for name in DELAYS:
                for by in GROUPS:
                    true, size = exact_means(frame, name, by)
                    shown = size >= LEAST
                    ours = np.mean([_error(release.draw(random, cost), name, by, true, shown) for _ in range(seeds)])
                    peers = [np.mean([_peer(frame, name, by, cost, centred, random, shown, true) for _ in range(seeds)])
                             for centred in (True, False)]  # fmt: skip
                    print(f"{epsilon:>8g} {name:<10} {' x '.join(by):<14} {ours:>8.3f} {peers[0]:>8.3f}"
                          f" {ours / peers[0]:>7.3f} {peers[1]:>10.3f} {ours / peers[1]:>7.3f}")  # fmt: skip


def exact_means(frame: pd.DataFrame, name: str, by: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the means of the clipped values and the numbers of records of all groups, in the order of the domain."""
    values = frame.assign(v=frame[name].clip(*DELAYS[name]))
    groups = values.groupby(by).v.agg(["mean", "count"])
    full = pd.MultiIndex.from_product([sorted(frame[one].unique()) for one in by]) if len(by) > 1 else groups.index
    groups = groups.reindex(full)
    return groups["mean"].to_numpy(), groups["count"].fillna(0).to_numpy()


def _error(one: Answered, name: str, by: list[str], true: np.ndarray, shown: np.ndarray) -> float:
    low, high = DELAYS[name]
    estimate = mean_table(one, name, by, 0.95)["estimate"].to_numpy()
    return float(np.abs(np.nan_to_num(estimate, nan=(low + high) / 2) - true)[shown].mean())


def _peer(
    frame: pd.DataFrame, name: str, by: list[str], cost: float, centred: bool, random: np.random.Generator,
    shown: np.ndarray, true: np.ndarray,
) -> float:  # fmt: skip
    """Return the error of counts and clipped sums with Gaussian noise, at the share of one of all measured sets."""
    low, high = DELAYS[name]
    _, size = exact_means(frame, name, by)
    share = cost / (3 + len(DELAYS) * len(GROUPS))  # three 2-way counts and a set for each mean
    deviation = 1 / np.sqrt(share / 2)
    centre = (low + high) / 2 if centred else 0.0
    reach = (high - low) / 2 if centred else max(abs(low), abs(high))
    sums = np.nan_to_num((true - centre) * size) + random.normal(0, deviation * reach, len(size))
    counts = size + random.normal(0, deviation, len(size))
    seen = counts > 1.96 * deviation
    found = np.where(seen, np.clip(centre + sums / np.where(seen, counts, 1.0), low, high), (low + high) / 2)
    return float(np.abs(found - true)[shown].mean())


class Simulated:
    """Releases of a plan with new Gaussian noise of its variances, from exact counts of a table."""

    def __init__(self, plan: Any, table: dp.Table) -> None:
        self.plan = plan
        counts = dp.count_marginals(table, plan.counted_sets)
        self.exact = [self._measured(index, counts) for index in range(len(plan.blocks))]

    def _measured(self, index: int, counts: dict[tuple[str, ...], np.ndarray]) -> np.ndarray:
        block, source = self.plan.blocks[index], self.plan.counted_sets[int(self.plan.sources.source[index])]
        others = tuple(axis for axis, name in enumerate(source) if name not in block.attributes)
        values = counts[source].sum(axis=others) / self.plan.domain.denominator(source)
        if len(block.factors) < len(block.attributes):
            return np.asarray(block.factors[0].explicit() @ values.reshape(-1)).reshape(block.rows)
        for axis, factor in enumerate(block.factors):
            values = np.moveaxis(np.tensordot(factor.explicit(), values, axes=(1, axis)), 0, axis)
        return np.asarray(values)

    def draw(self, random: np.random.Generator, cost: float) -> Answered:
        variances = [block.unit_variance / cost for block in self.plan.blocks]
        values = [exact + random.normal(0, variance**0.5, exact.shape)
                  for exact, variance in zip(self.exact, variances, strict=True)]  # fmt: skip
        return Answered(LeastSquaresEstimates(self.plan, variances, values.__getitem__), "simulated")


def print_optima() -> None:
    """Print squared errors at privacy cost 1 of the count, the centred sum t and t² of one number, and their optima.

    The optimum over all positive semidefinite X with φ(t)ᵀ X φ(t) <= 1 on a grid, φ = (1, t, t²), is Clarabel's.
    """
    import cvxpy as cp

    from dpscale.workload.sums import centred_rows

    print("squared error of one number: plan, optimum, ratio, diagonal strategy of 1, t, ...")
    for squares in (False, True):
        numbers = {"v": {"low": 0, "high": 100, "squares": squares}}
        domain = Domain.from_dict({"attributes": {"a": {"kind": "coded", "size": 2}}, "numbers": numbers})
        rows = np.stack(list(centred_rows(domain["v"]).values()))
        plan, size = dp.plan(dp.Workload(domain).add_queries(("v",), rows)), len(rows)
        points = np.stack([np.linspace(-1, 1, 101) ** power for power in range(size)], axis=1)
        form = cp.Variable((size, size), PSD=True)
        problem = cp.Problem(cp.Minimize(sum(cp.matrix_frac(row, form) for row in np.eye(size))),
                             [cp.sum(cp.multiply(points @ form, points), axis=1) <= 1])  # fmt: skip
        problem.solve(solver=cp.CLARABEL)
        best = float(problem.value)
        print(
            f"{'1, t, t²' if squares else '1, t':<10} {plan.error:.3f} {best:.3f} {plan.error / best:.3f} {size**2:.1f}"
        )


def print_totals(seeds: int) -> None:
    """Print errors of sums with bounds of values and with bounds of totals."""
    if not TRANSACTIONS.exists():
        print("no ../shared/data: totals not measured")
        return
    frame = pd.read_csv(TRANSACTIONS, sep=";", usecols=["account_id", "date", "type", "amount"])
    frame["year"] = frame.pop("date") // 10_000 + 1900
    types = sorted(frame.type.unique())
    exact = frame.groupby(["year", "type"]).amount.sum().reindex(pd.MultiIndex.from_product([[1993, 1994], types]))
    print("sums by year and type: error in % of the total, noise and clipping")
    with tempfile.TemporaryDirectory() as folder:
        frame.to_parquet(Path(folder) / "rows.parquet")
        for name, bound in BOUNDS.items():
            errors = [_total_errors(Path(folder), bound, types, exact.to_numpy(), seed) for seed in range(seeds)]
            print(f"  {name:22}{100 * float(np.sqrt(np.mean(np.square(errors)))) / frame.amount.sum():7.2f}")


def _total_errors(folder: Path, bound: dict[str, Any], types: list[str], exact: np.ndarray, seed: int) -> np.ndarray:
    attributes = {"year": {"kind": "integer", "low": 1993, "high": 1994},
                  "type": {"kind": "categories", "values": types}}  # fmt: skip
    domain = Domain.from_dict({"attributes": attributes, "numbers": {"amount": bound}})
    workload = [{"family": "sum", "of": "amount", "degree": 2}, {"family": "marginal", "degree": 2}]
    (folder / "domain.toml").write_text(tomli_w.dumps(domain.to_dict()))
    job = {"data": {"path": str(folder / "rows.parquet"), "domain": str(folder / "domain.toml"),
                    "privacy_unit": "account_id", "max_rows_per_unit": 150},
           "privacy": {"epsilon": 1.0, "delta": 1e-6, "ledger": str(folder / "ledger.sqlite"), "dataset": "totals"},
           "workload": workload, "engine": {"seed": seed}}  # fmt: skip
    with tempfile.TemporaryDirectory(dir=folder) as run:
        found = dp.run(job, run_dir=Path(run) / "run").sum("amount", by=["year", "type"])
    return found.estimate.to_numpy() - exact


def print_coverage(runs: int = 500) -> None:
    """Print the share of intervals that contain the mean, of all releases and of those that show the group."""
    domain = Domain.from_dict({"attributes": {"g": {"kind": "coded", "size": len(SIZES)}},
                               "numbers": {"v": {"low": 0, "high": 1000}}})  # fmt: skip
    plan = dp.plan(dp.Workload(domain).add("mean", degree=1, of="v").add("marginal", degree=1))
    print(f"coverage of 95 % intervals of means, in %, {runs} releases; in brackets the releases that show the group")
    print(f"{'values':<8} {'':<4}" + "".join(f"{size:>16,}" for size in SIZES))
    random = np.random.default_rng(2)
    for kind in ("skewed", "even", "zero"):
        group = np.repeat(np.arange(len(SIZES)), SIZES)
        even, rare = random.uniform(0, 1000, len(group)), random.random(len(group)) < 0.1
        drawn = {"skewed": random.lognormal(3.5, 1.2, len(group)), "even": even, "zero": even * rare}[kind]
        frame = pd.DataFrame({"g": group, "v": np.rint(np.clip(drawn, 0, 1000)).astype(int)})
        true = frame.groupby("g").v.mean().to_numpy()
        with tempfile.TemporaryDirectory() as folder:
            frame.to_parquet(f"{folder}/v.parquet")
            release = Simulated(plan, dp.Table.open(f"{folder}/v.parquet", domain))
        inside, seen = np.zeros(len(SIZES)), np.zeros(len(SIZES))
        for _ in range(runs):
            table = mean_table(release.draw(random, 0.04), "v", ["g"], 0.95)
            low, high = (table[name].to_numpy() for name in ("low", "high"))
            seen += np.isfinite(low)
            inside += (low <= true) & (true <= high)
        shares = [f"{100 * one / max(shown, 1):.1f} ({int(shown)})" for one, shown in zip(inside, seen, strict=True)]
        print(f"{kind:<8} {'':<4}" + "".join(f"{share:>16}" for share in shares))


def big_domain() -> Domain:
    names = {f"a{place}": {"kind": "coded", "size": size} for place, size in enumerate(ATTRIBUTES)}
    return Domain.from_dict({"attributes": names, "numbers": {"v": {"low": 0, "high": 1000}}})


def write_rows(folder: Path, rows: int, files: int = 8) -> None:
    random = np.random.default_rng(0)
    for part in range(files):
        columns = {f"a{place}": random.integers(0, size, rows // files).astype(np.int32)
                   for place, size in enumerate(ATTRIBUTES)}  # fmt: skip
        columns["v"] = np.minimum(random.lognormal(4, 1, rows // files), 2000).astype(np.int32)
        pq.write_table(pa.table(columns), folder / f"{part}.parquet", row_group_size=500_000)


def cpu() -> float:
    return sum(resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def print_times(rows: int) -> None:
    domain = big_domain()
    three = list(combinations(domain.names, 3))
    sets = {"counts": three, "counts and sums": [*three, *((*names, "v") for names in three)]}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_rows(folder, rows)
        table = dp.Table.open(f"{folder}/*.parquet", domain).split()
        for _ in range(2):  # the first compiles
            before = {}
            for what, own in sets.items():
                start = cpu()
                count(Layout(domain, tuple(own)), table.partitions[:4])
                before[what] = cpu() - start
        alone, both = before["counts"], before["counts and sums"]
        print(f"counting four partitions of {rows:,} rows, 84 sets: CPU-s {alone:.2f} for counts, {both:.2f} with sums,"
              f" ratio {both / alone:.2f}")  # fmt: skip
        found = {}
        for _ in range(2):  # the first plans
            for what, number in (("counts", 1), ("counts and sums", 2)):
                workload = [{"family": "marginal", "degree": 3}, {"family": "sum", "of": "v", "degree": 3}][:number]
                found[what] = run_job(folder, domain, workload, "threads")
        ratio = found["counts and sums"][0] / found["counts"][0]
        print(f"whole job on threads: CPU-s {found['counts'][0]:.2f} for counts, {found['counts and sums'][0]:.2f} with"
              f" sums, ratio {ratio:.2f} (limit 2)")  # fmt: skip
        from distributed import Client, LocalCluster

        with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
            workload = [{"family": "marginal", "degree": 3}, {"family": "sum", "of": "v", "degree": 3}]
            _, values = run_job(folder, domain, workload, cluster.scheduler_address)
        same = values == found["counts and sums"][1]
        print(f"cluster of 2 processes: measurements of {'equal' if same else 'DIFFERENT'} bytes")


def run_job(
    folder: Path, domain: Domain, workload: list[dict[str, Any]], scheduler: str
) -> tuple[float, dict[str, bytes]]:
    """Return the CPU seconds of a run and the content of its measurement files."""
    (folder / "domain.toml").write_text(tomli_w.dumps(domain.to_dict()))
    ledger = str(folder / "ledger.sqlite")
    job = {"data": {"path": str(folder / "*.parquet"), "domain": str(folder / "domain.toml")},
           "privacy": {"epsilon": 1.0, "delta": DELTA, "dataset": f"numbers-{len(workload)}", "ledger": ledger},
           "workload": workload, "engine": {"scheduler": scheduler, "seed": 3}}  # fmt: skip
    start = cpu()
    with tempfile.TemporaryDirectory(dir=folder) as run:
        release = dp.run(job, run_dir=Path(run) / "run")
        values = {path.name: _payload(path) for path in sorted((release.path / "measurements").glob("*.parquet"))}
    return cpu() - start, values


def _payload(path: Path) -> bytes:
    """Return the measured values of a file."""
    return pq.read_table(path).column("value").to_numpy().tobytes()


def print_sums() -> None:
    """Sums and means of numbers: errors against plain clipped sums, coverage of intervals, cost of counting, equal
    bytes.

    Errors: means of the two delays of 336,776 flights by carrier, destination and carrier x month, with all 2-way
    counts, at one budget. The peer measures each set by itself at an equal share of the same squared mu: counts and
    clipped, centred sums with Gaussian noise, the share divided evenly between both; "uncentred" sums have the range
    from 0. Error: mean |estimate - clipped mean| over groups of at least 50 records. The delays are clipped to -60 ...
    180 minutes. Coverage: 95 % intervals of means over releases with new noise, by size of the group, of skewed, even
    and mostly zero values. Optimum: squared errors of the count, sum and square of one number. Time: a job with all
    3-way counts of --rows rows and nine attributes, with and without all 3-way sums, and the CPU seconds of counting
    alone; then the same job on a cluster of two processes, whose measurements must be equal bytes. Totals: sums of the
    amounts of 49,102 bank transactions by year and type, where an account has at most 150 rows, at epsilon 1: each
    amount clipped to 5,000, 20,000 or 76,500, against a bound on the total of an account. Error: root mean square of
    estimate - sum of all amounts, noise and clipping together. Tables of ../shared/data are not part of dpscale.

        python benchmarks/number_statistics.py sums [errors coverage optimum totals time] [--seeds 10] [--rows 10000000]
    """
    parser = base.command_parser(print_sums.__doc__)
    parser.add_argument("parts", nargs="*", default=["errors", "coverage", "optimum", "totals", "time"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--rows", type=int, default=10_000_000)
    given = parser.parse_args()
    if "errors" in given.parts:
        print_errors(given.seeds)
    if "coverage" in given.parts:
        print_coverage()
    if "optimum" in given.parts:
        print_optima()
    if "totals" in given.parts:
        print_totals(given.seeds)
    if "time" in given.parts:
        print_times(given.rows)


COLUMNS = {"dep_delay": (-60, 180), "air_time": (0, 700), "sched_dep_time": (0, 2400), "distance": (0, 5000)}
SHARES = [place / 100 for place in range(1, 100)]


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
        exact = (counts if block.attributes else counts.sum()).astype(np.int64)
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


def print_quantiles() -> None:
    """Rank errors and coverage of 99 quantiles, compared with exponential mechanisms at the same zCDP budget.

    Columns of 336,776 flights with public ranges. "dpscale": 1-way prefix queries by the default mechanism, all
    quantiles from its cumulative counts. "exponential": 99 exponential mechanisms with epsilon = sqrt(8 rho/99) each.
    "approximate": Approximate Quantiles (Kaplan, Schnapp and Stemmer, 2022), a tree of exponential mechanisms, seven
    levels with epsilon = sqrt(8 rho/7) each. Error: mean over quantiles q and seeds of the distance of qN to the ranks
    of the returned value, in % of N. Coverage: share of the 95 % intervals that contain the true quantile. CPU seconds:
    of 99 quantiles after the first. Tables of ../shared/data are not part of dpscale. tails: quantiles of lognormal and
    Pareto columns of 20,000 rows over bins with private edges and a public end of 2^24, found with 5 % of the budget of
    epsilon 1 and delta 1e-6: medians over 50 draws of the ratio to the true quantile, by uniform records in every bin
    and by dpscale, numbers of missing estimates, and coverage and median width (in true quantiles) of the 95 %
    intervals.

        python benchmarks/number_statistics.py quantiles [ranks tails] [--seeds 30]
    """
    parser = base.command_parser(print_quantiles.__doc__)
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


COMMANDS = {
    "sums": print_sums,
    "quantiles": print_quantiles,
}

if __name__ == "__main__":
    base.run_command(COMMANDS, __doc__)
