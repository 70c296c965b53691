"""Links between two tables: dpscale, the published algorithm and random links, on MovieLens and Berka, δ = 1e-5.

Mean total variation over all 3-way cross marginals of the drawn links, of 10 seeds; the largest of one seed; seconds of
one run. Both tables are exact, so that all of the error is that of the links. Neighbours replace one row with all its
links; the number of links (unless it is the number of children) and degrees are charged. Noise is that of dpscale.
MovieLens: links are limited to 10 a row on both sides. Berka: accounts with at most 5 orders, or at most 131
transactions; a row is replaced, or (`add/remove`) an account with its children is added.

    python benchmarks/relational.py [--data 100K 1M order trans] [--epsilons 0.25 1] [--seeds 10] [--published 10]
        [--rounds 1]           seeds of the published loop by its number of rounds, with the noise of what it measures
        [--more 3]             seeds of siblings, chains and whole databases; 0 for none
        --save                 save the figures in results/
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import base
import numpy as np
import tomli_w
from linked_data import (
    DATA,
    MORE_EPSILONS,
    Linked,
    chain_errors,
    database_errors,
    frame_codes,
    load_linked,
    make_error,
    make_frame,
    random_links,
    sibling_error,
)

import dpscale
from dpscale.base.numerics import one_thread
from dpscale.job.allocation import DEPARTURE
from dpscale.measurement.journal import Journal, StoredDraws
from dpscale.measurement.measurement import draw_of_precision
from dpscale.privacy.conversion import gdp_mu
from dpscale.privacy.draws import gaussian_draw
from dpscale.privacy.protection import ADD_REMOVE, REPLACE
from dpscale.privacy.streams import PublicStream, seeded_secret
from dpscale.relational.assignment import PairTables, assign_links, estimate_sums, sibling_sums, swap_children
from dpscale.relational.budget_shares import (
    LinkProblem,
    Shares,
    degrees_squared,
    plan_shares,
    precisions_in_steps,
    split,
    sums_cost,
)
from dpscale.relational.degrees import children, degrees, distribution, limit_degrees, limit_links
from dpscale.relational.features import STEP, Side
from dpscale.relational.link_estimation import Sums, expected_links
from dpscale.relational.published import (
    Fit,
    LoopSize,
    Rounds,
    chosen_rounds,
    descend,
    moved_entries,
    sample_children,
    sample_pairs,
)
from dpscale.relational.rounding import Cross, round_children, round_totals
from dpscale.runs.links.link_data import ExactLinks
from dpscale.runs.links.measuring import LinkDraws, PublishedLoop

DELTA = 1e-5
LOOP_EPSILONS, LOOP_ROUNDS = {"100K": (1.0, 2.0, 4.0), "1M": (2.0, 8.0)}, (1, 2, 5, 10, 15, 25)
DATA_SETS, EPSILONS = ("100K", "1M", "order", "trans"), (0.25, 0.5, 1.0, 2.0, 4.0)


class Unrecorded(Journal):
    """Journal without a ledger."""

    def decide(self, number: int, content: Mapping[str, Any]) -> None:
        """Record nothing."""


class Trial:
    """One release of the links of `data`, with noise keyed by the seed, between its tables or between synthetic ones.

    `roles`: 2 for links within one table, whose rows have links as parents and as children.
    """

    def __init__(
        self,
        data: Linked,
        relation: str,
        epsilon: float,
        seed: int,
        folder: Path,
        tables: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> None:
        self.data, self.relation, self.amount = data, relation, Fraction(gdp_mu(epsilon, DELTA)) ** 2
        self.exact = ExactLinks(data.links, data.one.astype(np.int32), data.two.astype(np.int32))
        ends = tables or (data.one, data.two)
        self.u, self.v = (Side.made(rows, size) for rows, size in zip(ends, data.sizes, strict=True))
        self.roles = 2 if data.one is data.two else 1
        self.moved = self.roles * data.bound
        self.chance, self.secret = PublicStream(f"seed {seed}", "links"), seeded_secret(seed)
        head = {"release": f"{data.name} {relation} {epsilon:g} {seed}", "snapshot": ""}
        journal = Unrecorded("links", "release", lambda: None, nullcontext)  # type: ignore[arg-type]
        self.draws = LinkDraws(StoredDraws(folder / str(seed), head), data.name, journal, lambda: self.secret)

    def measure(self, name: str, exact: np.ndarray, draw) -> np.ndarray:
        sums = np.asarray(exact, np.int64)
        return self.draws.draw(name, "", draw, lambda: sums, lambda _: {}).reshape(sums.shape)

    def count_links(self, cost: Fraction) -> float:
        if self.data.known:
            return float(self.v.rows)
        draw = gaussian_draw(1, cost, self.moved, "")
        found = self.measure("links", np.array([len(self.data.links)]), draw)[0]
        return float(np.clip(round(found), 2, self.data.bound * min(self.u.rows, self.v.rows)))

    def ours(self, siblings: bool = False) -> np.ndarray:
        data, u, v, chance = self.data, self.u, self.v, self.chance
        parts = split(self.amount, not data.known, True, siblings)
        links = self.count_links(parts.links)
        amount = float(parts.sums) / self.moved**2
        shares = plan_shares(LinkProblem(u, v, links, self.relation, amount, data.known))
        expected = expected_links(u, v, shares, self.measure_sums(shares, parts.sums), links, data.known)
        if data.known:
            whole = round_children(expected, u, v, data.bound, chance)
        else:
            whole = round_totals(expected, u, v, np.multiply.outer(u.counts, v.counts), chance)
            whole = limit_links(whole, u, v, data.bound, data.bound, chance)
        drawn = assign_links(whole, u, v, *self.sample_degrees(whole, parts.degrees), chance)
        return self.swap_siblings(drawn, expected, parts.siblings) if siblings else drawn

    def swap_siblings(self, links: np.ndarray, expected: np.ndarray, cost: Fraction) -> np.ndarray:
        rows, tables = self.data.two, PairTables(self.data.sizes[1])
        draw = gaussian_draw(tables.squared(self.data.bound, 1), cost, 1, "")
        noisy = self.measure("siblings", self.exact.siblings(tables), draw) * STEP
        now = sibling_sums(rows[links[:, 1]], links[:, 0], tables) * STEP
        target = estimate_sums(noisy, now, tables, 1 / (draw.lattice_variance * STEP**2))
        return swap_children(links, rows, self.u, self.v, expected, target, tables, self.chance)

    def measure_sums(self, shares: Shares, amount: Fraction) -> Sums:
        draws = [draw_of_precision(one, "") if one else None for one in precisions_in_steps(shares)]
        costs = tuple(draw.cost if draw else Fraction(0) for draw in draws)
        assert sums_cost(self.relation, shares, costs, self.moved) <= amount
        exact, units, names = self.exact.sums(shares.u, shares.v), (STEP, STEP, STEP**2), ("u", "v", "both")
        return Sums(*(None if draw is None else unit * self.measure(name, one, draw)
                      for name, one, draw, unit in zip(names, exact, draws, units, strict=True)))  # fmt: skip

    def sample_degrees(self, whole: np.ndarray, cost: Fraction) -> Iterator[list[np.ndarray]]:
        bound, sides = self.data.bound, (self.u,) if self.data.known else (self.u, self.v)
        draw = gaussian_draw(degrees_squared(self.relation, bound, self.roles, len(sides)), cost, 1, "")
        counts = np.stack([self.exact.by_degree(i, np.arange(bound)) for i in range(len(sides))])
        for i, (side, own) in enumerate(zip(sides, self.measure("degrees", counts, draw), strict=True)):
            law = distribution(own, side.rows, draw.lattice_variance**0.5, float(whole.sum()))
            yield degrees(whole.sum(axis=1 - i), side, law, self.chance)
        if self.data.known:
            yield children(whole.sum(axis=0), self.v, self.chance)

    def published(self) -> np.ndarray:
        """Draw links with as many rounds as in the paper; no degrees are measured."""
        data, u, v = self.data, self.u, self.v
        parts = split(self.amount, not data.known, False)
        fit = Fit(u, v, self.count_links(parts.links), data.known)
        exact = self.exact.entries(data.sizes)[1]
        loop = PublishedLoop(self.draws, Rounds(), parts.sums, self.relation, self.moved, lambda: exact,
                             lambda _: {})  # fmt: skip
        return self.draw_links(loop.run_rounds(fit), int(fit.links))

    def random(self) -> np.ndarray:
        """Draw as many links as there are: distinct pairs, or random parents."""
        one, two, links = self.u.rows, self.v.rows, len(self.data.links)
        if self.data.known:
            return np.stack([(self.chance.uniforms(two) * one).astype(np.int64), np.arange(two)], axis=1)
        pairs = np.unique((self.chance.uniforms(links + links // 5) * one * two).astype(np.int64))
        pairs = pairs[self.chance.permutation(len(pairs))[:links]]
        return np.stack([pairs // two, pairs % two], axis=1)

    def draw_links(self, chances: np.ndarray, links: int) -> np.ndarray:
        if not self.data.known:
            return limit_degrees(
                sample_pairs(chances, self.u, self.v, links, self.chance), (self.data.bound,) * 2, self.chance
            )
        whole = sample_children(chances, self.u, self.v, self.chance)
        within = [np.full(int(count), 1) for count in self.v.counts]
        even = [self.chance.systematic(np.ones(int(rows)), int(total)) for total, rows in
                zip(whole.sum(axis=1), self.u.counts, strict=True)]  # fmt: skip
        ends = [np.bincount(one, minlength=int(rows)) for one, rows in zip(even, self.u.counts, strict=True)]
        return assign_links(whole, self.u, self.v, ends, within, self.chance)


def make_variation(data: Linked) -> Callable[[np.ndarray], float]:
    """Return a function that computes the mean total variation of all cross marginals of links, as shares."""
    u, v = (Side.made(rows, size) for rows, size in zip((data.one, data.two), data.sizes, strict=True))
    cross = Cross.of(u, v)

    def shares(links: np.ndarray) -> np.ndarray:
        cells = np.zeros((len(u.counts), len(v.counts)))
        np.add.at(cells, (u.of[links[:, 0]], v.of[links[:, 1]]), 1 / len(links))
        return cross.marginals(cells)

    truth = shares(data.links)
    return lambda links: float(np.abs(shares(links) - truth).sum() / 2 / len(cross.columns))


def check_links(data: Linked, links: np.ndarray) -> None:
    """Check that every child has one parent, no link occurs twice, and no row exceeds its bound."""
    assert len(np.unique(links, axis=0)) == len(links)
    if data.known:
        assert (np.bincount(links[:, 1]) == 1).all()
    assert np.bincount(links[:, 0]).max() <= data.bound
    assert data.known or np.bincount(links[:, 1]).max() <= data.bound


def run_trials(data: Linked, relation: str, epsilon: float, seeds: int, what: str) -> dict[str, float]:
    """Return the mean and largest error and the seconds."""
    error, errors, began = make_variation(data), [], 0.0
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            trial = Trial(data, relation, epsilon, 100 + seed, Path(folder))
            start = time.perf_counter()
            links = getattr(trial, what)()
            began += time.perf_counter() - start
        if what == "ours":
            check_links(data, links)
        errors.append(error(links))
    return {"mean": float(np.mean(errors)), "largest": max(errors), "seconds": began / seeds}


def compare_methods(
    data: Linked, relation: str, epsilons: Sequence[float], seeds: int, published: int
) -> dict[str, float]:
    """Return the errors and seconds of our links, the published ones and random ones."""
    name, found = data.name + (", add/remove" if relation == ADD_REMOVE else ""), {}
    own = run_trials(data, relation, 1.0, seeds, "random")
    found[f"{name}, random"] = own["mean"]
    print(f"{name}: {len(data.links):,} links; random {own['mean']:.4f}", flush=True)
    for what, times in (("ours", seeds), ("published", published)):
        for epsilon in epsilons if times else []:
            one = run_trials(data, relation, epsilon, times, what)
            found |= {f"{name}, {what}, {epsilon:g}": one["mean"], f"{name}, {what}, {epsilon:g}, largest":
                      one["largest"], f"{name}, {what}, seconds": one["seconds"]}  # fmt: skip
            print(f"  {what}, ε = {epsilon:g}: {one['mean']:.4f}, at most {one['largest']:.4f}, "
                  f"{one['seconds']:.2f} s", flush=True)  # fmt: skip
    return found


def sibling_errors(epsilon: float, seeds: int) -> dict[str, float]:
    """Return errors of sibling pairs and cross marginals of Berka's orders, without and with measured siblings."""
    data = load_linked("order")
    error, found = make_variation(data), {}
    for what in (False, True):
        each = []
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                each.append(Trial(data, ADD_REMOVE, epsilon, 100 + seed, Path(folder)).ours(what))
        kind = "with" if what else "without"
        found[kind] = float(np.mean([sibling_error(data, links) for links in each]))
        found[f"{kind}, cross"] = float(np.mean([error(links) for links in each]))
    return found


def loop_errors(trial: Trial, rounds: Rounds) -> dict[str, float]:
    """Return mean total variations of the published loop, before links are drawn.

    `noise` is that of the noise of the marginals that are selected, `departed` that of random links there, `selected`
    and `others` that of the fitted links on selected and on other marginals, `error` on all.
    """
    parts = split(trial.amount, not trial.data.known, False)
    fit = Fit(trial.u, trial.v, trial.count_links(parts.links), trial.data.known)
    cross, exact = trial.exact.entries(trial.data.sizes)
    loop = PublishedLoop(trial.draws, rounds, parts.sums, trial.relation, trial.moved, lambda: exact, lambda _: {})
    b = loop.run_rounds(fit)
    chosen = [k for file in loop.draws.folder.glob("round-*.json") for k in json.loads(file.read_text())]
    others = sorted(set(range(len(cross.columns))) - set(chosen))

    def variations(links: np.ndarray) -> np.ndarray:
        departed = np.abs(links / fit.links - exact / len(trial.data.links))
        return np.array([departed[cross.entries(k)].sum() / 2 for k in range(len(cross.columns))])

    fitted, random = (variations(cross.marginals(one * fit.cap)) for one in (b, fit.begin()))
    cells, sigma = np.diff(cross.starts), (2 * trial.moved**2 / float(rounds.costs(parts.sums)[1])) ** 0.5
    return {"noise": 0.4 * sigma * cells[chosen].mean() / fit.links, "departed": random[chosen].mean(),
            "selected": fitted[chosen].mean(), "others": fitted[others].mean() if others else np.nan,
            "error": fitted.mean(), "random": random.mean(), "cells": cells[chosen].mean() / cells.mean()}  # fmt: skip


def open_rounds(trial: Trial) -> int:
    """Return the number of rounds of a job that states none."""
    noise = float(split(trial.amount, not trial.data.known, False).sums) * (1 - Rounds().alpha)
    sigma = (moved_entries(trial.relation) * trial.moved**2 / noise) ** 0.5
    return chosen_rounds(LoopSize(trial.data.sizes, len(trial.data.links), sigma, DEPARTURE), Rounds(), 1000)


def run_rounds(seeds: int) -> dict[str, float]:
    """Print and return the errors of the published loop by its number of rounds, and the number that it chooses."""
    found: dict[str, float] = {}
    for name, epsilons in LOOP_EPSILONS.items():
        data = load_linked(name)
        for epsilon in epsilons:
            with tempfile.TemporaryDirectory() as folder:
                chosen = open_rounds(Trial(data, REPLACE, epsilon, 0, Path(folder)))
            print(f"{name}, ε = {epsilon:g}: T = {chosen} chosen", flush=True)
            found[f"{name}, {epsilon:g}, chosen"] = chosen
            for number in sorted({*LOOP_ROUNDS, chosen}):
                each = []
                for seed in range(seeds):
                    with tempfile.TemporaryDirectory() as folder:
                        trial = Trial(data, REPLACE, epsilon, 100 + seed, Path(folder))
                        each.append(loop_errors(trial, Rounds(rounds=number)))
                mean = {key: float(np.mean([one[key] for one in each])) for key in each[0]}
                print(f"  T = {number}: " + ", ".join(f"{key} {one:.4f}" for key, one in mean.items()), flush=True)
                shown = ("error", *(("noise", "departed") if number in LOOP_ROUNDS else ()),
                         *(("random",) if number == 1 else ()))  # fmt: skip
                found |= {f"{name}, {epsilon:g}, {key}, {number}": mean[key] for key in shown}
    return found


def run_more(seeds: int) -> dict[str, float]:
    """Return the errors of siblings, chains and whole databases."""
    kinds = {
        "siblings": lambda epsilon: sibling_errors(epsilon, seeds),
        "chain": lambda epsilon: chain_errors(epsilon, seeds),
        "whole, order": lambda epsilon: database_errors(load_linked("order"), epsilon, seeds),
        "whole, 100K": lambda epsilon: database_errors(load_linked("100K"), epsilon, seeds),
    }
    found: dict[str, float] = {}
    for name, errors in kinds.items():
        for epsilon in MORE_EPSILONS:
            start, each = time.perf_counter(), errors(epsilon)
            found |= {f"{name}, {kind}, {epsilon:g}": error for kind, error in each.items()}
            text = ", ".join(f"{kind} {error:.4f}" for kind, error in each.items())
            print(f"{name}, ε = {epsilon:g}: {text} ({time.perf_counter() - start:.0f} s)", flush=True)
    return found


def main() -> None:
    parser = base.command_parser(__doc__)
    parser.add_argument("--data", nargs="*", default=DATA_SETS, choices=DATA_SETS)
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--relations", nargs="+", choices=[REPLACE, ADD_REMOVE], default=[REPLACE, ADD_REMOVE])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--published", type=int, default=10, help="seeds of the published loop on MovieLens")
    parser.add_argument("--slow", type=int, default=0, help="on Berka, where a run takes it a minute and more")
    parser.add_argument("--more", type=int, default=3, help="seeds of siblings, chains and whole databases; 0: none")
    parser.add_argument(
        "--rounds", type=int, default=0, help="seeds of the published loop by its number of rounds, alone"
    )
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    if not DATA.exists():
        raise SystemExit(f"{DATA} is not there: real data does not travel with dpscale")
    found: dict[str, float] = {}
    if arguments.rounds:
        with one_thread():
            found = run_rounds(arguments.rounds)
        if arguments.save:
            base.save("relational_rounds", found)
        return
    with one_thread():
        for name in arguments.data:
            data = load_linked(name)
            for relation in arguments.relations if data.known else [REPLACE]:
                times = arguments.slow if data.known else arguments.published
                found |= compare_methods(data, relation, arguments.epsilons, arguments.seeds, times)
        found |= run_more(arguments.more) if arguments.more else {}
    if arguments.save:
        base.save("relational", {key: value for key, value in found.items() if is_published(key)})


def is_published(key: str) -> bool:
    """Return whether the documentation shows a figure."""
    return not key.endswith("largest") or ", ours, " in key


PAPER_DELTA, EPSILON_OF_TABLES, EPSILON = 1e-5, 1.0, 2.0
MECHANISMS = {"AIM": "aim-pgm", "MST": "mst"}
PAPER_EPSILONS, SEEDS = (1.0, 2.0, 4.0), 2  # a sweep has one seed
SLICE, LINKED = 1000, 200
PERSONS, PARENTS = 10_000, 4
PERSON_SIZES = (7, 2, 3, 4)  # age, sex, education, region
Figures = dict[str, float]


@dataclass(frozen=True)
class Options:
    """Options of the published algorithm; the defaults are the paper's for MovieLens. No slices: all rows at once."""

    rounds: Rounds = field(default_factory=Rounds)
    optimised: int = 8
    slices: int = 8


@cache
def load_persons() -> Linked:
    """Return generated persons, and links from a parent to a child."""
    rng = np.random.default_rng(0)
    age = rng.choice(7, PERSONS, p=np.array([15, 15, 16, 17, 16, 13, 8]) / 100)
    sex, region = rng.integers(0, 2, PERSONS), rng.integers(0, 4, PERSONS)
    education = np.where(age < 2, 0, np.clip(rng.normal(1.6 - 0.15 * age, 0.8, PERSONS).round(), 0, 2)).astype(int)
    free, found = np.full(PERSONS, PARENTS), []
    for child in np.flatnonzero(rng.random(PERSONS) < np.array([0.9, 0.8, 0.2, 0.1, 0.02, 0, 0])[age]):
        fit = (age >= age[child] + 2) & (age <= age[child] + 3) & (free > 0)
        near = np.flatnonzero(fit & (region == region[child]) & (np.abs(education - education[child]) <= 1))
        pool = near if len(near) and rng.random() < 0.95 else np.flatnonzero(fit)
        chosen = rng.permutation(pool)[: rng.choice(5, p=[0, 0.3, 0.6, 0.07, 0.03])]
        free[chosen] -= 1
        found += [(parent, child) for parent in chosen]
    codes = np.stack([age, sex, education, region], axis=1)
    return Linked("persons", codes, codes, (PERSON_SIZES,) * 2, np.array(found), PARENTS, False)


@cache
def load(name: str) -> Linked:
    return load_persons() if name == "persons" else load_linked(name)


def synthesise(rows: np.ndarray, sizes: tuple[int, ...], mechanism: str, seed: int) -> np.ndarray:
    """Return as many synthetic rows, from a release of the table alone."""
    with tempfile.TemporaryDirectory() as folder:
        make_frame(rows).to_parquet(f"{folder}/rows.parquet")
        content = {"attributes": {f"a{i}": {"kind": "coded", "size": int(size)} for i, size in enumerate(sizes)}}
        Path(f"{folder}/rows.toml").write_text(tomli_w.dumps(content))
        table = {"path": f"{folder}/rows.parquet", "domain": f"{folder}/rows.toml", "mechanism": MECHANISMS[mechanism],
                 "rows": len(rows)}  # fmt: skip
        privacy = {
            "epsilon": EPSILON_OF_TABLES,
            "delta": PAPER_DELTA,
            "ledger": f"{folder}/ledger.sqlite",
            "dataset": "rows",
        }
        job = {"tables": {"rows": table}, "privacy": privacy, "engine": {"scheduler": "synchronous", "seed": seed}}
        made = dpscale.run(job, f"{folder}/run").synthetic()["rows"].compute()
    return frame_codes(made, sizes)


@cache
def tables_of(name: str, mechanism: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return both synthetic tables, the same array twice for links within one table."""
    data = load(name)
    one = synthesise(data.one, data.sizes[0], mechanism, seed)
    return one, one if data.one is data.two else synthesise(data.two, data.sizes[1], mechanism, 1000 + seed)


def entries(cross: Cross, sides: tuple[Side, Side], links: np.ndarray) -> np.ndarray:
    """Return the entries of all cross marginals of links."""
    places = cross.first[sides[0].of[links[:, 0]]] + cross.second[sides[1].of[links[:, 1]]]
    return np.bincount(places.ravel(), minlength=cross.size).astype(float)


class PublishedRun:
    """The paper's algorithm 4 between synthetic tables, with the noise of numpy."""

    def __init__(
        self, data: Linked, tables: tuple[np.ndarray, np.ndarray], epsilon: float, options: Options, seed: int
    ) -> None:
        self.data, self.tables, self.options = data, tables, options
        self.rng, self.stream = np.random.default_rng(seed), PublicStream(f"published {seed}", "links")
        self.moved = data.bound * (2 if data.one is data.two else 1)
        self.selection, self.noise = (
            float(one)
            for one in options.rounds.costs(gdp_mu(epsilon, PAPER_DELTA) ** 2)  # type: ignore[arg-type]
        )
        real = self._sides((data.one, data.two))
        self.exact = entries(Cross.of(*real), real, data.links)
        self.sides = self._sides(tables)
        self.cross = Cross.of(*self.sides)

    def _sides(self, tables: tuple[np.ndarray, np.ndarray]) -> tuple[Side, Side]:
        one, two = (Side.made(rows, size) for rows, size in zip(tables, self.data.sizes, strict=True))
        return one, two

    def distances(self, one: np.ndarray, two: np.ndarray) -> np.ndarray:
        """Return half the L1 distance of every marginal."""
        ends = np.append(np.abs(one - two).cumsum(), 0.0)
        return np.array([ends[cut.stop - 1] - (ends[cut.start - 1] if cut.start else 0)
                         for cut in map(self.cross.entries, range(len(self.cross.columns)))]) / 2  # fmt: skip

    def select(self, estimates: np.ndarray, taken: list[int]) -> list[int]:
        """Return K further marginals by exponential mechanisms, drawn without replacement."""
        scores = np.sqrt(self.selection) * self.distances(self.exact, estimates) / self.moved
        scores[taken] = -np.inf
        chosen: list[int] = []
        for _ in range(min(self.options.rounds.each, len(scores) - len(taken))):
            chosen.append(int(np.argmax(scores + self.rng.gumbel(size=len(scores)))))
            scores[chosen] = -np.inf
        return chosen

    def measure(self, noisy: np.ndarray, chosen: list[int]) -> None:
        scale = np.sqrt(moved_entries(REPLACE) / self.noise) * self.moved
        for k in chosen:
            cut = self.cross.entries(k)
            noisy[cut] = self.exact[cut] + scale * self.rng.normal(size=cut.stop - cut.start)

    def links(self) -> np.ndarray:
        """Return the links after all rounds."""
        count, sizes = len(self.data.links), [len(rows) for rows in self.tables]
        links = random_links(self.data, *sizes, self.rng)
        taken, noisy = list[int](), np.zeros(self.cross.size)
        for _ in range(self.options.rounds.rounds):
            chosen = self.select(entries(self.cross, self.sides, links), taken)
            self.measure(noisy, chosen)
            taken += chosen
            for _ in range(max(self.options.slices, 1)):
                errors = self.distances(noisy, entries(self.cross, self.sides, links))
                most = sorted(taken, key=lambda k: -errors[k])[: self.options.optimised or len(taken)]
                links = self.redraw(links, noisy / count, most)
        return links

    def redraw(self, links: np.ndarray, target: np.ndarray, chosen: list[int]) -> np.ndarray:
        """Fit the links of a slice to shares of marginals and draw them again."""
        rows = [self._slice(len(table), links[:, side]) for side, table in enumerate(self.tables)]
        inside = np.isin(links[:, 0], rows[0]) & np.isin(links[:, 1], rows[1])
        own = int(inside.sum())
        u, v = self._sides((self.tables[0][rows[0]], self.tables[1][rows[1]]))
        if own < 2:
            return links
        fit = Fit(u, v, own, False)
        b = descend(fit, Cross.of(u, v).some(chosen), target * own, fit.begin())
        drawn = sample_pairs(b, u, v, own, self.stream)
        return np.concatenate([links[~inside], np.stack([rows[0][drawn[:, 0]], rows[1][drawn[:, 1]]], axis=1)])

    def _slice(self, rows: int, linked: np.ndarray) -> np.ndarray:
        """Return the rows of a slice, at least `LINKED` of them with links."""
        if not self.options.slices or rows <= SLICE:
            return np.arange(rows)
        some = self.rng.permutation(np.unique(linked))[:LINKED]
        rest = np.setdiff1d(self.rng.permutation(rows)[:SLICE], some)
        return np.concatenate([some, self.rng.permutation(rest)[: SLICE - len(some)]])


def our_links(data: Linked, tables: tuple[np.ndarray, np.ndarray], epsilon: float, seed: int) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        return Trial(data, REPLACE, epsilon, seed, Path(folder), tables).ours()


def mean_error(
    name: str, mechanism: str, seeds: int, make: Callable[[Linked, tuple[np.ndarray, np.ndarray], int], np.ndarray]
) -> tuple[float, float]:
    """Return the mean error of several seeds and their standard deviation."""
    data = load(name)
    error, found = make_error(data), []
    for seed in range(seeds):
        tables = tables_of(name, mechanism, seed)
        found.append(error(*tables, make(data, tables, 100 + seed)))
    return float(np.mean(found)), float(np.std(found))


@cache
def ours_at(name: str, mechanism: str, seeds: int, epsilon: float) -> tuple[float, float]:
    return mean_error(name, mechanism, seeds, lambda data, tables, seed: our_links(data, tables, epsilon, seed))


@cache
def published_at(name: str, mechanism: str, seeds: int, epsilon: float, options: Options) -> tuple[float, float]:
    return mean_error(
        name, mechanism, seeds, lambda data, tables, seed: PublishedRun(data, tables, epsilon, options, seed).links()
    )


@cache
def random_at(name: str, mechanism: str, seeds: int) -> tuple[float, float]:
    return mean_error(
        name,
        mechanism,
        seeds,
        lambda data, tables, seed: random_links(data, *map(len, tables), np.random.default_rng(seed)),
    )


def options_of(name: str) -> Options:
    """Return the paper's defaults: eight slices for MovieLens, three for persons."""
    return Options() if name != "persons" else Options(slices=3)


def print_figure_3(quick: bool) -> Figures:
    """Print the errors by ε_rel, for tables of both mechanisms."""
    found, seeds = {}, 1 if quick else SEEDS
    for name in ("100K",) if quick else ("100K", "persons"):
        for mechanism in ("MST",) if quick else MECHANISMS:
            random, _ = random_at(name, mechanism, seeds)
            print(f"  {name}, tables by {mechanism}, {len(load(name).links):,} links: random {random:.4f}", flush=True)
            found[f"figure 3, {name}, {mechanism}, random"] = random
            for epsilon in (2.0,) if quick else PAPER_EPSILONS:
                ours, spread = ours_at(name, mechanism, seeds, epsilon)
                paper, wide = published_at(
                    name, mechanism, seeds, epsilon, Options(slices=1) if quick else options_of(name)
                )
                print(f"    ε_rel = {epsilon:g}: ours {ours:.4f} ± {spread:.4f}, "
                      f"published {paper:.4f} ± {wide:.4f}", flush=True)  # fmt: skip
                found |= {f"figure 3, {name}, {mechanism}, ours, {epsilon:g}": ours,
                          f"figure 3, {name}, {mechanism}, published, {epsilon:g}": paper}  # fmt: skip
    return found


def print_sweep(what: str, label: str, options: dict[str, Options], quick: bool) -> Figures:
    """Print the error of the published algorithm by option, and ours."""
    mechanism, seeds = "MST" if quick else "AIM", 1
    (ours, _), (random, _) = ours_at("100K", mechanism, seeds, EPSILON), random_at("100K", mechanism, seeds)
    print(f"  {label}; 100K, tables by {mechanism}, ε_rel = {EPSILON:g}: ours {ours:.4f}, random {random:.4f}")
    found = {}
    for value, own in list(options.items())[:: 3 if quick else 1]:
        own = replace(own, slices=min(own.slices, 1)) if quick else own
        error, _ = published_at("100K", mechanism, seeds, EPSILON, own)
        print(f"    {value}: published {error:.4f}", flush=True)
        found[f"{what}, {value}"] = error
    return found | {f"{what}, ours": ours, f"{what}, random": random}


def with_rounds(**given: float) -> Options:
    return Options(rounds=replace(Rounds(), **given))  # type: ignore[arg-type]


def print_figure_4(quick: bool) -> Figures:
    sweep = {f"T = {t}": with_rounds(rounds=t) for t in (2, 5, 15, 25)}
    return print_sweep("figure 4", "rounds", sweep, quick)


def print_figure_5(quick: bool) -> Figures:
    sweep = {f"α = {alpha:g}": with_rounds(alpha=alpha) for alpha in (0.05, 0.2, 0.5, 0.8)}
    return print_sweep("figure 5", "share of the selection", sweep, quick)


def print_figure_6(quick: bool) -> Figures:
    sweep = {f"K = {k}": with_rounds(each=k) for k in (1, 3, 10)}
    return print_sweep("figure 6", "marginals of a round", sweep, quick)


def print_figure_7(quick: bool) -> Figures:
    sweep = {f"{number} optimised": Options(optimised=number) for number in (1, 4, 8, 16)}
    sweep |= {"all optimised": Options(optimised=0), "2 slices a round": Options(slices=2),
              "no slices": Options(slices=0)}  # fmt: skip
    return print_sweep("figure 7", "marginals that are optimised, and slices", sweep, quick)


ITEMS = {
    "figure 3": print_figure_3,
    "figure 4": print_figure_4,
    "figure 5": print_figure_5,
    "figure 6": print_figure_6,
    "figure 7": print_figure_7,
}


def print_item(what: str, quick: bool) -> Figures:
    """Print a figure and return its figures."""
    return ITEMS[what](quick)


if __name__ == "__main__":
    main()
