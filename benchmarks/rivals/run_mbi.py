"""Mechanisms on `mbi` for benchmarks/rivals.py: AIM (peer.py), MST, and a mixture of products.

Its noise is numpy's: a benchmark, not a release. XLA compiles without expensive passes, which halves the seconds.
The answers of a graphical model are exact if its domain has at most JOINT_CELLS cells, otherwise from ROWS rows.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from itertools import combinations

os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true "
                      "--xla_cpu_multi_thread_eigen=false")  # fmt: skip
from case import Answers, Case, Names, Table, run_case
from peer import NOISE_L1, Aim, sampled_answers

# isort: split
import mbi
import numpy as np
import optax

JOINT_CELLS, ROWS, TREE_STEPS, RARE = 10_000_000, 500_000, 2_500, 3.0
MEASUREMENTS, SELECTING, MIXTURE_STEPS, LAST_MIXTURE_STEPS, STEP = 4, 0.1, 300, 1_000, 0.02


def model_answers(model: mbi.MarkovRandomField, table: Table) -> Answers:
    """Return the marginals of a graphical model."""
    if math.prod(table.sizes.values()) > JOINT_CELLS:
        return sampled_answers(model, table, ROWS)
    names = table.names
    logs = np.zeros(list(table.sizes.values()))
    for factor in model.potentials.tables.values():
        own = factor.domain.attributes
        values = np.transpose(np.asarray(factor.values), [own.index(name) for name in names if name in own])
        logs += values.reshape([table.sizes[name] if name in own else 1 for name in names])
    joint = np.exp(logs - logs.max())
    return joint_answers(joint * (float(model.total) / joint.sum()), names)


def joint_answers(joint: np.ndarray, names: Names) -> Answers:
    """Return the marginals of a joint table; sums over blocks of attributes are kept."""
    blocks = [set(own) for own in np.array_split(np.arange(len(names)), 4)]
    kept: dict[tuple[int, ...], np.ndarray] = {}

    def answer(wanted: Names) -> np.ndarray:
        axes = [names.index(name) for name in wanted]
        first = tuple(sorted(set().union(*(block for block in blocks if block & set(axes)))))
        if first not in kept:
            kept[first] = joint.sum(axis=tuple(set(range(len(names))) - set(first)))
        found = kept[first].sum(axis=tuple(i for i, axis in enumerate(first) if axis not in axes))
        order = sorted(axes)
        return np.transpose(found, [order.index(axis) for axis in axes])

    return answer


def model_rows(model: mbi.Model, table: Table) -> np.ndarray:
    """Return as many rows as records."""
    drawn = model.synthetic_data(table.rows).data
    return np.stack([np.asarray(drawn[name]) for name in table.names], axis=1)


def fit_aim(case: Case) -> mbi.MarkovRandomField:
    return Aim(case.table, case.rho, case.seed, math.inf).run()


def run_aim(case: Case) -> Callable[[], Answers]:
    model = fit_aim(case)
    return lambda: model_answers(model, case.table)


class Merged:
    """A table whose rare values are merged: `groups` has the group of every value of an attribute."""

    def __init__(self, table: Table, groups: Mapping[str, np.ndarray]) -> None:
        self.groups = groups
        sizes = {name: int(own.max()) + 1 for name, own in groups.items()}
        codes = np.stack([groups[name][table.columns[name]] for name in table.names], axis=1)
        self.table = Table(table.name, sizes, codes)

    def spread(self, answers: Answers) -> Answers:
        """Return answers on all values; merged values share their group evenly."""

        def answer(names: Names) -> np.ndarray:
            found = answers(names)
            for axis, name in enumerate(names):
                own = self.groups[name]
                shares = (1 / np.bincount(own))[own]
                shape = [-1 if i == axis else 1 for i in range(len(names))]
                found = np.take(found, own, axis=axis) * shares.reshape(shape)
            return found

        return answer

    def expand(self, rows: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Return rows on all values; a merged value becomes any value of its group."""
        columns = []
        for group, column in zip(self.groups.values(), rows.T, strict=True):
            members, sizes = np.argsort(group, kind="stable"), np.bincount(group)
            places = (np.cumsum(sizes) - sizes)[column] + random.integers(0, sizes[column])
            columns.append(members[places])
        return np.stack(columns, axis=1)


def group_rare(noisy: np.ndarray, least: float) -> np.ndarray:
    """Return the group of every value: one for each frequent value, one for all rare ones."""
    frequent = noisy >= least
    if frequent.sum() >= len(noisy) - 1:
        return np.arange(len(noisy))
    return np.where(frequent, np.cumsum(frequent) - 1, frequent.sum())


def fit_mst(case: Case) -> tuple[mbi.MarkovRandomField, Merged]:
    """Measure 1-ways, choose a spanning tree of pairs, measure them: a third of the budget each."""
    random, names = np.random.default_rng(case.seed), case.table.names
    first = math.sqrt(3 * len(names) / (2 * case.rho))
    noisy = {name: case.table.counts((name,)) + random.normal(0, first, case.table.sizes[name]) for name in names}
    merged = Merged(case.table, {name: group_rare(own, RARE * first) for name, own in noisy.items()})
    measured = []
    for name, own in merged.groups.items():
        sizes = np.bincount(own)
        weights = 1 / np.sqrt(sizes)  # equal noise in every group
        measured.append(mbi.LinearMeasurement(np.bincount(own, noisy[name]) * weights, (name,), first,
                                              query=mbi.WeightedQuery(weights)) if (sizes > 1).any()
                        else mbi.LinearMeasurement(noisy[name], (name,), first))  # fmt: skip
    domain = mbi.Domain(names, tuple(merged.table.sizes.values()))
    total = max(1.0, float(np.mean([own.sum() for own in noisy.values()])))
    ones = mbi.estimation.MirrorDescent().estimate(domain, measured, total, iters=TREE_STEPS)
    own = {name: np.asarray(ones.project((name,)).datavector()) for name in names}
    second = math.sqrt(3 * (len(names) - 1) / (2 * case.rho))
    epsilon = math.sqrt(8 * case.rho / (3 * (len(names) - 1)))
    for pair in choose_tree(merged.table, own, total, epsilon, random):
        counts = merged.table.counts(pair).ravel()
        measured.append(mbi.LinearMeasurement(counts + random.normal(0, second, counts.size), pair, second))
    return mbi.estimation.MirrorDescent().estimate(domain, measured, total, iters=TREE_STEPS), merged


def run_mst(case: Case) -> Callable[[], Answers]:
    model, merged = fit_mst(case)
    return lambda: merged.spread(model_answers(model, merged.table))


def draw_mst(case: Case) -> np.ndarray:
    model, merged = fit_mst(case)
    return merged.expand(model_rows(model, merged.table), np.random.default_rng(case.seed))


def choose_tree(
    table: Table, ones: Mapping[str, np.ndarray], total: float, epsilon: float, random: np.random.Generator
) -> list[Names]:
    """Choose the edges of a spanning tree one by one with the exponential mechanism; the score is the L1 distance."""
    scores = {(a, b): np.abs(table.counts((a, b)) - np.outer(ones[a], ones[b]) / total).sum()
              for a, b in combinations(table.names, 2)}  # fmt: skip
    part = {name: name for name in table.names}
    chosen: list[Names] = []
    while len(chosen) < len(table.names) - 1:
        free = [pair for pair in scores if part[pair[0]] != part[pair[1]]]
        drawn = [epsilon / 2 * scores[pair] + random.gumbel() for pair in free]
        pair = free[int(np.argmax(drawn))]
        chosen.append(pair)
        part = {name: part[pair[0]] if own == part[pair[1]] else own for name, own in part.items()}
    return chosen


class Mixture:
    """Rounds of select, measure and fit with mbi's mixture of products and its default number of components.

    A round selects several pairs at once by the exponential mechanism with AIM's scores; the model has no junction tree
    that limits them. Triples among the candidates, larger steps and more of them had larger errors on nursery. As
    in AIM, the budget of a measurement grows by a factor of four where the model moves by less than the noise.
    """

    def __init__(self, case: Case) -> None:
        self.table, self.random, self.left = case.table, np.random.default_rng(case.seed), case.rho
        self.names = case.table.names
        self.domain = mbi.Domain(self.names, tuple(case.table.sizes.values()))
        self.each = case.rho / (MEASUREMENTS * len(self.names))
        self.batch = max(1, len(self.names) // 2)
        self.estimator = mbi.extensions.MixtureOfProductsEstimator(optimizer=optax.adam(STEP), seed=case.seed)
        self.measured: list[mbi.LinearMeasurement] = []
        self.weights = {names: sum(len({*names} & {*target}) for target in case.table.targets)
                        for names in combinations(self.names, 2)}  # fmt: skip

    def measure(self, names: Names, rho: float) -> None:
        deviation = math.sqrt(0.5 / rho)
        counts = self.table.counts(names).ravel()
        self.measured.append(mbi.LinearMeasurement(counts + self.random.normal(0, deviation, counts.size), names,
                                                   deviation))  # fmt: skip

    def select(self, answers: Answers, deviation: float, epsilon: float) -> list[Names]:
        """Select the marginals of a round: the largest noisy scores, which equals repeated exponential mechanisms."""
        scores = np.array([weight * (np.abs(self.table.counts(names) - answers(names)).sum()
                           - NOISE_L1 * deviation * self.domain.size(names))
                           for names, weight in self.weights.items()])  # fmt: skip
        drawn = epsilon * scores / (2 * max(self.weights.values())) + self.random.gumbel(size=len(scores))
        every = list(self.weights)
        return [every[i] for i in np.argsort(-drawn)[: self.batch]]

    def run(self) -> mbi.extensions.MixtureOfProducts:
        ones = self.each * (1 - SELECTING)
        for name in self.names:
            self.measure((name,), ones)
            self.left -= ones
        model = self.estimator.estimate(self.domain, self.measured, iters=MIXTURE_STEPS)
        last = False
        while not last:
            last = self.left < 2 * self.batch * self.each
            each = self.left / self.batch if last else self.each
            deviation = math.sqrt(0.5 / ((1 - SELECTING) * each))
            before = product_answers(model)
            chosen = self.select(before, deviation, math.sqrt(8 * SELECTING * each))
            for names in chosen:
                self.measure(names, (1 - SELECTING) * each)
            self.left -= self.batch * each
            steps = LAST_MIXTURE_STEPS if last else MIXTURE_STEPS
            model = self.estimator.estimate(self.domain, self.measured, iters=steps, warm_start=model)
            after = product_answers(model)
            moved = [np.abs(after(names) - before(names)).sum() / (deviation * self.domain.size(names))
                     for names in chosen]  # fmt: skip
            self.each *= 4 if np.mean(moved) <= NOISE_L1 else 1
        return model


def product_answers(model: mbi.extensions.MixtureOfProducts) -> Answers:
    """Return the exact marginals of a mixture of products."""
    shares = {name: np.asarray(own) for name, own in model.products.items()}

    def answer(names: Names) -> np.ndarray:
        found = np.full((model.num_components, 1), float(model.total) / model.num_components)
        for name in names[:-1]:
            found = (found[:, :, None] * shares[name][:, None, :]).reshape(len(found), -1)
        return (found.T @ shares[names[-1]]).reshape([shares[name].shape[1] for name in names])

    return answer


def run_mixture(case: Case) -> Callable[[], Answers]:
    model = Mixture(case).run()
    return lambda: product_answers(model)


if __name__ == "__main__":
    run_case({"AIM": run_aim, "MST": run_mst, "mixture": run_mixture},
             {"AIM": lambda case: model_rows(fit_aim(case), case.table), "MST": draw_mst,
              "mixture": lambda case: model_rows(Mixture(case).run(), case.table)})  # fmt: skip
