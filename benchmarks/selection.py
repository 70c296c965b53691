"""What a round's choices cost: draws of the exponential mechanism among many candidates.

Prints, for every number of candidates, seconds to begin a round (scores as they come, weights, sums), seconds of one
draw by the tree of sums, the same by a plain loop that weighs all that are left at every draw, as it was once, their
ratio, and how often intervals had to decide. Then what a 1-way of many codes takes before pairs are chosen.

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


def stream(number: int) -> KeyedStream:
    return open_stream(seeded_secret(0), "selection", {"draw": number})


def plain(scores: list[int], out: set[int], words: KeyedStream) -> int:
    """One draw that looks at all that are left."""
    left = [place for place in range(len(scores)) if place not in out]
    most = max(scores[place] for place in left)
    gaps = np.array([most - scores[place] for place in left], dtype=np.float64)
    edges = np.cumsum(np.exp(-gaps * float(SCALE)))
    uniform = int(words.words(1)[0]) / 2**64
    return left[min(int(np.searchsorted(edges, uniform * edges[-1])), len(left) - 1)]


def seconds(act: Callable[[], object]) -> float:
    start = perf_counter()
    act()
    return perf_counter() - start


def drawn(urn: Urn, draws: int) -> list[int]:
    chosen = list[int]()
    for number in range(draws):
        chosen.append(urn.draw(stream(number)))
        urn.take(chosen[-1:])
    return chosen


def row(candidates: int, draws: int) -> None:
    scores = np.random.default_rng(0).integers(-(10**5), 10**5, candidates).tolist()
    held: list[Urn] = []
    begun = seconds(lambda: held.append(Urn(scores, SCALE)) or held[0].draw(stream(-1)))
    of_tree = seconds(lambda: drawn(held[0], draws)) / draws
    few = max(3, 10**5 // candidates)
    of_loop = seconds(lambda: [plain(scores, {0, 1}, stream(number)) for number in range(few)]) / few
    print(f"{candidates:>10,} candidates: begun {begun:6.3f} s, a draw {of_tree * 1e6:7.0f} µs, plainly "
          f"{of_loop * 1e6:10.0f} µs ({of_loop / of_tree:,.0f} times)")  # fmt: skip


def whole_round(candidates: int) -> None:
    """A round of aim-grem as it is by default: a ninth of all pairs of so many attributes, scores and labels too."""
    names = [f"x{number}" for number in range(math.isqrt(2 * candidates) + 1)]
    pairs, groups = tuple(combinations(names, 2)), dict.fromkeys(names, every_cell(4))
    asked = AimSelection(1, pairs, dict.fromkeys(pairs, 1), groups, -(-len(pairs) // 9), Fraction(1, 10**6),
                      Fraction(1, 10**5), 0.375, 1)  # fmt: skip
    scores, rng = Scores(), np.random.default_rng(0)
    scores.learn(Distances(dict(zip(pairs, rng.integers(0, 10**8, len(pairs)).tolist(), strict=True))))
    own = seeded_secret(0)
    took = seconds(
        lambda: select_candidates(asked, scores.of(asked), 1, lambda label: open_stream(own, "selection", label))
    )
    print(f"{len(pairs):>10,} pairs: a round of {asked.count:,} choices {took:.2f} s")


def wide(codes: int) -> None:
    rng = np.random.default_rng(0)
    noisy = NoisyCounts(rng.poisson(rng.gamma(0.3, 30, codes)) + rng.normal(0, 5, codes), 25.0)
    counts: list[np.ndarray] = []
    fitted = seconds(lambda: counts.append(non_negative_counts(noisy, 9.0 * codes)))
    print(f"{codes:>10,} codes: 1-way fit {fitted:.2f} s, groups {seconds(lambda: by_mass(counts[0], 300.0)):.2f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", type=int, nargs="+", default=[1000, 20_000, 100_000, 1_000_000])
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--codes", type=int, default=10**6)
    args = parser.parse_args()
    for candidates in args.candidates:
        row(candidates, min(args.draws, candidates))
        whole_round(candidates)
    wide(args.codes)


if __name__ == "__main__":
    main()
