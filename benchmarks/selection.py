"""The cost of the selections of a round: draws of the exponential mechanism among many candidates.

Prints, for every number of candidates, seconds to start a round (scores, weights, sums), seconds of one draw by the
tree of sums, the same by a plain loop that weighs all remaining candidates at every draw, their ratio, and how often
interval arithmetic decided. The last line is the time of a 1-way marginal of many codes before pairs are selected.

    python benchmarks/selection.py [--candidates 20000 100000 1000000] [--draws 2000] [--codes 1000000]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from fractions import Fraction
from itertools import combinations
from time import perf_counter

import numpy as np

from dpscale.measurement.adaptive import Distances, Scores, select_candidates
from dpscale.mechanisms.aim.decision import AimSelection
from dpscale.privacy.selection import Urn
from dpscale.privacy.streams import KeyedStream, open_stream, seeded_secret
from dpscale.reconstruction.one_way import NoisyCounts, non_negative_counts
from dpscale.workload.residual.in_axis import by_mass, every_cell

SCALE = Fraction(1, 20_000)


def open_draw_stream(number: int) -> KeyedStream:
    return open_stream(seeded_secret(0), "selection", {"draw": number})


def draw_plainly(scores: list[int], out: set[int], words: KeyedStream) -> int:
    """Draw once with a pass over all remaining candidates."""
    left = [place for place in range(len(scores)) if place not in out]
    most = max(scores[place] for place in left)
    gaps = np.array([most - scores[place] for place in left], dtype=np.float64)
    edges = np.cumsum(np.exp(-gaps * float(SCALE)))
    uniform = int(words.words(1)[0]) / 2**64
    return left[min(int(np.searchsorted(edges, uniform * edges[-1])), len(left) - 1)]


def time_call(act: Callable[[], object]) -> float:
    start = perf_counter()
    act()
    return perf_counter() - start


def draw_from_urn(urn: Urn, draws: int) -> list[int]:
    chosen = list[int]()
    for number in range(draws):
        chosen.append(urn.draw(open_draw_stream(number)))
        urn.take(chosen[-1:])
    return chosen


def print_draws(candidates: int, draws: int) -> None:
    scores = np.random.default_rng(0).integers(-(10**5), 10**5, candidates).tolist()
    urns: list[Urn] = []
    begun = time_call(lambda: urns.append(Urn(scores, SCALE)) or urns[0].draw(open_draw_stream(-1)))
    of_tree = time_call(lambda: draw_from_urn(urns[0], draws)) / draws
    few = max(3, 10**5 // candidates)
    of_loop = time_call(lambda: [draw_plainly(scores, {0, 1}, open_draw_stream(number)) for number in range(few)]) / few
    print(f"{candidates:>10,} candidates: begun {begun:6.3f} s, a draw {of_tree * 1e6:7.0f} µs, plainly "
          f"{of_loop * 1e6:10.0f} µs ({of_loop / of_tree:,.0f} times)")  # fmt: skip


def print_round(candidates: int) -> None:
    """Print the time of a default round of aim-grem: a ninth of all pairs of the attributes, with scores and labels."""
    names = [f"x{number}" for number in range(math.isqrt(2 * candidates) + 1)]
    pairs, groups = tuple(combinations(names, 2)), dict.fromkeys(names, every_cell(4))
    selection = AimSelection(1, pairs, dict.fromkeys(pairs, 1), groups, -(-len(pairs) // 9), Fraction(1, 10**6),
                      Fraction(1, 10**5), 0.375, 1)  # fmt: skip
    scores, rng = Scores(), np.random.default_rng(0)
    scores.learn(Distances(dict(zip(pairs, rng.integers(0, 10**8, len(pairs)).tolist(), strict=True))))
    own = seeded_secret(0)
    took = time_call(
        lambda: select_candidates(
            selection, scores.of(selection), 1, lambda label: open_stream(own, "selection", label)
        )
    )
    print(f"{len(pairs):>10,} pairs: a round of {selection.count:,} choices {took:.2f} s")


def print_wide(codes: int) -> None:
    rng = np.random.default_rng(0)
    noisy = NoisyCounts(rng.poisson(rng.gamma(0.3, 30, codes)) + rng.normal(0, 5, codes), 25.0)
    counts: list[np.ndarray] = []
    fitted = time_call(lambda: counts.append(non_negative_counts(noisy, 9.0 * codes)))
    print(f"{codes:>10,} codes: 1-way fit {fitted:.2f} s, groups {time_call(lambda: by_mass(counts[0], 300.0)):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, nargs="+", default=[1000, 20_000, 100_000, 1_000_000])
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--codes", type=int, default=10**6)
    args = parser.parse_args()
    for candidates in args.candidates:
        print_draws(candidates, min(args.draws, candidates))
        print_round(candidates)
    print_wide(args.codes)


if __name__ == "__main__":
    main()
