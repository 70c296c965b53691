"""Releases that are refined with more budget, as ratios to one release at the summed cost in the same run.

Every figure is from runs of the product at epsilon 1 and delta 1e-9 in total, unless the line says otherwise; a ratio
of 1 means that the instalments lose nothing. Tables are real ones of ../shared/data, which are not part of dpscale.

    python benchmarks/top_ups.py [fixed workloads adaptive] [--tables adult acs salary] [--seeds 3]

- *fixed*: all 2-way marginals by residual-planner, and 1-way prefix sums by weighted-residuals, in 2 and 10 equal
  instalments: root mean square error over all answers, according to the standard errors and measured.
- *workloads*: a first workload, then another one with `--job`, two equal costs: root mean square error of the second
  workload. "blind" is the error of a second release that is planned without the first and pooled with it.
- *adaptive*: aim-grem over all 3-way marginals in 2 and 10 equal instalments: mean L1 error of a 3-way marginal.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tomli_w
from base import DATA, Table, load_table

import dpscale as dp
from dpscale.privacy import gdp_mu
from dpscale.privacy.conversion import epsilon_of_mu
from dpscale.runs.opening import begin_run, read_job
from dpscale.runs.refine import plan_refinement, start_refinement
from tests.running import run_stages

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


def fixed(table: Table, seeds: int) -> Iterator[tuple[str, str]]:
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


def workloads(table: Table) -> Iterator[tuple[str, str]]:
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

    evidence, plan = first._run.measurements.evidence(), one._run.measurement_plan
    read = read_job(job)
    again = FixedPlan(plan.plan, read.table.planning_problem(plan.workload))
    pool = pool_residual_plans(evidence.plan, evidence.variances, again.plan, again.draws.variances)
    return float(pool.plan.rmse(pool.budget) / _stated(one))


def adaptive(table: Table, seeds: int, whole: float = EPSILON) -> Iterator[tuple[str, str]]:
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


def composed() -> Iterator[tuple[str, str]]:
    """Yield the epsilon of two releases at epsilon 0.5."""
    epsilon = epsilon_of_mu(gdp_mu(0.5, DELTA) * math.sqrt(2), DELTA)
    yield "two releases at epsilon 0.5 together", f"epsilon {epsilon:.4f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("blocks", nargs="*", default=["fixed", "workloads", "adaptive"])
    parser.add_argument("--tables", nargs="+", default=["adult", "acs", "salary"])
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args(arguments)
    tables = [table for name in given.tables if (table := load_table(name, DATA)) is not None]
    if not tables:
        raise SystemExit("no table: ../shared/data is absent")
    lines = list(composed())
    for label, value in lines:
        print(f"{label:55} {value}", flush=True)
    blocks = {"fixed": lambda table: fixed(table, given.seeds), "workloads": workloads,
              "adaptive": lambda table: adaptive(table, given.seeds)}  # fmt: skip
    for block in given.blocks:
        for table in tables if block == "adaptive" else tables[:1]:
            for label, value in blocks[block](table):
                print(f"{label:55} {value}", flush=True)


if __name__ == "__main__":
    main()
