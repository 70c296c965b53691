"""Linear estimates answer exactly the queries in the row space of the measurements, with the least-squares variance.

The oracle is the explicit strategy matrix over the whole domain: integer rows, whose rank is exact modulo a large
prime. A query in the row space may be answered, with the variance of generalised least squares; any other is
refused. A query in the span of the workload is never refused.
"""

from functools import reduce

import numpy as np
import pandas as pd
import pytest
import tomli_w

import dpscale as dp
from dpscale.base.errors import PlanError
from dpscale.mechanisms import MECHANISMS, mechanism
from dpscale.plans.accuracy_base import CoupledResiduals
from dpscale.workload import Workload
from tests.oracles import explicit_strategy, explicit_workload, least_squares_variances, queries_of_part
from tests.selection import mostly_slow

PRIME = (1 << 31) - 1
FAMILIES = ("marginal", "prefix", "range", "circular", "hybrid", "affine", "abs", "random", "predicates")
PLANNERS = [name for name in MECHANISMS if "least_squares" in mechanism(name).forms(mechanism(name).Options())]
CI, NIGHTLY = 60, 1000


class RowSpace:
    """The row space of an integer matrix, by elimination modulo a prime."""

    def __init__(self, matrix):
        self._rows, self._pivots = [], []
        for row in np.unique(np.mod(matrix, PRIME).astype(np.int64), axis=0):
            self._add(self._reduced(row))

    def __contains__(self, query):
        return not self._reduced(np.mod(query, PRIME).astype(np.int64)).any()

    @property
    def rank(self):
        return len(self._rows)

    def _reduced(self, row):
        for pivot, own in zip(self._pivots, self._rows, strict=True):
            if row[pivot]:
                row = (row - row[pivot] * own) % PRIME
        return row

    def _add(self, row):
        if row.any():
            pivot = int(np.argmax(row != 0))
            self._pivots.append(pivot)
            self._rows.append(row * pow(int(row[pivot]), -1, PRIME) % PRIME)


def random_workload(rng, most_cells):
    """Return one to three parts of any family over three or four attributes of two to six cells."""
    sizes = rng.integers(2, 7, rng.integers(3, 5))
    while sizes.prod() > most_cells:
        sizes[np.argmax(sizes)] -= 1
    domain = dp.Domain({f"a{i}": int(size) for i, size in enumerate(sizes)})
    workload = Workload(domain)
    for family in rng.choice(FAMILIES, rng.choice([1, 1, 2]), replace=False):
        weight = float(np.round(10.0 ** rng.uniform(-2, 2), 3))
        if family == "predicates":
            names = tuple(rng.choice(domain.names, rng.integers(1, 3), replace=False).tolist())
            queries = rng.integers(-1, 3, (rng.integers(1, 6), *domain.shape(names)))
            queries[0].flat[0] += not queries[0].any()
            workload.add_queries(names, queries, weights=np.full(len(queries), weight))
        elif family in ("affine", "abs"):
            workload.add(family, degree=2, weight=weight)
        elif family == "hybrid":
            workload.add(family, degree=int(rng.integers(1, 3)), weight=weight, numeric=[domain.names[0]])
        else:
            workload.add(family, degree=int(rng.integers(1, 3)), weight=weight)
    return workload


def draw_queries(rng, workload):
    """Yield single cells, small random integers, differences, and combinations of the workload's queries, by set."""
    domain = workload.domain
    for _ in range(12):
        names = domain.ordered(workload.sets[rng.integers(len(workload.sets))])
        if rng.random() < 0.3:
            others = [name for name in domain.names if name not in names]
            names = domain.ordered((*names, *rng.choice(others, min(1, len(others)), replace=False).tolist()))
        shape = domain.shape(names)
        point = np.zeros(shape)
        point.flat[rng.integers(point.size)] = 1
        other = np.zeros(shape)
        other.flat[rng.integers(point.size)] = -1
        yield names, [point, point + other, rng.integers(-2, 3, shape).astype(float)][rng.integers(3)]
    for part in workload.parts:
        for names in part.sets[:3]:
            own = queries_of_part(part, names).reshape(-1, *domain.shape(names))
            chosen = own[rng.integers(len(own), size=2)]
            yield names, rng.integers(1, 4) * chosen[0] - rng.integers(0, 3) * chosen[1]


def extend_query(domain, names, query):
    """Return a query over some attributes as a vector over all cells."""
    shape = [domain[name].size if name in names else 1 for name in domain.names]
    return np.broadcast_to(query.reshape(shape), domain.shape(domain.names)).reshape(-1)


def integer_strategy(plan):
    """Return all measurements over the whole domain modulo PRIME: entries have up to 60 bits, too many for a float."""
    rows = []
    for block in plan.blocks:
        own = [factor.explicit() % PRIME for factor in block.factors]
        joint = own[0] if block.joint else reduce(lambda a, b: np.kron(a, b) % PRIME, own, np.ones((1, 1), np.int64))
        queries = joint.reshape(len(joint), *plan.domain.shape(block.attributes))
        rows.append(np.stack([extend_query(plan.domain, block.attributes, query) for query in queries]))
    return np.concatenate(rows)


def check_plan(plan, rng):
    """Compare the variances of random queries in a plan with the explicit matrix; return the faults as sentences."""
    units = np.array([block.unit_variance for block in plan.blocks])
    measured, scaled, faults = RowSpace(integer_strategy(plan)), explicit_strategy(plan, units), []
    workload_span = RowSpace(explicit_workload(plan.workload)[0])
    for names, query in draw_queries(rng, plan.workload):
        if not query.any():
            continue
        whole = extend_query(plan.domain, names, query)
        inside = whole in measured
        try:
            variance = plan.variance(names, query)
        except PlanError:
            if whole in workload_span:
                faults.append(f"refused in the workload's span: {names} {query.tolist()}")
            continue
        if not inside:
            faults.append(f"answered outside the row space: {names} {query.tolist()} variance {variance:g}")
            continue
        [expected] = least_squares_variances(scaled, whole[None], measured.rank)
        if abs(variance / expected - 1) > 1e-6:
            faults.append(f"variance {variance:g}, least squares {expected:g}: {names} {query.tolist()}")
    return faults


def check_random_plan(seed, most_cells):
    """Plan a random workload with one of the mechanisms and return the faults, or None if the mechanism refuses it."""
    rng = np.random.default_rng(seed)
    name = PLANNERS[seed % len(PLANNERS)]
    workload = random_workload(rng, most_cells)
    try:
        plan = dp.plan(workload, name)
    except PlanError:
        return None
    return [f"{name}, {workload.parts}: {fault}" for fault in check_plan(plan, rng)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(CI))
def test_plans_answer_exactly_the_row_space(seed):
    faults = check_random_plan(seed, 100)
    assert not faults, faults[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(CI, CI + NIGHTLY))
def test_many_plans_answer_exactly_the_row_space(seed):
    faults = check_random_plan(seed, 400)
    assert not faults, faults[0]


@pytest.mark.parametrize("family", ["abs", "affine"])
@pytest.mark.parametrize("sizes", mostly_slow([(6, 3, 5, 5), (5, 5, 5, 5)], {(5, 5, 5, 5)}))
def test_joint_families_answer_exactly_the_row_space(family, sizes):
    """Some sets are measured by a strategy of several residuals, others by one with fewer rows than its residual."""
    domain = dp.Domain({f"a{i}": size for i, size in enumerate(sizes)})
    plan = dp.plan(Workload(domain).add(family, degree=2))
    assert isinstance(plan.accuracy, CoupledResiduals)
    faults = check_plan(plan, np.random.default_rng(0))
    assert not faults, faults[0]


def test_planted_missing_span_check_is_detected(monkeypatch):
    monkeypatch.setattr(CoupledResiduals, "_check_span", lambda *_: None)
    domain = dp.Domain({"a0": 7, "a1": 6, "a2": 7, "a3": 7})
    faults = check_plan(dp.plan(Workload(domain).add("abs", degree=2)), np.random.default_rng(0))
    assert any("outside the row space" in fault for fault in faults)


def test_query_outside_span_is_refused_by_every_interface(tmp_path):
    """A regression test of one point query, through the plan, the release and the files."""
    domain = {"attributes": {f"a{i}": {"kind": "integer", "low": 0, "high": size - 1}
                             for i, size in enumerate((6, 3, 5, 5))}}  # fmt: skip
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({f"a{i}": rng.integers(0, size, 500) for i, size in enumerate((6, 3, 5, 5))})
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(domain))
    job = {"data": {"path": str(tmp_path / "data.parquet"), "domain": str(tmp_path / "domain.toml")},
           "privacy": {"epsilon": 1.0, "delta": 1e-9, "dataset": "span", "ledger": str(tmp_path / "ledger.sqlite")},
           "workload": [{"family": "abs", "degree": 2}], "engine": {"scheduler": "synchronous"}}  # fmt: skip
    frame.to_parquet(tmp_path / "data.parquet")
    release = dp.run(job, tmp_path / "run")
    point = np.zeros((3, 5))
    point[1, 1] = 1
    refused = [
        lambda: release.plan.variance(("a1", "a2"), point),
        lambda: release.answer(("a1", "a2"), query=point),
        lambda: release.marginal(("a1", "a2")),
        lambda: release.table(("a1", "a2"), family="marginal"),
        lambda: release.mean("a2", by="a1"),
        lambda: release.quantile("a2", 0.5, by="a1"),
        lambda: release.plot(("a1", "a2")),
    ]
    for call in refused:
        with pytest.raises(dp.PlanError):
            call()
    files = list((tmp_path / "run" / "answers").iterdir())
    assert {path.name for path in files} == {"abs-2", "index.parquet"}
    assert "a1 = " not in (tmp_path / "run" / "report.html").read_text()
