"""Whole linked databases: the error of linked rows, beside random links between tables that are released apart.

For every database, ε (δ = 1e-5) and seed, dpscale releases all tables and links from one job without shares, and the
tables alone with equal shares of the same budget, whose rows are then linked at random: every child to a parent, or as
many pairs as there are. Errors are mean total variations over all marginals of two attributes of one end of a link and
one of the other, against the links within the bounds of the job, as a ratio; distances of degrees are Kolmogorov's. The
same job with equal shares of tables and links is `equal`, which was the division of versions before this one.

    python benchmarks/linked_tables.py [--data 100K 1M berka chinook generated] [--epsilons 0.5 1 2 4] [--seeds 5]
        [--equal]       also with equal shares
        [--chains]      rentals at ε = 1 and 4, also with shares that ignore chains of two links; with --save no others
        [--chained chinook]  this database instead, at the given --epsilons
        [--save]        save the figures of --chains in results/
        [--also histories link_scale]  also these benchmarks, of rows in order and of many links, in the same run
        [--hma PYTHON]  also SDV's HMA, which is not private, once, with an interpreter that has SDV (`hma_rows.py`)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import PropertyMock, patch

import base
import dask.dataframe
import numpy as np
from linked_data import DATA, DATABASES, PIPELINES, Job, make_database

sys.path.insert(0, str(PIPELINES))

from databases import cells, released_job, sizes, variation

import dpscale as dp
from dpscale import job as dp_job
from dpscale.base.numerics import one_thread
from dpscale.engine.schedulers import resolve
from dpscale.job.allocation import Divisible
from dpscale.job.neighbours import neighbour_relation
from dpscale.job.sdv import metadata
from dpscale.job.sections import LinkSection, LinkShare
from dpscale.runs.links.link_data import ExactLinks, read_links

DELTA, EPSILONS, APART = 1e-5, (0.5, 1.0, 2.0, 4.0), 1e-4
CHAIN_EPSILONS = (1.0, 4.0)
Figures = dict[str, tuple[float, float]]


class Measured:
    """Links of a database within the bounds of its job."""

    def __init__(self, content: Job) -> None:
        self.content = content
        self.job = dp_job.Job.parse(content | {"privacy": {"privacy_cost": 1.0, "dataset": "benchmark"}}, Path())
        self.links = read_all(self.job)

    def job_at(self, epsilon: float, seed: int, folder: str, method: str = "planned") -> dp_job.Job:
        privacy = {"epsilon": epsilon, "delta": DELTA, "ledger": f"{folder}/ledger.sqlite", "dataset": "benchmark"}
        engine = {"scheduler": "synchronous", "seed": seed}
        sections = {"privacy": privacy, "engine": engine, "budget": {"method": method}}
        return dp_job.Job.parse(self.content | sections, Path())

    def apart(self, epsilon: float, seed: int, folder: str) -> dp_job.Job:
        """Return a job whose tables have nearly all of the budget."""
        job = self.job_at(epsilon, seed, folder, "equal")
        links = [one.model_copy(update={"mechanism": "maxent"}) for one in job.link]
        shares = {one.called: LinkShare(share=APART) for one in job.link}
        budget = job.budget.model_copy(update={"links": shares})
        return job.model_copy(update={"link": links, "budget": budget})

    def figures(self, released: dict[str, ExactLinks], rng: np.random.Generator | None = None) -> Figures:
        """Return error and distance of degrees of every link, with random links if `rng` is given."""
        found, rows = {}, {}
        for link in self.job.link:
            true, made = self.links[link.called], released[link.called]
            own = rows[link.called] = made.rows if rng is None else _random(link, made, len(true.rows), rng)
            error = variation(cells(true, true.rows), cells(made, own), sizes(self.job, link))
            found[link.called] = error, _distance(true, true.rows, made, own)

        for one, two in two_steps(self.job):
            ends = [_joined(links[one.called], links[two.called], own[one.called], own[two.called])
                    for links, own in ((self.links, {name: made.rows for name, made in self.links.items()}),
                                       (released, rows))]  # fmt: skip
            of = sizes(self.job, one)[0], sizes(self.job, two)[1]
            found[f"{one.parent} to {two.child}"] = variation(*ends, of), 0.0
        return found


def two_steps(job: dp_job.Job) -> list[tuple[LinkSection, LinkSection]]:
    """Return the pairs of links from a table to the children of its children."""
    return [(one, two) for one in job.link for two in job.link
            if one.child == two.parent != one.parent and not one.via and not two.via]  # fmt: skip


def _joined(one: ExactLinks, two: ExactLinks, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows at both ends of two links, of the children that have both."""
    above = np.full(len(one.children), -1)
    above[first[:, 1]] = first[:, 0]
    ends = np.c_[above[second[:, 0]], second[:, 1]]
    ends = ends[ends[:, 0] >= 0]
    return one.parents[ends[:, 0]], two.children[ends[:, 1]]


def read_all(job: dp_job.Job) -> dict[str, ExactLinks]:
    engine = resolve(scheduler="synchronous")
    try:
        return {link.called: read_links(engine, job, link, neighbour_relation(job)) for link in job.link}
    finally:
        engine.close()


def _random(link: LinkSection, made: ExactLinks, count: int, rng: np.random.Generator) -> np.ndarray:
    children = np.arange(len(made.children)) if link.via is None else rng.integers(0, max(len(made.children), 1), count)
    return np.stack([rng.integers(0, max(len(made.parents), 1), len(children)), children], axis=1)


def _distance(true: ExactLinks, links: np.ndarray, made: ExactLinks, rows: np.ndarray) -> float:
    """Return the Kolmogorov distance of the degrees of parents."""
    shares = [np.bincount(np.bincount(own[:, 0], minlength=len(one.parents))) / max(len(one.parents), 1)
              for one, own in ((true, links), (made, rows))]  # fmt: skip
    most = max(map(len, shares))
    first, second = (np.cumsum(np.pad(own, (0, most - len(own)))) for own in shares)
    return float(np.abs(first - second).max())


def release(job: dp_job.Job, folder: str) -> dict[str, ExactLinks]:
    """Run a job and return the links of the released tables."""
    return read_all(released_job(job, dp.run(job.to_dict(), f"{folder}/run")))


def hma(measured: Measured, python: str, seconds: int) -> Figures | str:
    """Return the figures of SDV's HMA on the data, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        place, job = Path(folder), measured.job
        sources = {name: one.path for name, one in job.tables.items()}
        sources |= {link.called: link.via for link in job.link if link.via}
        for name, source in sources.items():
            dask.dataframe.read_parquet(source).compute().to_parquet(place / f"{name}.parquet")
        (place / "metadata.json").write_text(json.dumps(metadata(job)))
        try:
            done = subprocess.run([python, str(Path(__file__).with_name("hma_rows.py")), folder], capture_output=True,
                                  text=True, timeout=seconds, env=os.environ | {"PYTHONPATH": ""})  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"not finished in {seconds} s"
        if done.returncode:
            return next((line for line in done.stderr.splitlines() if "Error: " in line), "failed")
        tables = {name: one.model_copy(update={"path": str(place / "hma" / f"{name}.parquet")})
                  for name, one in job.tables.items()}  # fmt: skip
        dropped = {"nulls": "drop", "dangling": "drop"}
        files = {
            one.called: {"via": str(place / "hma" / f"{one.called}.parquet")} if one.via else {} for one in job.link
        }
        links = [one.model_copy(update=dropped | files[one.called]) for one in job.link]
        try:
            return measured.figures(read_all(job.model_copy(update={"tables": tables, "link": links})))
        except dp.DpscaleError as error:
            return str(error)


def trials(measured: Measured, epsilon: float, seeds: int, also: Sequence[str] = ()) -> Iterator[dict[str, Figures]]:
    """Yield the figures of each seed by kind of release."""
    for seed in range(seeds):
        found = {}
        for kind in ("ours", "random", *also):
            with tempfile.TemporaryDirectory() as folder:
                if kind == "random":
                    links = release(measured.apart(epsilon, seed, folder), folder)
                    found[kind] = measured.figures(links, np.random.default_rng(seed))
                elif kind == "links":
                    with patch.object(Divisible, "chains", new_callable=PropertyMock, return_value={}):
                        found[kind] = measured.figures(release(measured.job_at(epsilon, seed, folder), folder))
                else:
                    method = "equal" if kind == "equal" else "planned"
                    found[kind] = measured.figures(release(measured.job_at(epsilon, seed, folder, method), folder))
        yield found


def summary(found: Sequence[dict[str, Figures]], kind: str) -> dict[str, Any]:
    """Return the mean errors and ratios of every link, their geometric mean, and the excess of degree distances."""
    names = list(found[0]["random"])
    links = [name for name in names if " to " not in name]  # names of links have no spaces
    mean = {one: {link: np.mean([seed[one][link] for seed in found], axis=0) for link in links}
            for one in (kind, "random")}  # fmt: skip
    chains = {name: float(np.mean([seed[kind][name][0] for seed in found]) / np.mean(
        [seed["random"][name][0] for seed in found])) for name in names if name not in links}  # fmt: skip
    ratios = {link: float(mean[kind][link][0] / mean["random"][link][0]) for link in links}
    excess = {link: float(mean[kind][link][1] - mean["random"][link][1]) for link in links}
    errors = {link: float(mean[kind][link][0]) for link in links}
    return {"ratios": ratios, "geometric": float(np.exp(np.mean(np.log(list(ratios.values()))))),
            "excess": max(excess.values()), "chains": chains, "errors": errors}  # fmt: skip


def print_chains(seeds: int, database: str, epsilons: Sequence[float]) -> dict[str, float]:
    """Print and return the errors of links and of both links in a chain, and the seeds above random links."""
    found, kinds = {}, ("ours", "links", "random")
    with tempfile.TemporaryDirectory() as folder:
        measured = Measured(make_database(database, Path(folder)))
        for epsilon in epsilons:
            runs = list(trials(measured, epsilon, seeds, ("links",)))
            for kind in ("ours", "links"):
                one = summary(runs, kind)
                print(
                    f"{database}, ε = {epsilon:g}, {kind}: geometric mean over links {one['geometric']:.3f} of random, "
                    + ", ".join(f"{name} {ratio:.3f}" for name, ratio in one["chains"].items()),
                    flush=True,
                )
            for link in runs[0]["random"]:
                errors = {kind: [run[kind][link][0] for run in runs] for kind in kinds}
                found |= {f"{link}, {kind}, {epsilon:g}": float(np.mean(own)) for kind, own in errors.items()}
                print(f"{link}, ε = {epsilon:g}: " + ", ".join(
                    f"{kind} {np.mean(own):.4f} ({' '.join(f'{one:.4f}' for one in own)})"
                    for kind, own in errors.items()), flush=True)  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", default=list(DATABASES), choices=DATABASES)
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--equal", action="store_true", help="also with equal shares")
    parser.add_argument("--chains", action="store_true", help="generated rentals alone")
    parser.add_argument("--chained", default="rentals", help="database of --chains")
    parser.add_argument("--save", action="store_true", help="save the figures of --chains")
    parser.add_argument("--also", nargs="*", default=[], choices=["histories", "link_scale"])
    parser.add_argument("--hma", help="an interpreter that has SDV")
    parser.add_argument("--hma-seconds", type=int, default=1800)
    arguments = parser.parse_args()
    if arguments.save and arguments.chained != "rentals":
        parser.error("--save is of the rentals")
    if arguments.chains:
        with one_thread():
            own = arguments.chained != "rentals"
            found = print_chains(arguments.seeds, arguments.chained, arguments.epsilons if own else CHAIN_EPSILONS)
        if arguments.save:
            base.save("linked_chains", found)
        return
    if not DATA.exists():
        raise SystemExit(f"{DATA} is not there: real data does not travel with dpscale")
    with one_thread():
        for name in arguments.data:
            with tempfile.TemporaryDirectory() as folder:
                measured = Measured(make_database(name, Path(folder)))
                if arguments.hma:
                    start, found = time.perf_counter(), hma(measured, arguments.hma, arguments.hma_seconds)
                    errors = (
                        found
                        if isinstance(found, str)
                        else ", ".join(
                            f"{link} {error:.3f} (degrees {distance:.3f})" for link, (error, distance) in found.items()
                        )
                    )
                    print(f"{name}, HMA, not private: {errors} ({time.perf_counter() - start:.0f} s)", flush=True)
                for epsilon in arguments.epsilons:
                    start = time.perf_counter()
                    found = list(trials(measured, epsilon, arguments.seeds, ["equal"] if arguments.equal else []))
                    for kind in ("ours", *(["equal"] if arguments.equal else [])):
                        one = summary(found, kind)
                        each = ", ".join(f"{link} {one['errors'][link]:.3f} ({ratio:.2f})"
                                         for link, ratio in one["ratios"].items())  # fmt: skip
                        each += "".join(f", {chain} ({ratio:.2f})" for chain, ratio in one["chains"].items())
                        print(f"{name}, ε = {epsilon:g}, {kind}: geometric mean {one['geometric']:.3f}, largest "
                              f"{max(one['ratios'].values()):.3f}, degrees beyond random {one['excess']:+.3f}: {each} "
                              f"({time.perf_counter() - start:.0f} s)", flush=True)  # fmt: skip
    run_others(arguments.also)


def run_others(names: Sequence[str]) -> None:
    """Run other benchmarks of linked tables with their defaults."""
    for name in names:
        subprocess.run([sys.executable, str(Path(__file__).with_name(f"{name}.py"))], check=True)


if __name__ == "__main__":
    main()
