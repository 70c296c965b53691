"""Parallelism of product strategies: the union of ten products over eight attributes, on a model of many workers.

Every sweep of OPT⊗ maps the surrogates of all attributes and starts; OPT+ also those of all groups. The times of the
tasks are measured one after the other on one core. A list scheduler then assigns the tasks of a sweep in order to the
first idle worker, and the next sweep starts when all have ended. Printed: the mean number of busy workers (seconds of
tasks over seconds of the search), the speed-up of the search, and the problems that were shared.

    python benchmarks/product_tasks.py [--workers 1 8 16 24 64] [--size 64]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from heapq import heapify, heapreplace
from typing import Any

import numpy as np

from dpscale import Domain, Workload
from dpscale.base.numerics import one_thread
from dpscale.optimize.implicit_workload import Implicit, implicit
from dpscale.optimize.opt_kronecker import optimise_product, optimise_union


def union_of_ten(size: int) -> Implicit:
    """Return ten products of prefix and range queries over some of eight attributes of about `size` cells."""
    rng = np.random.default_rng(0)
    workload = Workload(Domain({f"x{i}": size + i for i in range(8)}))
    for number in range(10):
        names = [name for name in workload.domain.names if rng.random() < 0.6]
        workload.add("range" if number % 2 else "prefix", attributes=[names])
    return implicit(workload)


def timed(sweeps: list[list[float]]) -> Callable[[Callable[[Any], Any], Iterable[Any]], list[Any]]:
    """Return a serial map that notes the seconds of its tasks, one list for each call."""

    def each(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
        results, seconds = [], []
        for item in items:
            start = time.perf_counter()
            results.append(function(item))
            seconds.append(time.perf_counter() - start)
        sweeps.append(seconds)
        return results

    return each


def makespan(seconds: list[float], workers: int) -> float:
    """Return the time of a list scheduler for independent tasks."""
    free = [0.0] * workers
    heapify(free)
    for own in seconds:
        heapreplace(free, free[0] + own)
    return max(free)


def show(name: str, sweeps: list[list[float]], workers: list[int]) -> None:
    """Print the number of tasks and, for every number of workers, those that are busy."""
    work, tasks = sum(map(sum, sweeps)), [len(one) for one in sweeps]
    print(f"{name}: {sum(tasks)} tasks in {len(sweeps)} calls ({tasks[0]} in the first), {work:.2f} s")
    for number in workers:
        whole = sum(makespan(one, number) for one in sweeps)
        print(f"    {number:3} workers: {work / whole:5.1f} busy, {whole:.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 8, 16, 24, 64])
    parser.add_argument("--size", type=int, default=64)
    given = parser.parse_args()
    union = union_of_ten(given.size)
    for noise in ("gaussian", "laplace"):
        together: list[list[float]] = []
        for name, search in (("OPT⊗", optimise_product), ("OPT+", optimise_union)):
            sweeps: list[list[float]] = []
            with one_thread():
                search(union, noise, timed(sweeps))
            together += sweeps
            show(f"{name} {noise}", sweeps, given.workers)
        show(f"both, as hdmm searches, {noise}", together, given.workers)


if __name__ == "__main__":
    main()
