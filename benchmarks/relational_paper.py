"""Relational synthesis, Figures 3 to 7: mean total variation of 3-way cross marginals of a whole synthetic database.

Both tables are synthesised by dpscale's aim-pgm (`AIM`) or mst (`MST`) at ε = 1 each, as in the paper; links are then
released at ε_rel, δ = 1e-5. `ours` is dpscale's link mechanism. `published` is the paper's algorithm 4 on blocks of
profiles: in each of T rounds K marginals are selected with the budget share α and measured; slices of 1,000 × 1,000
rows are then fitted to the `optimised` marginals with the largest error, and their links are drawn again. Its number of
links is public and exact; ours is measured. `random`: as many random links between the same tables.

MovieLens 100K, at most 10 links a row on both sides, stands for MovieLens 1M. Persons with parents in the same table,
at most 4 links a row in each role, are generated in place of the IPUMS extract; such a row counts twice.

    python benchmarks/papers.py relational [--quick] [--save]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import numpy as np
import tomli_w
from linked_data import Linked, load_linked
from linked_more import frame_codes, make_error, make_frame, random_links
from relational import Trial

import dpscale
from dpscale.privacy.conversion import gdp_mu
from dpscale.privacy.protection import REPLACE
from dpscale.privacy.streams import PublicStream
from dpscale.relational.features import Side
from dpscale.relational.published import Fit, Rounds, descend, moved_entries, sample_pairs
from dpscale.relational.rounding import Cross

DELTA, EPSILON_OF_TABLES, EPSILON = 1e-5, 1.0, 2.0
MECHANISMS = {"AIM": "aim-pgm", "MST": "mst"}
EPSILONS, SEEDS = (1.0, 2.0, 4.0), 2  # a sweep has one seed
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
        privacy = {"epsilon": EPSILON_OF_TABLES, "delta": DELTA, "ledger": f"{folder}/ledger.sqlite", "dataset": "rows"}
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
            for one in options.rounds.costs(gdp_mu(epsilon, DELTA) ** 2)  # type: ignore[arg-type]
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
            for epsilon in (2.0,) if quick else EPSILONS:
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
