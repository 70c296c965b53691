"""A small table with structure, and runs on it."""

from fractions import Fraction
from itertools import combinations

import numpy as np

from dpscale.adaptive import Options, Setting

SIZES = {"a": 4, "b": 3, "c": 12, "d": 2, "e": 5}
NAMES = tuple(SIZES)
TRIPLES = tuple(combinations(NAMES, 3))
PUBLISHED, OWN = Options(published=True), Options()


def records(rows=3000, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.integers(4, size=rows)
    b = (a + rng.integers(2, size=rows)) % 3
    c = np.minimum(rng.poisson(1 + 2 * a), 11)
    d = (rng.random(rows) < 0.2 + 0.5 * (c > 3)).astype(int)
    e = rng.choice(5, p=[0.5, 0.3, 0.1, 0.05, 0.05], size=rows)
    return np.stack([a, b, c, d, e], axis=1)


def counter(table):
    def counts_of(names):
        shape = [SIZES[name] for name in names]
        if not names:
            return np.array(len(table))
        cells = np.ravel_multi_index(table[:, [NAMES.index(name) for name in names]].T, shape)
        return np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape)

    return counts_of


def setting(options=OWN, rho=Fraction(1, 20), targets=TRIPLES, **more):
    return Setting(SIZES, tuple(targets), rho, options=options, **more)


def error(state, counts_of, targets=TRIPLES):
    rows = int(counts_of(()))
    return float(np.mean([np.abs(state.marginal(names) - counts_of(names)).sum() / rows for names in targets]))
