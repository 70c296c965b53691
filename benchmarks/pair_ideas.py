"""Ideas for pairs that `aim-grem` does not measure: a part of the budget measures moments of all of them at the end.

With 1 − κ of the budget the mechanism runs as usual. The rest measures F_a C F_bᵀ of the counts C of every unmeasured
pair (a, b), where the rows of F_a are few functions of an attribute's groups. The noise of a pair is divided so that
the sum of the variances is least for the cost Σ M_a M_b / s², M_a = max_x |F_a(x)|². Departures of the moments from
the model are shrunk by a mixture that is learnt from all of them, the model's table gets the rest of the departure,
and is fitted to its 1-ways. This is a prototype with floating point noise: it is not part of dpscale.

    components   leading singular vectors of the measured pairs of an attribute (correspondence analysis)
    signs        random ±1 vectors, centred
    halves       two groups of about half the records
    groups       every group: all unmeasured pairs at low precision

Prints the mean L1 error of all 3-way marginals over that of the whole budget without the idea. "free" adds the true
moments without noise or cost: what the idea could gain at most.

    python benchmarks/pair_ideas.py [--tables adult …] [--epsilons 0.1 1 10] [--seeds 2] [--share 0.1] [--save]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import base
import numpy as np
from adaptive import cost_of, load_tables, run_at_cost, with_pairs, with_triples
from base import DATA, Table

from dpscale.base.numerics import AttributeSet, Floats
from dpscale.mechanisms.aim_grem import Options
from dpscale.reconstruction.entropy import LowOrder
from dpscale.reconstruction.fitting_loops import fit_pair
from dpscale.workload.residual import coarsened

Features = Mapping[str, Floats]
KINDS = ("components", "signs", "halves", "groups")
TABLES = ("adult", "salary", "telco", "acs23", "nltcs", "mushroom")
COUNT, FLOOR, LEAST, SCALES = 2, 0.2, 0.02, 12


def functions(model: LowOrder, kind: str, seed: int) -> Features:
    """Return the functions of every attribute, shape (k, groups)."""
    rng, found = np.random.default_rng(seed), {}
    for name in model.ones:
        shares = np.maximum(model.coarse[name] / model.total, 1e-12)
        if kind == "components":
            found[name] = _components(model, name, shares)
        elif kind == "signs":
            found[name] = _normal(rng.choice([-1.0, 1.0], (min(COUNT, len(shares) - 1), len(shares))), shares)
        elif kind == "halves":
            found[name] = _normal((np.cumsum(shares) - shares / 2 < 0.5)[None].astype(float), shares)
        else:
            found[name] = np.eye(len(shares))
    return found


def _components(model: LowOrder, name: str, shares: Floats) -> Floats:
    """Return the leading left singular vectors of all measured pairs of an attribute, standardised."""
    tables = []
    for pair in combinations(model.ones, 2):
        if name in pair and pair in model.measured and pair in model.tables:
            other = np.maximum(model.coarse[pair[1 - pair.index(name)]] / model.total, 1e-12)
            table = (model.tables[pair] if pair[0] == name else model.tables[pair].T) / model.total
            scale = np.sqrt(np.outer(np.maximum(shares, FLOOR), np.maximum(other, FLOOR)))
            tables.append((table - np.outer(shares, other)) / scale)
    stacked = np.concatenate(tables, axis=1) if tables else np.eye(len(shares))
    vectors = np.linalg.svd(stacked, full_matrices=False)[0][:, : min(COUNT, len(shares) - 1)]
    return _normal((vectors / np.sqrt(np.maximum(shares, FLOOR))[:, None]).T, shares)


def _normal(rows: Floats, shares: Floats) -> Floats:
    """Return rows centred and orthonormal under the shares; rows that vanish are dropped."""
    centred = rows - (rows @ shares)[:, None]
    values, vectors = np.linalg.eigh((centred * shares) @ centred.T)
    good = values > 1e-9
    return np.asarray((vectors[:, good] / np.sqrt(values[good])).T @ centred)


def with_moments(table: Table, model: LowOrder, own: Features, cost: float | None, seed: int) -> LowOrder:
    """Return the model with noisy moments of every unmeasured pair; exact ones if `cost` is None."""
    pairs = [pair for pair in combinations(model.ones, 2)
             if pair not in model.measured and len(own[pair[0]]) and len(own[pair[1]])]  # fmt: skip
    if not pairs:
        return model
    noise, rng = _deviations(pairs, own, cost), np.random.default_rng(seed)
    expected = [model.coarse_marginal(pair) for pair in pairs]
    found, deviations = [], []
    for pair, prior, deviation in zip(pairs, expected, noise, strict=True):
        exact = coarsened(table.counts(pair), [model.groups[name] for name in pair])
        moments = own[pair[0]] @ (exact - prior) @ own[pair[1]].T
        found.append((moments + deviation * rng.standard_normal(moments.shape)).reshape(-1))
        deviations.append(np.full(moments.size, deviation))
    departures = np.concatenate(found)
    if cost is not None:
        departures = _shrunk(departures, np.concatenate(deviations))
    parts = np.split(departures, np.cumsum([len(one) for one in found])[:-1])
    moved = {
        pair: _moved(model, pair, prior, part, own) for pair, prior, part in zip(pairs, expected, parts, strict=True)
    }
    return replace(model, tables={**model.tables, **moved})


def _deviations(pairs: list[AttributeSet], own: Features, cost: float | None) -> Floats:
    if cost is None:
        return np.zeros(len(pairs))
    largest = {name: float((rows**2).sum(axis=0).max()) for name, rows in own.items() if len(rows)}
    squares = np.array([largest[a] * largest[b] for a, b in pairs])
    moments = np.array([len(own[a]) * len(own[b]) for a, b in pairs])
    variances = np.sqrt(squares / moments)
    return np.asarray(np.sqrt(variances * (squares / variances).sum() / cost))


def _shrunk(departures: Floats, deviations: Floats) -> Floats:
    """Return posterior means under a scale mixture of normal distributions around 0, learnt by EM."""
    scales = np.concatenate([[0.0], np.geomspace(0.1, 30, SCALES)]) * float(np.median(deviations))
    variances = scales**2 + deviations[:, None] ** 2
    likelihood = np.exp(-(departures[:, None] ** 2) / 2 / variances) / np.sqrt(variances) + 1e-300
    weights = np.full(len(scales), 1 / len(scales))
    for _ in range(50):
        shares = likelihood * weights
        shares /= shares.sum(axis=1, keepdims=True)
        weights = (shares.sum(axis=0) + 0.1) / (shares.sum() + 0.1 * len(scales))
    return np.asarray((shares * scales**2 / variances).sum(axis=1) * departures)


def _moved(model: LowOrder, pair: AttributeSet, prior: Floats, departure: Floats, own: Features) -> Floats:
    """Return the table of a pair with the moments' departure, fitted to its 1-ways."""
    first, second = (own[name] for name in pair)
    step = first.T @ departure.reshape(len(first), len(second)) @ second
    if first.shape[0] < first.shape[1] or second.shape[0] < second.shape[1]:
        step *= np.outer(model.coarse[pair[0]], model.coarse[pair[1]]) / model.total**2
    table = np.ascontiguousarray(np.maximum(prior + step, LEAST * prior + 1e-9))
    ones = [np.ascontiguousarray(model.coarse[name]) for name in pair]
    fit_pair(table, *ones, 20, 1e-6 * model.total)
    return table


def compare(table: Table, epsilon: float, seeds: range, share: float) -> dict[str, float]:
    """Print and return the errors of all ideas over that of the whole budget without one."""
    errors: dict[str, list[float]] = defaultdict(list)
    for seed in seeds:
        cost, release = cost_of(epsilon), str(seed)
        whole, learnt = with_pairs(run_at_cost(table, cost, seed, Options()).fit.model, release)
        errors["none"].append(table.error(with_triples(table, whole, learnt, release).marginal))
        part, own = with_pairs(run_at_cost(table, cost * (1 - share), seed, Options()).fit.model, release)
        for kind in KINDS:
            moved = with_moments(table, part, functions(part, kind, seed), cost * share, seed)
            errors[kind].append(table.error(with_triples(table, moved, own, release).marginal))
            free = with_moments(table, whole, functions(whole, kind, seed), None, seed)
            errors[f"{kind}, free"].append(table.error(with_triples(table, free, learnt, release).marginal))
    base = float(np.mean(errors.pop("none")))
    found = {kind: float(np.mean(one)) / base for kind, one in errors.items()}
    print(f"{table.name:<10} ε = {epsilon:<4g} error {base:.4f}  "
          + "  ".join(f"{kind} {ratio:.3f}" for kind, ratio in found.items()), flush=True)  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="+", default=list(TABLES))
    parser.add_argument("--epsilons", type=float, nargs="+", default=[0.1, 1.0, 10.0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first-seed", type=int, default=100)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--save", action="store_true")
    given = parser.parse_args()
    logs: dict[str, list[float]] = defaultdict(list)
    for table in load_tables(given.tables, given.data):
        for epsilon in given.epsilons:
            seeds = range(given.first_seed, given.first_seed + given.seeds)
            for kind, ratio in compare(table, epsilon, seeds, given.share).items():
                logs[f"{kind}, ε = {epsilon:g}"].append(np.log(ratio))
    figures: dict[str, Any] = {key: float(np.exp(np.mean(ratios))) for key, ratios in logs.items()}
    for key, mean in figures.items():
        print(f"geometric mean over {len(given.tables)} tables: {key}: {mean:.3f}")
    if given.save:
        base.save("pair_ideas", figures | {"share": given.share})


if __name__ == "__main__":
    main()
