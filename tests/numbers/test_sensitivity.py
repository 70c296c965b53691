"""The charged cost bounds the effect of one record on 200 random jobs with sums, by brute force."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

import dpscale as dp
from dpscale.base.errors import JobError
from dpscale.counting.count import ExactMarginal
from dpscale.domain import Domain, Number
from dpscale.measurement.measurement import block_product, measure_block, project
from dpscale.plans.measurement_plan import plan_draws
from dpscale.privacy.draws import SMOOTHING, LaplaceDraw
from dpscale.workload import Workload
from tests.messages import refused
from tests.selection import mostly_slow

MECHANISMS = ("weighted-residuals", "query-smasher", "residual-planner", "identity", "hdmm", "eigen-design",
              "weighted-fourier")  # fmt: skip
JOBS = 200


def draw_domain(random: np.random.Generator) -> Domain:
    attributes = {f"a{i}": {"kind": "coded", "size": int(random.integers(2, 5))} for i in range(random.integers(1, 3))}
    numbers = {
        f"v{i}": {"low": int(random.integers(-9, 1)), "high": int(random.integers(1, 9)),
                  "nulls": str(random.choice(["skip", "zero"]))}
        for i in range(random.integers(1, 3))
    }  # fmt: skip
    return Domain.from_dict({"attributes": attributes, "numbers": numbers})


def draw_workload(random: np.random.Generator, domain: Domain) -> Workload:
    workload = Workload(domain)
    for name in sorted(domain.number_names):
        family = str(random.choice(["sum", "mean", "variance"]))
        given = {"queries": str(random.choice(["marginal", "prefix"]))} if random.random() < 0.5 else {}
        workload.add(family, degree=int(random.integers(0, len(domain) + 1)), of=name, **given)
    if random.random() < 0.7:
        workload.add("marginal", degree=len(domain))
    return workload


def record_marginals(domain: Domain, cells: dict[str, int], sets) -> dict[tuple[str, ...], ExactMarginal]:
    """Return the exact marginals of a table with one record, from the parts of its numbers."""
    axes = {}
    for one in domain.axes:
        codes = np.array([cells[one.name]], np.uint32)
        axes[one.name] = one.parts(codes)[0] if isinstance(one, Number) else np.eye(one.size, dtype=np.int64)[codes[0]]
    found = {}
    for names in sets:
        counts = np.ones((), np.int64)
        for name in names:
            counts = np.multiply.outer(counts, axes[name])
        found[names] = ExactMarginal(names, counts, tuple(domain[name].denominator for name in names))
    return found


def spent(plan, draws, record) -> Fraction:
    """Return Σ of the squared effects of one record over the noise variances, or of L1 effects over scales."""
    total = Fraction(0)
    for index, block in enumerate(plan.blocks):
        draw, exact = draws[index], project(record[plan.counted_sets[int(plan.sources.source[index])]], block)
        effect = block_product(block, exact.counts.copy()).reshape(-1) * (draw.multiplier // exact.denominator)
        values = [int(value) for value in effect.tolist()]
        if isinstance(draw, LaplaceDraw):
            total += Fraction(sum(map(abs, values)), draw.scale)
        else:
            total += Fraction(sum(value**2 for value in values), draw.variance - SMOOTHING)
    return total


@pytest.mark.parametrize("number", mostly_slow(range(20), {0, 2}))
def test_cost_bounds_every_record(number):
    """Records are drawn with values at the ends, between them and missing; the bound is attained in some jobs."""
    closest = Fraction(0)
    for seed in range(number * JOBS // 20, (number + 1) * JOBS // 20):
        random = np.random.default_rng(seed)
        workload = draw_workload(random, draw_domain(random))
        noise = "laplace" if seed % 5 == 0 else "gaussian"
        try:
            plan = dp.plan(workload, str(random.choice(MECHANISMS)), noise=noise)
        except dp.PlanError:
            plan = dp.plan(workload, "weighted-residuals", noise=noise)
        draws, domain = plan_draws(plan, 0.7), workload.domain
        for _ in range(12):
            cells = {one.name: int(random.choice([0, one.code_count - 1, random.integers(0, one.code_count)]))
                     for one in domain.axes}  # fmt: skip
            effect = spent(plan, draws, record_marginals(domain, cells, plan.counted_sets))
            assert effect <= draws.amount
            closest = max(closest, effect / draws.amount)
    assert closest > 0.97


def one_number(high: int) -> Domain:
    attributes = {"a": {"kind": "coded", "size": 3}}
    return Domain.from_dict({"attributes": attributes, "numbers": {"v": {"low": 0, "high": high}}})


def test_value_beyond_the_range_exceeds_the_cost():
    """Planted violation: a record whose steps are not clipped."""
    domain = one_number(9)
    plan = dp.plan(Workload(domain).add("sum", degree=1, of="v"))
    draws = plan_draws(plan, 0.7)
    record = record_marginals(domain, {"a": 0, "v": 12}, plan.counted_sets)
    assert spent(plan, draws, record) > draws.amount


def test_unit_of_several_rows_costs_their_square():
    domain = one_number(9)
    plan = dp.plan(Workload(domain).add("sum", degree=1, of="v"))
    draws = plan_draws(plan, 0.7, rows_per_unit=3)
    record = record_marginals(domain, {"a": 0, "v": 9}, plan.counted_sets)
    assert 0.97 * draws.amount < 9 * spent(plan, draws, record) <= draws.amount


def test_noise_for_other_denominators_is_refused():
    """Its multiplier is no multiple of the steps, so counts would be rounded."""
    domain = one_number(7)
    plan = dp.plan(Workload(domain).add("sum", degree=1, of="v"))
    draws, record = plan_draws(plan, 0.7), record_marginals(domain, {"a": 0, "v": 3}, [("a", "v")])
    for index, block in enumerate(plan.blocks):
        if "v" in block.attributes:
            assert draws[index].multiplier % 7 == 0
            other = replace(draws[index], multiplier=draws[index].multiplier + 1)
            with refused(JobError):
                measure_block(block, other, record["a", "v"], bytes(32), {})
