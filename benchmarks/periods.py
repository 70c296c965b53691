"""Growing tables and refined runs.

python benchmarks/periods.py horizons    variances, strategies and sizes of answers over time
python benchmarks/periods.py top_ups     errors of refined releases relative to one release
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import base
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from base import DATA, Table, load_table

import dpscale as dp
from dpscale.engine.schedulers import resolve
from dpscale.optimize.time_strategy import queries_over_time
from dpscale.plans.time_plan import largest_cost
from dpscale.privacy.conversion import epsilon_of_mu, gdp_mu
from dpscale.runs.opening import begin_run, read_job
from dpscale.runs.refine import plan_refinement, start_refinement
from tests.running import run_stages

SIDE = 300
MEMORY = "1 GB"
COST = 0.5


def label(number: int) -> str:
    return f"{2016 + number // 12}-{number % 12 + 1:02d}"


def write_months(folder: Path, frames: Sequence[pd.DataFrame], sizes: dict[str, int]) -> None:
    """Write a folder for each month, and the domain."""
    for number, frame in enumerate(frames):
        (folder / f"data/month={label(number)}").mkdir(parents=True)
        frame.to_parquet(folder / f"data/month={label(number)}/part.parquet")
    lines = [f'{name} = {{kind = "coded", size = {size}}}' for name, size in sizes.items()]
    (folder / "domain.toml").write_text("\n".join(["[attributes]", *lines]))


def job(folder: Path, cost: float, degree: int, files: str = "data", **tables: Any) -> dict[str, Any]:
    return {
        "data": {"path": str(folder / files), "domain": str(folder / "domain.toml")} | tables.pop("data", {}),
        "privacy": {"privacy_cost": cost, "ledger": str(folder / "ledger.sqlite"), "dataset": f"{files}-{cost}"},
        "workload": [{"family": "marginal", "degree": degree}],
        **tables,
    }


def growing(
    folder: Path, cost: float, degree: int, horizon: int, time: dict[str, Any], **tables: Any
) -> dict[str, Any]:
    own = tables.pop("data", {})
    settings = {"horizon": horizon, "start": label(0), **time}
    return job(folder, cost, degree, data={"period": "month", **own}, **tables) | {"time": settings}


def grid(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    return pd.DataFrame({"a": rng.integers(0, SIDE, rows), "b": rng.integers(0, SIDE, rows)})


def counts(frame: pd.DataFrame, names: Sequence[str], sizes: dict[str, int]) -> np.ndarray:
    out = np.zeros([sizes[name] for name in names])
    np.add.at(out, tuple(frame[name].to_numpy() for name in names), 1)
    return out


def squared_error(marginal: np.ndarray, truth: np.ndarray) -> float:
    return float(np.mean((marginal - truth) ** 2))


def one_release(folder: Path, frame: pd.DataFrame, sizes: dict[str, int], cost: float, name: str) -> float:
    """Return the squared error of one release of a table at a cost."""
    (folder / name).mkdir()
    frame.to_parquet(folder / name / "part.parquet")
    release = dp.run(job(folder, cost, 2, name), folder / f"run-{name}-{cost}")
    return squared_error(release.marginal(tuple(sizes)), counts(frame, tuple(sizes), sizes))


def measured_variance(
    folder: Path, frames: Sequence[pd.DataFrame], sizes: dict[str, int], answers: Sequence[str], window: int
) -> dict[str, float]:
    """Return the mean squared error over the horizon of each kind of answers of a growing table."""
    settings = {"answers": list(answers)} | ({"window": window} if window else {})
    release = dp.run(growing(folder, COST, 2, len(frames), settings), folder / "run")
    exact = [counts(frame, tuple(sizes), sizes) for frame in frames]
    errors: dict[str, list[float]] = {kind: [] for kind in answers}
    for number in range(len(frames)):
        first = {"period": number, "cumulative": 0, "window": max(number + 1 - window, 0)}
        for kind in answers:
            truth = np.sum(exact[first[kind] : number + 1], axis=0)
            errors[kind].append(squared_error(release.marginal(tuple(sizes), period=label(number), kind=kind), truth))
    return {kind: float(np.mean(own)) for kind, own in errors.items()}


def dyadic(horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes of a binary tree over the periods and their levels."""
    rows, levels, width, level = [], [], 1, 0
    while width <= horizon:
        for start in range(0, horizon - width + 1, width):
            row = np.zeros(horizon)
            row[start : start + width] = 1
            rows.append(row)
            levels.append(level)
        width, level = 2 * width, level + 1
    return np.array(rows), np.array(levels)


def tree_variance(budgets: np.ndarray, horizon: int, cost_of: Callable[[np.ndarray], float]) -> float:
    """Return the mean variance of cumulative answers from the nodes that exist at each period."""
    nodes, levels = dyadic(horizon)
    rows = nodes * np.sqrt(budgets[levels])[:, None]
    rows = rows / np.sqrt(cost_of(rows))
    ends = np.array([np.flatnonzero(row).max() for row in nodes])
    found = []
    for number in range(horizon):
        own, query = rows[ends <= number][:, : number + 1], np.ones(number + 1)
        found.append(query @ np.linalg.pinv(own.T @ own) @ query)
    return float(np.mean(found))


def tuned(horizon: int, cost_of: Callable[[np.ndarray], float], sweeps: int) -> tuple[float, float]:
    """Return the variance of a tree with equal budgets by level, and with budgets found by coordinate search."""
    budgets = np.ones(dyadic(horizon)[1].max() + 1)
    even = best = tree_variance(budgets, horizon, cost_of)
    for _ in range(sweeps):
        for level in range(len(budgets)):
            for factor in (0.25, 0.5, 2, 4):
                trial = budgets.copy()
                trial[level] *= factor
                if (value := tree_variance(trial, horizon, cost_of)) < best:
                    best, budgets = value, trial
    return even, best


def row_cost(rows: np.ndarray) -> float:
    return float((rows**2).sum(axis=0).max())


def whole_cost(rows: np.ndarray) -> float:
    return float((rows.T @ rows).sum())


def variances(horizons: Sequence[int]) -> None:
    """Print the mean variance of cumulative answers in units of one release."""
    sizes, rng = {"a": SIDE, "b": SIDE}, np.random.default_rng(0)
    print("mean variance of cumulative answers, in units of one release")
    print("periods   plan  gap      again   sums  tree   tree, tuned")
    for horizon in horizons:
        with tempfile.TemporaryDirectory() as name:
            folder, frames = Path(name), [grid(rng, SIDE**2) for _ in range(horizon)]
            write_months(folder, frames, sizes)
            one = one_release(folder, frames[0], sizes, COST, "one")
            plan = measured_variance(folder, frames, sizes, ["cumulative"], 0)["cumulative"] / one
            gap = dp.Release.open(folder / "run")._run.table.time_plan.gap
            parts = [pd.concat(frames[: number + 1]) for number in (0, horizon // 2, horizon - 1)]
            again = np.mean([one_release(folder, part, sizes, COST / horizon, f"again{number}") / one
                             for number, part in enumerate(parts)])  # fmt: skip
        sums = (horizon + 1) / 2
        even, best = tuned(horizon, row_cost, 2 if horizon <= 36 else 1)
        print(f"{horizon:>7} {plan:>6.3f}  {gap:.1e} {again:>6.2f} {sums:>6.1f} {even:>5.2f} {best:>6.2f}", flush=True)
    mixture(sizes, rng)


def mixture(sizes: dict[str, int], rng: np.random.Generator, horizon: int = 12, window: int = 3) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, frames = Path(name), [grid(rng, SIDE**2) for _ in range(horizon)]
        write_months(folder, frames, sizes)
        one = one_release(folder, frames[0], sizes, COST, "one")
        found = measured_variance(folder, frames, sizes, ["period", "cumulative", "window"], window)
        plan = dp.Release.open(folder / "run")._run.table.time_plan
    both = ", ".join(f"{kind} {value / one:.3f}" for kind, value in found.items())
    print(f"{horizon} periods, three kinds in one plan, window {window}: {both}; gap {plan.gap:.1e}", flush=True)


def units(horizon: int = 12) -> None:
    """Print the mean variance at equal cost for persons with a row in every period."""
    sizes, rng = {"a": SIDE, "b": SIDE}, np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        frames = [grid(rng, SIDE**2).assign(who=np.arange(SIDE**2)) for _ in range(horizon)]
        write_months(folder, frames, sizes)
        one = one_release(folder, frames[0][["a", "b"]], sizes, COST, "one")
        promise = {"privacy_unit": "who", "max_rows_per_unit": 1}
        run = growing(folder, COST, 2, horizon, {"answers": ["cumulative"], "max_periods_per_unit": horizon},
                      data=promise)  # fmt: skip
        release, exact = dp.run(run, folder / "run"), [counts(one_frame, ("a", "b"), sizes) for one_frame in frames]
        errors = [squared_error(release.marginal(("a", "b"), period=label(number), kind="cumulative"),
                                np.sum(exact[: number + 1], axis=0)) for number in range(horizon)]  # fmt: skip
        flat = float(np.mean(queries_over_time(horizon, ["cumulative"], 0).sum(axis=1))) * horizon
    tree, best = tuned(horizon, whole_cost, 2)
    print(f"persons in all {horizon} periods at equal cost: plan {np.mean(errors) / one:.2f}, sums {flat:.1f}, "
          f"tree {tree:.1f}, tree tuned {best:.1f}", flush=True)  # fmt: skip
    windows(horizon)


SEVERAL = ((8, 2), (8, 4), (12, 2), (12, 3), (12, 6), (36, 2), (36, 3))


def strategies() -> None:
    """Print the mean variance of cumulative answers for units in several periods, above its certified bound."""
    from dpscale.optimize.time_strategy import plan_time

    for horizon, periods in SEVERAL:
        start = time.process_time()
        plan = plan_time(horizon, ("cumulative",), 0, periods)
        seconds = time.process_time() - start
        print(f"{horizon} periods, units in {periods}: mean variance {plan.mean_variance():.3f}, "
              f"{100 * plan.gap:.3f} % above the bound, {seconds:.2f} CPU s", flush=True)  # fmt: skip


def windows(horizon: int) -> None:
    """Print the cost of a unit in 6 periods under a plan for windows of 3 of a unit in one."""
    from dpscale.optimize.time_strategy import plan_time

    matrix = plan_time(horizon, ("window",), 3).matrix
    print(f"window 3, unit in 6 of {horizon} periods: cost {largest_cost(matrix, 6) / largest_cost(matrix, 1):.2f} "
          "times that of a row", flush=True)  # fmt: skip


def adaptive(name: str = "taxi", horizon: int = 12, epsilon: float = 1.0, seeds: int = 1) -> None:
    """Print the error of adaptive releases of a growing table beside one release and repeated releases."""
    stored = np.load(DATA / "tables" / f"{name}.npz")
    sizes = {str(one): int(size) for one, size in zip(stored["names"], stored["sizes"], strict=True)}
    frame = pd.DataFrame({one: stored["codes"][:, place] for place, one in enumerate(sizes)})
    sets, cost = list(combinations(sizes, 3)), gdp_mu(epsilon, 1e-9) ** 2
    found: dict[str, list[list[float]]] = {"growing": [], "one release": [], "again": []}
    ends = (horizon // 4 - 1, horizon // 2 - 1, horizon - 1)
    for seed in range(seeds):
        month = np.random.default_rng(seed).integers(0, horizon, len(frame))
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            write_months(folder, [frame[month == number] for number in range(horizon)], sizes)
            mechanism = {"mechanism": {"name": "aim-grem"}}
            content = growing(folder, cost, 3, horizon, {"answers": ["cumulative"]}, **mechanism)
            release = dp.run(content, folder / "run")
            rows: dict[str, list[float]] = {kind: [] for kind in found}
            for end in ends:
                part = frame[month <= end]
                truth = {own: counts(part, own, sizes) for own in sets}
                (folder / f"upto{end}").mkdir()
                part.to_parquet(folder / f"upto{end}/part.parquet")
                rows["growing"].append(distance(release.at(label(end), "cumulative").marginal, truth, len(part)))
                for kind, share in (("one release", 1.0), ("again", 1 / horizon)):
                    alone = dp.run(job(folder, cost * share, 3, f"upto{end}", **mechanism), folder / f"{kind}{end}")
                    rows[kind].append(distance(alone.marginal, truth, len(part)))
        for kind in found:
            found[kind].append(rows[kind])
    print(f"{name}, {horizon} months, epsilon {epsilon}: L1 distance of cumulative 3-way tables after months "
          f"{', '.join(str(end + 1) for end in ends)}")  # fmt: skip
    for kind, own in found.items():
        print(f"  {kind:<12} {'  '.join(f'{value:.3f}' for value in np.mean(own, axis=0))}", flush=True)


def distance(marginal: Callable[..., np.ndarray], truth: dict[tuple[str, ...], np.ndarray], rows: int) -> float:
    return float(np.mean([np.abs(marginal(names) - own).sum() / rows for names, own in truth.items()]))


def size(periods: int, attributes: int = 300, rows: int = 2000) -> None:
    """Print seconds and memory of a run of many periods and sets, in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder, rng = Path(name), np.random.default_rng(2)
        sizes = {f"x{number:03d}": 2 + 3 * number // attributes for number in range(attributes)}
        frames = [pd.DataFrame({one: rng.integers(0, own, rows) for one, own in sizes.items()})
                  for _ in range(periods)]  # fmt: skip
        write_months(folder, frames, sizes)
        engine = {"engine": {"memory": MEMORY}}
        content = growing(folder, COST, 2, periods, {"answers": ["cumulative"]}, **engine)
        (folder / "job.json").write_text(json.dumps(content))
        command = [sys.executable, __file__, "horizons"]
        imports = json.loads(subprocess.run([*command, "--import-only"], capture_output=True, text=True,
                                            check=True).stdout)  # fmt: skip
        done = subprocess.run([*command, "--job", str(folder / "job.json")], capture_output=True, text=True,
                              check=True)  # fmt: skip
        found = json.loads(done.stdout)
    print(f"{found['periods']} periods x {attributes * (attributes - 1) // 2:,} sets: {found['seconds']:.0f} s, "
          f"{found['seconds'] / periods:.1f} s a period; answers of the last one {found['answers']:.1f} s; "
          f"largest memory {found['bytes'] / 1e9:.2f} GB, of which imports {imports['bytes'] / 1e9:.2f} GB, "
          f"memory setting {MEMORY}", flush=True)  # fmt: skip


def largest_memory() -> int:
    """Return the largest resident memory of this process since it began; `getrusage` includes that of its parent."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def run_job(path: str) -> None:
    """Release the values of all periods, then write the answers of the last one."""
    folder, began = Path(path).parent, time.perf_counter()
    run = begin_run(read_job(json.loads(Path(path).read_text())), folder / "run")
    for stage in ("plan", "measure"):
        run_stages(run, only=stage)
    measured = time.perf_counter()
    engine = resolve(scheduler="threads")
    run.table.answers_at(run.table.labels[-1], "cumulative").perform("reconstruct", engine)
    engine.close()
    peak = largest_memory()
    print(json.dumps({"seconds": measured - began, "answers": time.perf_counter() - measured, "bytes": peak,
                      "periods": len(run.table.released)}))  # fmt: skip


def print_horizons() -> None:
    """Growing tables: variance over time, units in several periods, adaptive jobs, memory for many periods and sets.

    Variances: a growing table of 90,000 cells with one record in each cell and period on average. "plan" is the
    empirical mean variance of the cumulative counts of all cells over the horizon, relative to that of one release of
    one table at the same cost, both from runs. "again" measures everything again in each period with an equal share,
    from runs at three periods. The trees are simulated: counts of dyadic nodes with Gaussian noise of the same cost,
    estimated by generalised least squares from the nodes that exist at each period, with equal budgets by level and
    with the best ones found. Mixture: period, cumulative and window answers in one plan. Units: persons with a row in
    every period, at the same cost. Adaptive: 3-way tables of a real table from ../shared/data, which is not part of
    dpscale, divided at random into months; L1 distance of the cumulative tables, relative to the number of records,
    beside one release and beside a new release in each month with an equal share. Size: pairs of 300 attributes over
    120 periods in a process of its own.

    Strategies: cumulative answers for units in k of T periods, above the certified bound.

        python benchmarks/periods.py horizons [variances strategies units adaptive size] [--horizons 12 36 60]
            [--periods 120]
    """
    parser = base.command_parser(print_horizons.__doc__)
    parser.add_argument("parts", nargs="*", default=["variances", "strategies", "units", "adaptive", "size"])
    parser.add_argument("--horizons", nargs="*", type=int, default=[12, 36, 60])
    parser.add_argument("--periods", type=int, default=120)
    parser.add_argument("--job")
    parser.add_argument("--import-only", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.import_only:
        print(json.dumps({"bytes": largest_memory()}))
    elif given.job:
        run_job(given.job)
    else:
        acts = {"variances": lambda: variances(given.horizons), "strategies": strategies, "units": units,
                "adaptive": adaptive, "size": lambda: size(given.periods)}  # fmt: skip
        for part in given.parts:
            acts[part]()


EPSILON, DELTA = 1.0, 1e-9
INSTALMENTS = (2, 10)
Job = dict[str, Any]


def epsilon_of_share(parts: int, epsilon: float = EPSILON) -> float:
    """Return the epsilon of one of several equal instalments: squared mu is divided."""
    return float(epsilon_of_mu(gdp_mu(epsilon, DELTA) / math.sqrt(parts), DELTA))


def write_table(table: Table, place: Path) -> None:
    pq.write_table(pa.table(dict(table.columns)), place / "table.parquet")
    attributes = {name: {"kind": "coded", "size": size} for name, size in table.sizes.items()}
    (place / "domain.toml").write_text(tomli_w.dumps({"attributes": attributes}))


def job_of(place: Path, workload: list[Job], mechanism: str, epsilon: float, ledger: str) -> Job:
    return {
        "data": {"path": str(place / "table.parquet"), "domain": str(place / "domain.toml")},
        "privacy": {"epsilon": epsilon, "delta": DELTA, "ledger": str(place / ledger), "dataset": "table"},
        "workload": workload,
        "mechanism": {"name": mechanism},
        "engine": {"scheduler": "threads"},
    }


def measure(run: Any) -> dp.Release:
    """Plan and measure a run; its answers are computed when they are asked for."""
    for stage in ("plan", "measure"):
        run_stages(run, only=stage)
    return dp.Release(run)


def released(place: Path, name: str, workload: list[Job], mechanism: str, parts: int, whole: float) -> dp.Release:
    """Return a release in equal instalments, whose costs add up to that of epsilon `whole`."""
    epsilon = epsilon_of_share(parts, whole)
    job = job_of(place, workload, mechanism, epsilon, f"{name}.sqlite")
    release = measure(begin_run(read_job(job), place / name))
    for _ in range(parts - 1):
        release = measure(start_refinement(plan_refinement(release.path, epsilon)))
    return release


def root_mean_squares(release: dp.Release, table: Table) -> tuple[float, float]:
    """Return the root mean square of the standard errors of all answers, and of their true errors."""
    expected, found = list[np.ndarray](), list[np.ndarray]()
    estimates = release._estimates
    for part in estimates.workload.parts:
        for names in part.sets:
            answers, errors = estimates.part_answers(part, names)
            truth = part.answers(names, table.counts(names).astype(float))
            expected.append(errors.ravel())
            found.append((answers - truth).ravel())
    return tuple(float(np.sqrt(np.mean(np.concatenate(own) ** 2))) for own in (expected, found))  # type: ignore[return-value]


def fixed_top_ups(table: Table, seeds: int) -> Iterator[tuple[str, str]]:
    """Yield the ratios of fixed plans in instalments."""
    for mechanism, workload in (("residual-planner", [{"family": "marginal", "degree": 2}]),
                                ("weighted-residuals", [{"family": "prefix", "degree": 1}])):  # fmt: skip
        found: dict[int, list[tuple[float, float]]] = {parts: [] for parts in (1, *INSTALMENTS)}
        for _ in range(seeds):
            with tempfile.TemporaryDirectory() as name:
                write_table(table, Path(name))
                for parts, own in found.items():
                    release = released(Path(name), f"run{parts}", workload, mechanism, parts, EPSILON)
                    own.append(root_mean_squares(release, table))
        means = {parts: np.sqrt(np.mean(np.square(own), axis=0)) for parts, own in found.items()}
        for parts in INSTALMENTS:
            stated, true = means[parts] / means[1]
            yield f"{table.name}, {mechanism}, {parts} instalments", f"{stated:.4f} stated, {true:.4f} measured"


def workload_top_ups(table: Table) -> Iterator[tuple[str, str]]:
    """Yield the ratios of a second workload that is planned given the first."""
    degrees = {degree: [{"family": "marginal", "degree": degree}] for degree in (1, 2, 3)}
    first = table.names[0]
    some = [list(names) for names in combinations(table.names, 3) if first in names]
    pairs = {
        "2-way, then 3-way": (degrees[2], degrees[3]),
        "3-way, then 2-way": (degrees[3], degrees[2]),
        "1-way, then 2-way": (degrees[1], degrees[2]),
        f"3-way with {first}, then 3-way": ([{"family": "marginal", "attributes": some}], degrees[3]),
        "3-way, then the same": (degrees[3], degrees[3]),
    }
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        write_table(table, place)
        for number, (title, (before, after)) in enumerate(pairs.items()):
            epsilon, file = epsilon_of_share(2), f"pair{number}"
            release = measure(begin_run(read_job(job_of(place, before, "residual-planner", epsilon, f"{file}.sqlite")),
                                        place / file))  # fmt: skip
            job = job_of(place, after, "residual-planner", epsilon, f"{file}.sqlite")
            pooled = measure(start_refinement(plan_refinement(release.path, epsilon, job=job)))
            one = released(place, f"one{number}", after, "residual-planner", 1, EPSILON)
            ratio = _stated(pooled) / _stated(one)
            yield f"{table.name}, {title}", f"{ratio:.4f} (blind {_blind(release, job, one):.4f})"


def _stated(release: dp.Release) -> float:
    """Return the root of the mean variance of the queries of a release."""
    estimates = release._estimates
    parts = [(part, names) for part in estimates.workload.parts for names in part.sets]
    total = math.fsum(estimates.accuracy.summed_variance(part, names) for part, names in parts)
    return math.sqrt(total / estimates.workload.query_count)


def _blind(first: dp.Release, job: Job, one: dp.Release) -> float:
    """Return the ratio of a second release that is planned without the first, from the precisions of the residuals."""
    from dpscale.mechanisms.matrix_mechanism import FixedPlan, pool_residual_plans

    evidence, plan = first._run.table.measurements.evidence(), one._run.table.measurement_plan
    read = read_job(job)
    again = FixedPlan(plan.plan, read.table.planning_problem(plan.workload))
    pool = pool_residual_plans(evidence.plan, evidence.variances, again.plan, again.draws.variances)
    return float(pool.plan.rmse(pool.budget) / _stated(one))


def adaptive_top_ups(table: Table, seeds: int, whole: float = EPSILON) -> Iterator[tuple[str, str]]:
    """Yield the ratios of an adaptive release in instalments."""
    errors: dict[int, list[float]] = {parts: [] for parts in (1, *INSTALMENTS)}
    for _ in range(seeds):
        with tempfile.TemporaryDirectory() as name:
            write_table(table, Path(name))
            for parts, own in errors.items():
                workload = [{"family": "marginal", "degree": 3}]
                release = released(Path(name), f"run{parts}", workload, "aim-grem", parts, whole)
                own.append(table.error(release.marginal))
    one = float(np.mean(errors[1]))
    yield f"{table.name}, aim-grem, one release", f"L1 error / N {one:.4f}"
    for parts in INSTALMENTS:
        spread = float(np.std(errors[parts])) / one
        yield f"{table.name}, aim-grem, {parts} instalments", f"{np.mean(errors[parts]) / one:.4f} (sd {spread:.4f})"


def composed_releases() -> Iterator[tuple[str, str]]:
    """Yield the epsilon of two releases at epsilon 0.5."""
    epsilon = epsilon_of_mu(gdp_mu(0.5, DELTA) * math.sqrt(2), DELTA)
    yield "two releases at epsilon 0.5 together", f"epsilon {epsilon:.4f}"


def print_top_ups() -> None:
    """Releases that are refined with more budget, as ratios to one release at the summed cost in the same run.

    Every figure is from runs of the product at epsilon 1 and delta 1e-9 in total, unless the line says otherwise; a
    ratio of 1 means that the instalments lose nothing. Tables are real ones of ../shared/data, which are not part of
    dpscale.

        python benchmarks/periods.py top_ups [fixed workloads adaptive] [--tables adult acs salary] [--seeds 3]

    - *fixed*: all 2-way marginals by residual-planner, and 1-way prefix sums by weighted-residuals, in 2 and 10 equal
      instalments: root mean square error over all answers, according to the standard errors and measured.
    - *workloads*: a first workload, then another one with `--job`, two equal costs: root mean square error of the
      second workload. "blind" is the error of a second release that is planned without the first and pooled with it.
    - *adaptive*: aim-grem over all 3-way marginals in 2 and 10 equal instalments: mean L1 error of a 3-way marginal.
    """
    parser = base.command_parser(print_top_ups.__doc__)
    parser.add_argument("blocks", nargs="*", default=["fixed", "workloads", "adaptive"])
    parser.add_argument("--tables", nargs="+", default=["adult", "acs", "salary"])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    tables = [table for name in given.tables if (table := load_table(name, DATA)) is not None]
    if not tables:
        raise SystemExit("no table: ../shared/data is absent")
    lines = list(composed_releases())
    for label, value in lines:
        print(f"{label:55} {value}", flush=True)
    blocks = {"fixed": lambda table: fixed_top_ups(table, given.seeds), "workloads": workload_top_ups,
              "adaptive": lambda table: adaptive_top_ups(table, given.seeds)}  # fmt: skip
    for block in given.blocks:
        for table in tables if block == "adaptive" else tables[:1]:
            for label, value in blocks[block](table):
                print(f"{label:55} {value}", flush=True)


COMMANDS = {
    "horizons": print_horizons,
    "top_ups": print_top_ups,
}

if __name__ == "__main__":
    base.run_command(COMMANDS, __doc__)
