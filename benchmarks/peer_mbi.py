"""A peer of benchmarks/adaptive.py: a plain AIM loop (McKenna et al. 2022) on the estimator of `mbi` from PyPI.

Runs in another Python with `mbi`; dpscale is not needed there. Its noise is numpy's: a benchmark, not a release. The
seconds exclude counting. Prints one line of JSON.

The model's marginal of a candidate is counted from ROWS sampled rows: JAX compiles exact projections one by one, which
takes minutes a round. The final answers are from LAST_ROWS rows. The compilation cache is off, as mbi advises.

    PYTHON benchmarks/peer_mbi.py TABLE RHO SEED --limit SECONDS [--data FOLDER]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import jax

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_enable_compilation_cache", False)
import mbi  # noqa: E402
import numpy as np  # noqa: E402
from base import DATA, Table, load_table, subsets_of  # noqa: E402

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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


if __name__ == "__main__":
    main()
