"""A small table with dependences, and runs of the adaptive selection loop on it."""

from dataclasses import replace
from fractions import Fraction
from functools import cached_property, partial
from itertools import combinations

import numpy as np

from dpscale import Domain, Workload
from dpscale.counting import ExactMarginal
from dpscale.measurement import measure_block
from dpscale.measurement.adaptive import run as run_chain
from dpscale.mechanisms.aim.adaptive_plan import AdaptivePlan
from dpscale.mechanisms.aim.estimators import EntropyEstimator, GremEstimator
from dpscale.mechanisms.aim.setting import BatchedSchedule, PublishedSchedule, Setting
from dpscale.mechanisms.aim.state import AimState
from dpscale.workload.residual import coarsened

SIZES = {"a": 4, "b": 3, "c": 12, "d": 2, "e": 5}
NAMES = tuple(SIZES)
TRIPLES = tuple(combinations(NAMES, 3))
PUBLISHED, OWN = (PublishedSchedule(), GremEstimator()), (BatchedSchedule(), EntropyEstimator())


def make_records(rows=3000, seed=0):
    rng = np.random.default_rng(seed)
    a = rng.integers(4, size=rows)
    b = (a + rng.integers(2, size=rows)) % 3
    c = np.minimum(rng.poisson(1 + 2 * a), 11)
    d = (rng.random(rows) < 0.2 + 0.5 * (c > 3)).astype(int)
    e = rng.choice(5, p=[0.5, 0.3, 0.1, 0.05, 0.05], size=rows)
    return np.stack([a, b, c, d, e], axis=1)


def make_counter(table):
    def counts_of(names):
        shape = [SIZES[name] for name in names]
        if not names:
            return np.array(len(table))
        cells = np.ravel_multi_index(table[:, [NAMES.index(name) for name in names]].T, shape)
        return np.bincount(cells, minlength=int(np.prod(shape))).reshape(shape)

    return counts_of


def make_setting(options=OWN, beta=Fraction(1, 10), targets=TRIPLES, **more):
    schedule, estimator = options
    return Setting(SIZES, tuple(targets), beta, schedule=schedule, estimator=estimator, **more)


def make_adaptive_plan(setting):
    """Return the adaptive plan of a setting."""
    workload = Workload(Domain(dict(setting.sizes))).add("marginal", attributes=setting.targets)
    return AdaptivePlan(workload, "aim-grem", setting, setting, "", {})


def with_states(plan, decide=lambda decision: decision, select=lambda selection: selection):
    """Return an adaptive plan whose states alter every decision and every selection."""
    states = plan.setting.state or AimState
    kind, given = getattr(states, "func", states), getattr(states, "keywords", {})

    class AlteredState(kind):
        @cached_property
        def selection(self):
            found = super().selection
            return None if found is None else select(found)

        def decide(self, selection, chosen):
            return decide(super().decide(selection, chosen))

    return replace(plan, setting=replace(plan.setting, state=partial(AlteredState, **given)))


def run_loop(setting, counts_of, secret, release=None):
    """Run the selection loop without Dask and files and return its last state."""
    return run_chain(make_adaptive_plan(setting), counts_of, secret, release)


def measure_request(order, counts_of, secret, record):
    """Return the released value of a request, measured from exact counts over the cells of its own attributes."""
    exact = np.asarray(coarsened(counts_of(order.names), order.groups), dtype=np.int64)
    return order.estimate(measure_block(order.block, order.draw, ExactMarginal(order.names, exact), secret, record))


def mean_error(state, counts_of, targets=TRIPLES):
    rows = int(counts_of(()))
    return float(np.mean([np.abs(state.marginal(names) - counts_of(names)).sum() / rows for names in targets]))
