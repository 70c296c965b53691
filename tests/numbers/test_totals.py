"""Totals of units: clipped values by brute force, the effect of one unit, runs, engines, evidence and refused jobs."""

import json
import shutil
import sys
import tomllib
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import tomli_w
from click.testing import CliRunner
from hypothesis import given, settings, strategies as st

import dpscale as dp
from dpscale.__main__ import main
from dpscale.audit.evidence.check import check_bundle
from dpscale.audit.evidence.sensitivities import shape_faults
from dpscale.base.errors import DomainError, JobError, PlanError
from dpscale.contributions.unit_totals import ChangedCodes, clipped_codes
from dpscale.counting.count import ExactMarginal
from dpscale.domain import Domain
from dpscale.ledger import Ledger
from dpscale.measurement import measurement as blocks
from dpscale.plans import plan as plans
from dpscale.plans.measurement_plan import plan_draws
from dpscale.records.where import ClippedRows, RowMask
from dpscale.workload import Workload
from tests.audit.small import measurements
from tests.messages import refused
from tests.numbers.small import write_job
from tests.numbers.test_sensitivity import record_marginals, spent
from tests.selection import mostly_slow

EXACT = {"privacy_cost": 1e12, "dataset": "numbers", "allow_weak_privacy": True}  # hardly any noise
TOTAL = {"high": 60, "per_unit": "total", "nulls": "zero"}
DATA = {"path": "data", "domain": "domain.toml", "privacy_unit": "unit", "max_rows_per_unit": 3}
WORKLOAD = [
    {"family": "sum", "of": "pay", "attributes": [["a"], ["a", "b"], []]},
    {"family": "mean", "of": "pay", "attributes": [["b"]]},
    {"family": "marginal", "degree": 2},
]


def make_frame(rows: int = 900, seed: int = 1) -> pd.DataFrame:
    """Return rows of 300 units of one to six rows; values have both signs, or none, and some exceed the bound."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame({"a": random.integers(0, 4, rows), "b": random.integers(0, 3, rows)})
    frame["pay"] = np.rint(random.normal(15, 25, rows))
    frame.loc[random.random(rows) < 0.1, "pay"] = np.nan
    frame["unit"] = random.integers(0, 300, rows)
    return frame


def write(folder, number=None, frame=None, files=2, **changes):
    """Write a job with a number whose totals are bounded."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data").mkdir(exist_ok=True)
    frame = make_frame() if frame is None else frame
    for name, rows in enumerate(np.array_split(np.arange(len(frame)), files)):
        frame.iloc[rows].to_parquet(folder / f"data/{name}.parquet", index=False)
    sizes = {name: {"kind": "coded", "size": size} for name, size in (("a", 4), ("b", 3))}
    (folder / "domain.toml").write_text(tomli_w.dumps({"attributes": sizes, "numbers": {"pay": number or TOTAL}}))
    return write_job(folder, changes.pop("workload", WORKLOAD), data=changes.pop("data", DATA), **changes)


# ---- values ----------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(-9, 9), min_size=1, max_size=5), max_size=5), st.integers(1, 30))
def test_values_are_clipped_one_after_the_other(units, bound):
    wanted, codes, new = [], [], []
    for values in units:
        left = bound
        for place, value in enumerate(values):
            inside = max(min(value, bound), -bound)
            used = min(abs(inside), left)
            left -= used
            wanted.append(used if inside > 0 else -used)
            codes.append(inside + bound)
            new.append(place == 0)
    found = clipped_codes(np.array(codes, np.int64), np.array(new, bool), bound) - bound
    assert found.tolist() == wanted


def test_codes_of_a_batch_change_at_their_places():
    rows = ClippedRows.of_changes(None, {"v": (np.array([1, 4, 5, 9]), np.array([7, 8, 9, 6], np.uint32))})
    codes = np.zeros((2, 4), np.uint8)
    rows.clip(codes, ["a", "v"], 3)
    assert codes.tolist() == [[0, 0, 0, 0], [0, 8, 9, 0]]
    rows.clip(codes, ["a"], 0)
    assert not codes[0].any()
    assert not rows.within(2, 4).any()
    assert ClippedRows.of_changes(RowMask.of(np.array([True, False, True])), {}).within(1, 3).tolist() == [0, 1, 0]
    assert "7" not in repr(rows)


def test_sums_are_those_of_clipped_units(tmp_path):
    """Values of one sign and at most three rows: the total of a unit is min(Σ v, B), whatever the order of its rows."""
    frame = make_frame()
    frame["pay"] = frame.pay.abs()
    frame = frame[frame.groupby("unit").cumcount() < 3]
    job = write(tmp_path, frame=frame, privacy=EXACT)
    release = dp.run(job, run_dir=tmp_path / "run")
    units = frame.assign(pay=frame.pay.fillna(0)).groupby("unit").pay.sum()
    assert (units > 60).sum() > 20
    assert release.sum("pay").estimate == pytest.approx(np.minimum(units, 60).sum(), abs=1e-2)
    assert release.sum("pay", by=["a"]).estimate.sum() == pytest.approx(np.minimum(units, 60).sum(), abs=0.1)
    np.testing.assert_allclose(release.table(["a"]).estimate, frame.a.value_counts().sort_index(), atol=1e-2)


def test_a_unit_with_all_rows_counts_once(tmp_path):
    """The cells of the values of one large unit: its values reach the bound exactly, in a part of its rows."""
    frame = pd.DataFrame({"a": [0, 1, 2] * 2, "b": 0, "pay": [-50.0, 7, 40, 1, 1, 1], "unit": [1, 1, 1, 2, 3, 4]})
    job = write(tmp_path, frame=frame, privacy=EXACT)
    release = dp.run(job, run_dir=tmp_path / "run")
    sums = release.sum("pay", by=["a"]).estimate.to_numpy()[:3] - 1  # without the other units
    assert np.abs(sums).sum() == pytest.approx(60, abs=1e-2)
    full = sum(abs(own - value) < 1e-2 for own, value in zip(sums, (-50, 7, 40), strict=True))
    assert full == 2  # one value is cut to the rest, or is 0


# ---- privacy ---------------------------------------------------------------------------------------------------------


def draw_plan(random, mechanism, noise="gaussian"):
    sizes = {f"a{i}": {"kind": "coded", "size": int(random.integers(2, 5))} for i in range(random.integers(1, 3))}
    numbers = {"v": {"high": int(random.integers(1, 9)), "per_unit": "total", "nulls": "zero"}}
    if random.random() < 0.3:
        numbers["w"] = {"low": -2, "high": 3, "nulls": "skip"}
    rows = int(random.integers(1, 5))
    domain = Domain.from_dict({"attributes": sizes, "numbers": numbers}).for_rows_per_unit(rows)
    workload = Workload(domain).add(
        str(random.choice(["sum", "mean"])), degree=int(random.integers(0, 3)) % (len(sizes) + 1), of="v"
    )
    if "w" in numbers:
        workload.add("sum", degree=1, of="w")
    if random.random() < 0.7:
        workload.add(str(random.choice(["marginal", "prefix"])), degree=len(sizes))
    return dp.plan(workload, mechanism, noise=noise), rows


def unit_marginals(random, domain, rows, sets):
    """Return the exact marginals of a unit with at most `rows` rows whose absolute values sum to at most the bound."""
    left, parts, last = domain["v"].high, [], {}
    for place in range(rows):
        cells = {one.name: int(random.choice([0, one.code_count - 1, random.integers(0, one.code_count)]))
                 for one in domain.axes}  # fmt: skip
        value = left if random.random() < 0.5 else int(random.integers(0, left + 1))
        value = left if place == rows - 1 and random.random() < 0.5 else value
        left -= value
        cells["v"] = domain["v"].high + (value if random.random() < 0.5 else -value)
        if random.random() < 0.5:
            cells |= {name: own for name, own in last.items() if name != "v"}
        last = cells
        parts.append(record_marginals(domain, cells, sets))
    return {names: ExactMarginal(names, sum(one[names].counts for one in parts), parts[0][names].denominators)
            for names in sets}  # fmt: skip


@pytest.mark.parametrize("number", mostly_slow(range(8), {0}))
def test_cost_bounds_every_unit(number):
    closest, refused = Fraction(0), 0
    for seed in range(number * 25, (number + 1) * 25):
        random = np.random.default_rng(seed)
        mechanism = str(random.choice(["weighted-residuals", "residual-planner", "weighted-fourier", "query-smasher",
                                       "hdmm", "identity"]))  # fmt: skip
        try:
            plan, rows = draw_plan(random, mechanism, "laplace" if seed % 5 == 0 else "gaussian")
        except PlanError:
            assert mechanism in ("hdmm", "identity")
            refused += 1
            continue
        draws = plan_draws(plan, 0.7, rows_per_unit=rows)
        for _ in range(40):
            unit = unit_marginals(random, plan.workload.domain, rows, plan.counted_sets)
            effect = spent(plan, draws, unit)
            assert effect <= draws.amount, (seed, mechanism)
            closest = max(closest, effect / draws.amount)
    assert closest > 0.9
    assert refused < 25


def test_measurements_of_cells_exceed_the_cost(monkeypatch):
    """Planted violation: a mechanism that measures sums and counts together, and a total that is not clipped."""
    monkeypatch.setattr(plans, "_check_totals", lambda *_: None)
    domain = Domain.from_dict({"attributes": {"a": {"kind": "coded", "size": 2}}, "numbers": {"v": {
        "high": 5, "per_unit": "total", "nulls": "zero"}}}).for_rows_per_unit(3)  # fmt: skip
    sets = [("a", "v")]
    for mechanism, value, exceeds in (
        ("identity", 5, True),
        ("weighted-residuals", 5, False),
        ("weighted-residuals", 6, True),
    ):
        plan = dp.plan(Workload(domain).add("sum", degree=1, of="v"), mechanism, noise="laplace")
        draws, sets = plan_draws(plan, 0.7, rows_per_unit=3), plan.counted_sets
        first = record_marginals(domain, {"a": 0, "v": 5 + value}, sets)
        others = record_marginals(domain, {"a": 1, "v": 5}, sets)
        unit = {names: ExactMarginal(names, first[names].counts + 2 * others[names].counts, first[names].denominators)
                for names in sets}  # fmt: skip
        assert (spent(plan, draws, unit) > draws.amount) == exceeds, mechanism


def test_mechanisms_that_mix_sums_and_counts_are_refused():
    domain = Domain.from_dict({"attributes": {"a": {"kind": "coded", "size": 2}}, "numbers": {"v": TOTAL, "w": TOTAL}})
    with refused(PlanError):
        dp.plan(Workload(domain).add("sum", degree=1, of="v"), "identity")
    with refused(PlanError):
        dp.plan(Workload(domain).add_product({"v": "sum", "w": "sum"}))


def test_measurement_of_negative_parts_is_exact(monkeypatch):
    """The values of a unit are far beyond k times its number of rows; limbs and words must keep their sign."""
    domain = Domain.from_dict({"attributes": {"a": {"kind": "coded", "size": 300}}, "numbers": {"v": {
        "high": 5000, "per_unit": "total"}}}).for_rows_per_unit(40)  # fmt: skip
    plan = dp.plan(Workload(domain).add("sum", degree=1, of="v", queries="prefix"))
    draws, random = plan_draws(plan, 1.0, rows_per_unit=40), np.random.default_rng(0)
    codes = 5000 + random.choice([-5000, 5000, 4000], 3000)
    parts = domain["v"].parts(codes.astype(np.uint32))
    counts = np.zeros((300, 2), np.int64)
    np.add.at(counts, random.integers(0, 300, 3000), parts)
    assert counts.min() < 0
    marginal = ExactMarginal(("a", "v"), counts, (1, 10_000))
    for index, block in enumerate(plan.blocks):
        ways = set()
        for most, words in ((1 << 126, 1 << 60), (1 << 126, 0), (0, 0)):
            monkeypatch.setattr(blocks, "MOST_WIDE", most)
            monkeypatch.setattr(blocks, "LARGE", words)
            ways.add(blocks.measure_block(block, draws[index], marginal, bytes(32), {}).tobytes())
        assert len(ways) == 1


def test_parts_of_products_with_totals_are_limited():
    numbers = {"v": {"high": 1000, "per_unit": "total"}, "w": {"low": 0, "high": 1000}}
    attributes = {"a": {"kind": "coded", "size": 2}}
    domain = Domain.from_dict({"attributes": attributes, "numbers": numbers})
    for rows, fits in ((1000, True), (2000, False)):
        workload = Workload(domain.for_rows_per_unit(rows)).add_product({"v": "sum", "w": "sum"})
        if fits:
            dp.plan(workload)
        else:
            with refused(PlanError):
                dp.plan(workload)


def test_changed_values_show_no_size_and_fit_the_memory(tmp_path):
    empty = [(np.empty((0, 2), np.int64), np.empty(0, np.uint32))]
    many = [(np.zeros((1000, 2), np.int64), np.zeros(1000, np.uint32))]
    assert sys.getsizeof(ChangedCodes([empty])) == sys.getsizeof(ChangedCodes([many]))
    rows = [ClippedRows.of_changes(None, {"v": (own[0][0][:, 0], own[0][1])}) for own in (empty, many)]
    assert sys.getsizeof(rows[0]) == sys.getsizeof(rows[1])
    messages = set()
    for rows in (880, 900):
        job = write(tmp_path, frame=make_frame().iloc[:rows], engine={"seed": 5, "memory": "40 KiB"})
        with refused(PlanError) as met:
            dp.run(job, run_dir=tmp_path / f"run{rows}")
        messages.add(str(met.value))
    assert len(messages) == 1  # the number of rows is private
    with Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert not ledger.summary()["datasets"]


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_errors_and_domain_of_a_run(tmp_path):
    release = dp.run(write(tmp_path), run_dir=tmp_path / "run")
    frame = make_frame()
    assert release.domain["pay"].describe()["rows_per_unit"] == 3
    kept = frame[frame.groupby("unit").cumcount() < 3]
    assert abs(release.total().estimate - len(kept)) < 100
    sums = release.sum("pay", by=["a"])
    assert (sums.std_error < 200).all()
    mean = release.mean("pay", by=["b"])
    assert ((mean.low < mean.estimate) & (mean.estimate < mean.high)).all()
    page = (release.path / "report.html").read_text()
    assert 'id="numbers"' in page
    again = dp.Release.open(release.path)
    assert again.sum("pay").estimate == release.sum("pay").estimate


def test_means_are_limited_by_the_bound_and_not_by_the_cells(tmp_path):
    """One row of each unit reaches the bound: the mean is 60, although the cells stand for −20 and 20."""
    frame = pd.DataFrame({"a": 0, "b": 0, "pay": 60.0, "unit": range(3000)})
    release = dp.run(write(tmp_path, frame=frame), run_dir=tmp_path / "run")
    assert release.mean("pay").estimate == pytest.approx(60, rel=0.2)


def test_files_order_of_rows_and_passes_do_not_change_sums(tmp_path):
    first = dp.run(write(tmp_path / "one", privacy=EXACT), run_dir=tmp_path / "one/run")
    frame, engine = make_frame().sample(frac=1, random_state=3), {"seed": 5, "memory": "64 KiB"}
    second = dp.run(write(tmp_path / "two", None, frame, 5, privacy=EXACT, engine=engine), run_dir=tmp_path / "two/run")
    for by in (["a"], ["a", "b"], []):
        one, other = (release.sum("pay", by=by).estimate for release in (first, second))
        np.testing.assert_allclose(one, other, atol=0.05)


@pytest.mark.parametrize("scheduler", mostly_slow(["threads", "processes"], {"threads"}))
def test_schedulers_give_the_same_bytes(tmp_path, scheduler):
    job = write(tmp_path)
    first = dp.run(job, run_dir=tmp_path / "one")
    engine = {"scheduler": scheduler, "seed": 5, "memory": "64 KiB"}
    other = write_job(tmp_path, WORKLOAD, "other.toml", data=DATA, engine=engine)
    second = dp.run(other, run_dir=tmp_path / "two")
    assert measurements(first.path) == measurements(second.path)


def test_evidence_finds_totals_that_are_not_bounded(tmp_path):
    release = dp.run(write(tmp_path), run_dir=tmp_path / "run")
    (tmp_path / "selftest.json").write_text(json.dumps([{"name": "none", "passed": True, "detail": "not run"}]))
    given = ["evidence", str(release.path), "--selftest", str(tmp_path / "selftest.json")]
    assert CliRunner().invoke(main, given, catch_exceptions=False).exit_code == 0
    assert check_bundle(release.path / "evidence")["parts"]
    part = json.loads((release.path / "evidence/parts.json").read_text())["data"]
    factors = {"same": {"shape": [2], "kind": "identity"}, "a": {"shape": [4], "kind": "identity"},
               "centred": {"shape": [2], "kind": "matrix", "matrix": [[-1, 1]]}}  # fmt: skip
    both = {"shape": [4, 2], "kind": "matrix", "matrix": [[1, -1, 0, 0, 2, -2, 0, 0]]}
    tilted = {"shape": [4, 2], "kind": "matrix", "matrix": [[1, -1, 1, 0, -1, 0, 0, 0]]}
    factors |= {"both": both, "tilted": tilted}
    draw = {"part": "data", "attributes": ["a", "pay"], "factors": ["a", "centred"], "decision": 0,
            "multiplier": "1200", "bound": "rows"}  # fmt: skip
    assert not list(shape_faults(draw, part, factors))
    draw["factors"] = ["both"]
    assert not list(shape_faults(draw, part, factors))
    unbounded = ["the measurement of (a, pay) is not bounded by the total of a unit"]
    for given in (["a", "same"], ["tilted"]):
        draw["factors"] = given
        assert list(shape_faults(draw, part, factors)) == unbounded
    draw["factors"], part["bounds"]["rows"]["changes"] = ["both"], [[[1, 2]]]
    assert list(shape_faults(draw, part, factors)) == [
        "the measurement of (a, pay) has a total over another number of rows of a unit"
    ]


@pytest.mark.parametrize("number", [
    {"high": 9, "per_unit": "rows"},
    {"low": 0, "high": 9, "per_unit": "total"},
    {"high": "private", "low": "private", "per_unit": "total"},
    {"high": 9, "per_unit": "total", "nulls": "skip"},
    {"high": 9, "per_unit": "total", "squares": True},
    {"low": 0, "high": 9, "rows_per_unit": 2},
    {"high": 9, "per_unit": "total", "rows_per_unit": 0},
    {"high": 1 << 31, "per_unit": "total"},
    {"per_unit": "total"},
])  # fmt: skip
def test_wrong_domains_are_refused(number):
    with refused(DomainError):
        Domain.from_dict({"attributes": {"a": {"kind": "coded", "size": 2}}, "numbers": {"pay": number}})


def test_wrong_jobs_are_refused(tmp_path):
    with refused(JobError):
        dp.run(write(tmp_path, data={"path": "data", "domain": "domain.toml"}), run_dir=tmp_path / "run")
    workload = [{"family": "variance", "of": "pay", "degree": 1}]
    with refused(DomainError):
        dp.run(write(tmp_path, workload=workload), run_dir=tmp_path / "run")
    with refused(DomainError):
        dp.run(write(tmp_path, {**TOTAL, "high": 1 << 29}), run_dir=tmp_path / "run")


def test_a_unit_that_is_also_an_attribute_is_read_by_its_id(tmp_path):
    """All but two units are in one cell of the attribute; their totals are bounded one by one nevertheless."""
    units = "u" + pd.Series(np.arange(600) // 2).astype(str)
    frame = pd.DataFrame({"a": 0, "b": 0, "pay": 50.0, "unit": units})
    workload = [*WORKLOAD, {"family": "marginal", "attributes": [["unit"]]}]
    job = write(tmp_path, frame=frame, privacy=EXACT, workload=workload)
    content = tomllib.loads((tmp_path / "domain.toml").read_text())
    content["attributes"]["unit"] = {"kind": "categories", "values": ["u0", "u1"], "outside": "category"}
    (tmp_path / "domain.toml").write_text(tomli_w.dumps(content))
    shutil.rmtree(tmp_path / "data")
    frame.to_csv(tmp_path / "data.csv", index=False)
    job.write_text(job.read_text().replace('path = "data"', 'path = "data.csv"'))
    release = dp.run(job, run_dir=tmp_path / "run")
    assert release.sum("pay").estimate == pytest.approx(300 * 60, abs=1)


def test_total_of_a_unit_through_another_table(tmp_path):
    frame = make_frame().rename(columns={"unit": "account"})
    pd.DataFrame({"account": range(300), "owner": np.arange(300) // 2}).to_parquet(tmp_path / "owners.parquet")
    hop = [{"path": "owners.parquet", "key": "account", "unit": "owner"}]
    data = {**DATA, "privacy_unit": "account", "max_rows_per_unit": 20, "unit_through": hop}
    frame["pay"] = frame.pay.abs()
    job = write(tmp_path, frame=frame, data=data, privacy=EXACT)
    release = dp.run(job, run_dir=tmp_path / "run")
    totals = defaultdict(float)
    for account, value in zip(frame.account, frame.pay.fillna(0), strict=True):
        totals[account // 2] += value
    assert release.sum("pay").estimate == pytest.approx(sum(min(one, 60) for one in totals.values()), abs=1)
