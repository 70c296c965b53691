"""Peers on the estimator of `mbi` from PyPI: a plain AIM loop (McKenna et al. 2022), and a fit of given measurements.

Run by benchmarks/adaptive.py and benchmarks/graphical.py in another Python with `mbi`; dpscale is
not needed there. The noise of the loop is numpy's: a benchmark, not a release. Its seconds exclude counting. Each
prints one line of JSON.

The model's marginal of a candidate is counted from ROWS sampled rows: JAX compiles exact projections one by one, which
takes minutes a round. The final answers are from LAST_ROWS rows. The compilation cache is off, as mbi advises.

    PYTHON benchmarks/rivals/peer.py aim TABLE RHO SEED --limit SECONDS [--data FOLDER]
    PYTHON benchmarks/rivals/peer.py fit MEASUREMENTS.pickle ROWS.npy [--steps 1000]
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_enable_compilation_cache", False)
import jax.numpy as jnp  # noqa: E402
import mbi  # noqa: E402
import numpy as np  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1]))
from base import DATA, Table, command_parser, load_table, run_command, subsets_of  # noqa: E402

ROUNDS_PER_ATTRIBUTE, SELECTING, MODEL_MB, STEPS, LAST_STEPS = 16, 0.1, 80, 200, 1000
ROWS, LAST_ROWS = 100_000, 1_000_000
NOISE_L1 = np.sqrt(2 / np.pi)


class Aim:
    """The state of the loop. `seconds` excludes counting."""

    def __init__(self, table: Table, rho: float, seed: int, limit: float) -> None:
        self.table, self.rho, self.random, self.limit = table, rho, np.random.default_rng(seed), limit
        self.domain = mbi.Domain(table.names, list(table.sizes.values()))
        closure = {subset for target in table.targets for subset in subsets_of(target) if subset}
        targets = [set(target) for target in table.targets]
        self.weights = {subset: sum(len(own & set(subset)) for own in targets) for subset in closure}
        self.rounds = ROUNDS_PER_ATTRIBUTE * len(table.names)
        self.variance = self.rounds / (2 * (1 - SELECTING) * rho)
        self.epsilon = np.sqrt(8 * SELECTING * rho / self.rounds)
        self.measured: list[mbi.LinearMeasurement] = []
        self.spent, self.taken, self.stopped = 0.0, 0, False

    def measure(self, names: tuple[str, ...]) -> None:
        deviation = float(np.sqrt(self.variance))
        noisy = self.table.counts(names).ravel() + self.random.normal(0, deviation, self.domain.size(names))
        self.measured.append(mbi.LinearMeasurement(noisy, names, deviation))
        self.spent += 0.5 / self.variance

    def estimate(self, before: mbi.Model | None, steps: int) -> mbi.Model:
        return mbi.estimation.MirrorDescent().estimate(self.domain, self.measured, iters=steps, warm_start=before)

    def select(self, model: mbi.Model) -> tuple[str, ...]:
        """Select by the exponential mechanism, among candidates with a junction tree within their share of MODEL_MB."""
        marginal = sampled_answers(model, self.table, ROWS)
        cliques, room = [own.clique for own in self.measured], MODEL_MB * min(1.0, self.spent / self.rho)
        free = [
            names
            for names in self.weights
            if len(names) == 1 or mbi.junction_tree.hypothetical_model_size(self.domain, [*cliques, names]) <= room
        ]
        penalty = NOISE_L1 * np.sqrt(self.variance)
        scores = np.array(
            [
                self.weights[names]
                * (np.abs(self.table.counts(names) - marginal(names)).sum() - penalty * self.domain.size(names))
                for names in free
            ]
        )
        scaled = self.epsilon * scores / (2 * max(self.weights.values()))
        return free[int(np.argmax(scaled + self.random.gumbel(size=len(free))))]

    def run(self) -> mbi.Model:
        started = time.perf_counter()
        for name in self.table.names:
            self.measure((name,))
        model, last = self.estimate(None, STEPS), False
        while not last and not self.stopped:
            left = self.rho - self.spent
            if left < 2 * (0.5 / self.variance + self.epsilon**2 / 8):
                self.variance, last = 1 / (2 * (1 - SELECTING) * left), True
                self.epsilon = np.sqrt(8 * SELECTING * left)
            names = self.select(model)
            self.spent += self.epsilon**2 / 8
            before = project(model, names)
            self.measure(names)
            model = self.estimate(model, STEPS)
            self.taken += 1
            moved = np.abs(project(model, names) - before).sum()
            if moved <= NOISE_L1 * np.sqrt(self.variance) * self.domain.size(names):
                self.variance, self.epsilon = self.variance / 4, self.epsilon * 2
            self.stopped = not last and time.perf_counter() - started > self.limit
        return self.estimate(model, LAST_STEPS)


def project(model: mbi.Model, names: tuple[str, ...]) -> np.ndarray:
    return np.asarray(model.project(names).datavector())


def sampled_answers(model: mbi.Model, table: Table, rows: int) -> Callable[[tuple[str, ...]], np.ndarray]:
    """Return marginals of rows sampled from the model."""
    sampled = model.synthetic_data(rows).data
    codes = np.stack([np.asarray(sampled[name]) for name in table.names], axis=1)
    counted = Table("sampled", table.sizes, codes, 0)
    return lambda names: counted.counts(names) * (float(model.total) / rows)


def print_aim() -> None:
    """Print error and seconds of a plain AIM loop.

    PYTHON benchmarks/rivals/peer.py aim TABLE RHO SEED --limit SECONDS [--data FOLDER]
    """
    parser = command_parser(print_aim.__doc__)
    parser.add_argument("table")
    parser.add_argument("rho", type=float)
    parser.add_argument("seed", type=int)
    parser.add_argument("--limit", type=float, default=300)
    parser.add_argument("--data", type=Path, default=DATA)
    arguments = parser.parse_args()
    table = load_table(arguments.table, arguments.data)
    assert table is not None
    aim = Aim(table, arguments.rho, arguments.seed, arguments.limit)
    for names in aim.weights:
        table.counts(names)
    started = time.perf_counter()
    model = aim.run()
    seconds = time.perf_counter() - started
    error = table.error(sampled_answers(model, table, LAST_ROWS))
    figures = {"error": error, "seconds": seconds, "rounds": aim.taken, "spent": aim.spent / aim.rho}
    print(json.dumps({**figures, "stopped": aim.stopped}))


class AxisQuery:
    """A query with a matrix along each axis of a marginal."""

    def __init__(self, matrices: list[np.ndarray]) -> None:
        self.matrices = matrices

    def __call__(self, factor: mbi.Factor) -> jax.Array:
        table = factor.datavector(flatten=False)
        for axis, matrix in enumerate(self.matrices):
            table = jnp.moveaxis(jnp.tensordot(matrix, table, axes=(1, axis)), 0, axis)
        return table.ravel()


def make_measurement(names: tuple[str, ...], matrices: list[np.ndarray] | None, values: np.ndarray, deviation: float):
    if matrices is None:
        return mbi.LinearMeasurement(values.ravel(), names, deviation)
    return mbi.LinearMeasurement(values.ravel(), names, deviation, query=AxisQuery(matrices))


def print_fit() -> None:
    """Print seconds of the fit (with compilation, and a second time without) and of the rows.

    PYTHON benchmarks/rivals/peer.py fit MEASUREMENTS.pickle ROWS.npy [--steps 1000]
    """
    parser = command_parser(print_fit.__doc__)
    parser.add_argument("measurements")
    parser.add_argument("rows")
    parser.add_argument("--steps", type=int, default=1000)
    arguments = parser.parse_args()
    with open(arguments.measurements, "rb") as file:
        sizes, contents, total = pickle.load(file)
    domain = mbi.Domain(list(sizes), list(sizes.values()))
    measured = [make_measurement(*one) for one in contents]
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        model = mbi.estimation.MirrorDescent().estimate(domain, measured, iters=arguments.steps)
        jax.block_until_ready(model.potentials)
        seconds.append(time.perf_counter() - began)
    began = time.perf_counter()
    sampled = model.synthetic_data(round(total)).data
    rows = np.stack([np.asarray(sampled[name]) for name in sizes], axis=1)
    drawing = time.perf_counter() - began
    np.save(arguments.rows, rows.astype(np.int32))
    print(json.dumps({"fit": seconds[0], "fit again": seconds[1], "rows": drawing}))


if __name__ == "__main__":
    run_command({"aim": print_aim, "fit": print_fit}, __doc__)
