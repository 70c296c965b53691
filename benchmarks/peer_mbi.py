"""A peer of benchmarks/adaptive.py: a plain AIM loop (McKenna et al. 2022) on the estimator of `mbi` from PyPI.

Run by another Python, where `mbi` is installed; dpscale is not needed there. Its noise is numpy's: a benchmark, not a
release. Counting is left out of the seconds. Prints one line of JSON.

What the model says of a candidate is counted from ROWS sampled rows: exact projections are compiled one by one by JAX,
which takes minutes a round. The answers at the end are from LAST_ROWS. The compilation cache is off, as mbi advises.

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
from marginal_tables import DATA, Table, real, subsets_of  # noqa: E402

ROUNDS_PER_ATTRIBUTE, SELECTING, MODEL_MB, STEPS, LAST_STEPS = 16, 0.1, 80, 200, 1000
ROWS, LAST_ROWS = 100_000, 1_000_000
NOISE_L1 = np.sqrt(2 / np.pi)


class Aim:
    """The loop's state. `seconds` leaves counting out."""

    def __init__(self, table: Table, rho: float, seed: int, limit: float) -> None:
        self.table, self.rho, self.random, self.limit = table, rho, np.random.default_rng(seed), limit
        self.domain = mbi.Domain(table.names, list(table.sizes.values()))
        closure = {kept for target in table.targets for kept in subsets_of(target) if kept}
        held = [set(target) for target in table.targets]
        self.weights = {kept: sum(len(own & set(kept)) for own in held) for kept in closure}
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

    def estimated(self, before: mbi.Model | None, steps: int) -> mbi.Model:
        return mbi.estimation.MirrorDescent().estimate(self.domain, self.measured, iters=steps, warm_start=before)

    def chosen(self, model: mbi.Model) -> tuple[str, ...]:
        """By the exponential mechanism, among what keeps the junction tree within its share of MODEL_MB."""
        said = answers(model, self.table, ROWS)
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
                * (np.abs(self.table.counts(names) - said(names)).sum() - penalty * self.domain.size(names))
                for names in free
            ]
        )
        scaled = self.epsilon * scores / (2 * max(self.weights.values()))
        return free[int(np.argmax(scaled + self.random.gumbel(size=len(free))))]

    def run(self) -> mbi.Model:
        started = time.perf_counter()
        for name in self.table.names:
            self.measure((name,))
        model, last = self.estimated(None, STEPS), False
        while not last and not self.stopped:
            left = self.rho - self.spent
            if left < 2 * (0.5 / self.variance + self.epsilon**2 / 8):
                self.variance, last = 1 / (2 * (1 - SELECTING) * left), True
                self.epsilon = np.sqrt(8 * SELECTING * left)
            names = self.chosen(model)
            self.spent += self.epsilon**2 / 8
            before = answer(model, names)
            self.measure(names)
            model = self.estimated(model, STEPS)
            self.taken += 1
            moved = np.abs(answer(model, names) - before).sum()
            if moved <= NOISE_L1 * np.sqrt(self.variance) * self.domain.size(names):
                self.variance, self.epsilon = self.variance / 4, self.epsilon * 2
            self.stopped = not last and time.perf_counter() - started > self.limit
        return self.estimated(model, LAST_STEPS)


def answer(model: mbi.Model, names: tuple[str, ...]) -> np.ndarray:
    return np.asarray(model.project(names).datavector())


def answers(model: mbi.Model, table: Table, rows: int) -> Callable[[tuple[str, ...]], np.ndarray]:
    """Marginals as rows sampled from the model have them."""
    sampled = model.synthetic_data(rows).data
    codes = np.stack([np.asarray(sampled[name]) for name in table.names], axis=1)
    held = Table("sampled", table.sizes, codes, 0)
    return lambda names: held.counts(names) * (float(model.total) / rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table")
    parser.add_argument("rho", type=float)
    parser.add_argument("seed", type=int)
    parser.add_argument("--limit", type=float, default=300)
    parser.add_argument("--data", type=Path, default=DATA)
    asked = parser.parse_args()
    table = real(asked.table, asked.data)
    assert table is not None
    aim = Aim(table, asked.rho, asked.seed, asked.limit)
    for names in aim.weights:
        table.counts(names)
    started = time.perf_counter()
    model = aim.run()
    seconds = time.perf_counter() - started
    error = table.error(answers(model, table, LAST_ROWS))
    told = {"error": error, "seconds": seconds, "rounds": aim.taken, "spent": aim.spent / aim.rho}
    print(json.dumps({**told, "stopped": aim.stopped}))


if __name__ == "__main__":
    main()
