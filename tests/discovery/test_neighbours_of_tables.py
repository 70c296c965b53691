"""Searches and numbers of units of several tables by brute force: one unit changes at most what is charged.

Tiny databases are searched and counted exactly, without noise. For every neighbour the change of all counts of all
tables is weighed by the noise that the run would add, and compared with the entries on the ledger. Some unit has as
many rows as the bounds permit, so the charge is also no larger than necessary. Additive deltas are compared with sums
of the discrete Gaussian over all splits of a unit's rows.
"""

import math
import tomllib
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pandas as pd
import pytest
import tomli_w

import dpscale as dp
from dpscale.audit.evidence import bundle, recompute
from dpscale.audit.evidence.check import check_bundle
from dpscale.discovery.value_counts import Threshold
from dpscale.engine.schedulers import resolve
from dpscale.job.neighbours import NeighbourRelation
from dpscale.privacy.accounting import Cost
from dpscale.privacy.draws import GaussianDraw
from dpscale.runs.charge import cost_of_entry
from dpscale.runs.opening import begin_run, open_run, read_job
from dpscale.runs.searches import perform_search
from dpscale.runs.source import open_table
from dpscale.runs.stages import discover, units
from tests.audit.test_bundle import PASSED
from tests.discovery.tables import UNITS

PERSONS, SMOOTHING = 7, 8
TABLES = {"persons": "city", "orders": "item", "payments": "kind"}
ROWS = {"persons": 1, "orders": 2, "payments": 6}  # of a unit, by the bounds of the links


def make_database(seed=0):
    """Return persons, orders and payments; person 0 has equal values, person 1 different ones, both many rows."""
    rng = np.random.default_rng(seed)
    persons = pd.DataFrame({"id": range(PERSONS), "city": rng.choice(["x", "y"], PERSONS)})
    buyers = np.repeat(range(PERSONS), [4, 4, *rng.integers(0, 4, PERSONS - 2)])
    orders = pd.DataFrame({"order": 100 + np.arange(len(buyers)), "person": buyers,
                           "item": rng.choice(["a", "b", "c"], len(buyers))})  # fmt: skip
    orders.loc[orders.person == 0, "item"] = "a"
    orders.loc[orders.person == 1, "item"] = ["a", "b", "c", "d"]
    payers = np.repeat(orders.order, np.where(orders.person < 2, 4, rng.integers(0, 4, len(orders)))).to_numpy()
    payments = pd.DataFrame({"order": payers, "kind": rng.choice(["k", "l", "m"], len(payers))})
    owner = orders.set_index("order").person.reindex(payers).to_numpy()
    payments.loc[owner == 0, "kind"] = "k"
    payments.loc[owner == 1, "kind"] = [f"k{number}" for number in range(16)]
    return {"persons": persons, "orders": orders, "payments": payments}


def without(data, person):
    """Return the neighbouring database without a person, the person's orders and their payments."""
    orders = data["orders"][data["orders"].person != person]
    return {"persons": data["persons"][data["persons"].id != person], "orders": orders,
            "payments": data["payments"][data["payments"].order.isin(orders.order)]}  # fmt: skip


def write_database(folder, data, **more):
    """Write a database and its job; return the run, of which nothing is charged."""
    folder.mkdir()
    tables = {}
    for name, frame in data.items():
        frame.to_parquet(folder / f"{name}.parquet", index=False)
        column = TABLES[name]
        (folder / f"{name}.toml").write_text(tomli_w.dumps({"attributes": {column: {"kind": "discover"}}}))
        workload = [{"family": "marginal", "degree": 1}, {**UNITS, "attributes": [[column], []]}]
        tables[name] = {"path": f"{name}.parquet", "domain": f"{name}.toml", "mechanism": "residual-planner",
                        "workload": workload}  # fmt: skip
    tables["persons"]["key"], tables["orders"]["key"] = "id", "order"
    one = {"kind": "one-to-many", "dangling": "drop"}
    links = [
        one | {"name": "orders", "parent": "persons", "child": "orders", "child_key": "person", "max_degree": 2},
        one | {"name": "payments", "parent": "orders", "child": "payments", "child_key": "order", "max_degree": 3},
    ]
    job = {"tables": tables, "link": links, "privacy": {"epsilon": 5.0, "delta": 1e-4},
           "engine": {"scheduler": "synchronous", "seed": 1}, **more}  # fmt: skip
    (folder / "job.toml").write_text(tomli_w.dumps(job))
    return begin_run(read_job(folder / "job.toml"), folder / "run")


def exact_values(run, monkeypatch):
    """Return the exact counts of the values in every table, and the squared multiplier over the variance."""
    found, engine = {}, resolve(scheduler="synchronous")
    with monkeypatch.context() as patch:
        patch.setattr(GaussianDraw, "words", lambda self, stream, count: np.zeros(count, np.int64))
        for name, table in run.tables.items():
            checked = discover.prepare(table, engine)
            [plan] = checked.plans.values()
            draw = plan.threshold.draw
            whole = replace(plan, threshold=Threshold(draw, 1, plan.threshold.delta))
            _, released = perform_search(table.declared[TABLES[name]], whole, checked.reader)
            counts = {one["value"]: one["count"] for one in released["found"]}
            found[name] = pd.Series(counts, dtype=float), Fraction(draw.multiplier**2, draw.variance - SMOOTHING)
    return found


def changed(before, after):
    """Return the sum of the squared changes of the counts of two series."""
    return float((before.sub(after, fill_value=0) ** 2).sum())


def weighed(before, after):
    """Return the squared mu by which the exact counts of all tables differ."""
    return sum(changed(before[name][0], after[name][0]) * float(before[name][1]) for name in before)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_searches_of_all_tables_cost_at_most_the_charge(tmp_path, monkeypatch, seed):
    data = make_database(seed)
    run = write_database(tmp_path / "all", data)
    assert dict(run.content.neighbours.rows) == ROWS
    whole, charge = exact_values(run, monkeypatch), float(cost_of_entry(run, "discovery").squared_mu)
    changes = {}
    for person in range(PERSONS):
        left = write_database(tmp_path / str(person), without(data, person))
        changes[person] = weighed(whole, exact_values(left, monkeypatch))
    assert max(changes.values()) == changes[0] == pytest.approx(charge, rel=1e-9), "the whole charge is needed"
    assert changes[1] < 0.9 * charge


def test_planted_charge_of_single_rows_is_too_small(tmp_path, monkeypatch):
    """The same noise, charged as if a unit had one row in each table."""
    data = make_database()
    whole = exact_values(write_database(tmp_path / "all", data), monkeypatch)
    left = exact_values(write_database(tmp_path / "left", without(data, 0)), monkeypatch)
    assert weighed(whole, left) > 2 * sum(float(weight) for _, weight in whole.values())


def test_planted_rows_beyond_the_bound_are_detected(tmp_path, monkeypatch):
    """Planted fault: a table's searches count the rows beyond the bound."""
    monkeypatch.setattr(discover, "rows_beyond_bound", lambda *_: None)
    with pytest.raises(AssertionError):
        test_searches_of_all_tables_cost_at_most_the_charge(tmp_path, monkeypatch, 0)


def test_planted_bound_of_the_link_alone_is_detected(tmp_path, monkeypatch):
    """Planted fault: payments are charged for the bound of their link, although a person has several orders."""
    real = NeighbourRelation.__init__

    def flat(self, *arguments, **settings):
        real(self, *arguments, **settings)
        object.__setattr__(self, "rows", {**self.rows, "payments": 3} if "payments" in self.rows else self.rows)

    data = make_database()
    whole = exact_values(write_database(tmp_path / "all", data), monkeypatch)
    left = exact_values(write_database(tmp_path / "left", without(data, 0)), monkeypatch)
    monkeypatch.setattr(NeighbourRelation, "__init__", flat)
    run = write_database(tmp_path / "flat", data)
    wrong = {name: (counts, Fraction(plan.threshold.draw.multiplier**2, plan.threshold.draw.variance - SMOOTHING))
             for (name, (counts, _)), plan in zip(whole.items(), plans_of(run).values(), strict=True)}  # fmt: skip
    assert weighed(wrong, left) > 1.5 * float(cost_of_entry(run, "discovery").squared_mu)


def plans_of(run):
    """Return the plan of the only search of every table."""
    return {name: next(iter(discover.plan_searches(table).values())) for name, table in run.tables.items()}


# ---- replaced rows ---------------------------------------------------------------------------------------------------


def replaced(folder, data):
    """Write a database of which a neighbour replaces a row of any table with its links."""
    link = {"kind": "many-to-many", "name": "bought", "parent": "persons", "child": "orders", "via": "orders.parquet",
            "parent_key": "person", "child_key": "order", "max_degree": 4, "protects": "both", "links": 20}  # fmt: skip
    return write_database(folder, {name: data[name] for name in ("persons", "orders")}, link=[link])


def test_replaced_row_costs_at_most_two_steps(tmp_path, monkeypatch):
    data = make_database()
    run = replaced(tmp_path / "all", data)
    assert dict(run.content.steps) == {"persons": 2, "orders": 2}
    whole, charge = exact_values(run, monkeypatch), float(cost_of_entry(run, "discovery").squared_mu)
    single = sum(float(weight) for _, weight in whole.values())
    worst = 0.0
    for name, column in (("persons", "city"), ("orders", "item")):
        other = data[name].copy()
        other.loc[0, column] = "another"
        left = exact_values(replaced(tmp_path / name, data | {name: other}), monkeypatch)
        change = weighed(whole, left)
        assert 1.9 * float(whole[name][1]) < change <= charge
        assert change > float(whole[name][1]), "the cost of one step is too small"
        worst = max(worst, change)
    assert worst <= charge == pytest.approx(4 * single, rel=1e-9)


# ---- additive deltas -------------------------------------------------------------------------------------------------


def passing(draw, threshold, rows):
    """Return P(multiplier · rows + z >= threshold) of the discrete Gaussian, by a sum over the integers."""
    reach = 14 * math.isqrt(draw.variance)
    weights = np.exp(-(np.arange(-reach, reach + 1, dtype=float) ** 2) / (2 * draw.variance))
    return float(weights[max(threshold - draw.multiplier * rows + reach, 0) :].sum() / weights.sum())


def splits(rows):
    """Yield all ways to divide rows into parts."""
    if not rows:
        yield ()
    for first in range(1, rows + 1):
        yield from ((first, *rest) for rest in splits(rows - first) if not rest or rest[0] <= first)


def test_additive_delta_covers_unique_values_in_all_tables(tmp_path):
    """A unit may have values of its own in every table, divided in any way."""
    run = write_database(tmp_path / "all", make_database())
    entry, seen = cost_of_entry(run, "discovery").delta, []
    for name, plan in plans_of(run).items():
        draw, threshold = plan.threshold.draw, plan.threshold.value
        each = {rows: passing(draw, threshold, rows) for rows in range(1, ROWS[name] + 1)}
        seen.append(max(1 - math.prod(1 - each[rows] for rows in own) for own in splits(ROWS[name])))
    unit = 1 - math.prod(1 - one for one in seen)
    assert 0.9 * float(entry) < unit <= float(entry) <= 1e-4 / 2
    lower = plans_of(run)["payments"].threshold
    wrong = 1 - math.prod(1 - passing(lower.draw, lower.value * 9 // 10, rows) for rows in (1,) * ROWS["payments"])
    assert seen[0] + seen[1] + wrong > float(entry), "a threshold that is 10 % too low"


def test_additive_delta_of_replaced_rows_is_that_of_two_steps(tmp_path):
    run = replaced(tmp_path / "all", make_database())
    entry = cost_of_entry(run, "discovery")
    single = Cost.total(plan.cost for plan in plans_of(run).values())
    assert entry.squared_mu == pytest.approx(4 * single.squared_mu, rel=1e-12)
    assert 2 * single.delta < entry.delta <= Fraction(1e-4) / 2
    assert float(entry.delta) > 0.99e-4 / 2
    for name, plan in plans_of(run).items():
        exact = passing(plan.threshold.draw, plan.threshold.value, 1)
        assert exact <= float(plan.threshold.delta) < float(run.job.search_deltas[name]) / 2


@pytest.mark.parametrize(("squared_mu", "steps"), list(product([1e-6, 0.3, 4.0, 100.0], [1, 2, 4])))
def test_delta_of_a_step_is_the_largest_that_fits(squared_mu, steps):
    from dpscale.job.table_job import step_delta

    own = step_delta(1e-6, squared_mu, steps)
    grown = [Cost(gaussian=squared_mu, delta=one).for_group(steps).delta for one in (own, own * 1.001)]
    assert grown[0] <= Fraction(1e-6)
    assert grown[1] > Fraction(1e-6) or own == pytest.approx(1e-6)


# ---- numbers of units ------------------------------------------------------------------------------------------------


def searched(folder, data):
    """Return a run whose cells are those of the data, with all values found."""
    run = write_database(folder, data)
    for name, table in run.tables.items():
        column = TABLES[name]
        values = sorted(make_database()[name][column].unique())
        closed = replace(table.declared[column], values=tuple(values), search=None)
        table.write_domain(table.declared.with_found({column: closed}))
        vars(table)["found"] = table.declared.with_found({column: closed})
        table.update(stages={"discover": {"state": "done", "start": None, "end": None}})
        vars(table)["measurement_plan"] = SimplePlan(((column,),))
    return run


class SimplePlan:
    """The sets that the measurement of rows counts."""

    def __init__(self, counted_sets):
        self.counted_sets = counted_sets


def exact_units(run):
    """Return the exact numbers of units of every set, and the squared multiplier over the variance."""
    found, engine = {}, resolve(scheduler="synchronous")
    for name, table in run.tables.items():
        plan = units.plan_of(table)
        names = units.read_names(table, plan)
        counts = units.exact_counts(table, engine, open_table(table, names, engine), plan, names)
        for own, count, draw in zip(plan.sets, counts, plan.draws, strict=True):
            found[name, own] = pd.Series(count), Fraction(draw.multiplier**2, draw.variance - SMOOTHING)
    return found


def test_units_of_all_tables_cost_at_most_the_charge(tmp_path):
    data = make_database()
    run = searched(tmp_path / "all", data)
    whole = exact_units(run)
    assert whole["persons", ()][0].tolist() == [PERSONS]
    assert whole["payments", ()][0].tolist() == [payers(data)], "units of payments are persons, through the orders"
    charge = float(Cost.total(units.terms(one)[0] for one in run.tables.values()).squared_mu)
    changes = {}
    for person in range(PERSONS):
        left = exact_units(searched(tmp_path / str(person), without(data, person)))
        for (name, own), (counts, _) in whole.items():
            assert changed(counts, left[name, own][0]) <= ROWS[name]
        changes[person] = weighed(whole, left)
    assert max(changes.values()) == changes[1] <= charge
    assert changes[0] < changes[1], "equal values are one cell"
    assert changes[1] > sum(float(weight) for _, weight in whole.values()), "a charge of one cell is too small"


def payers(data):
    owner = data["orders"].set_index("order").person
    return data["payments"].order.map(owner).nunique()


def test_units_of_a_whole_run(tmp_path):
    """All stages of a database of three levels, with little noise and stated additive deltas."""
    data = make_database()
    keys = ("id", "order", "person")
    many = {name: pd.concat([frame.assign(**{key: frame[key] + 1000 * copy for key in keys if key in frame})
                             for copy in range(40)]) for name, frame in data.items()}  # fmt: skip
    write_database(tmp_path / "all", many)
    content = tomllib.loads((tmp_path / "all/job.toml").read_text())
    content["privacy"] = {"privacy_cost": 1e6, "allow_weak_privacy": True, "dataset": "many"}
    private = [name for name, table in content["tables"].items() if not table.get("public")]
    content["budget"] = content.get("budget", {}) | {"tables": {name: {"discover_delta": 1e-9} for name in private}}
    (tmp_path / "all/other.toml").write_text(tomli_w.dumps(content))
    release = dp.run(tmp_path / "all/other.toml", tmp_path / "run")
    assert release.tables["payments"].units([]).estimate[0] == pytest.approx(40 * payers(data), abs=1)
    assert release.tables["orders"].units([]).estimate[0] == pytest.approx(40 * data["orders"].person.nunique(), abs=1)
    kinds = release.tables["payments"].units("kind").set_index("kind").estimate
    exact = data["payments"].assign(owner=data["payments"].order.map(data["orders"].set_index("order").person))
    few = exact.groupby("owner").kind.size().max() > ROWS["payments"]
    assert few, "some payments are beyond the bound"
    assert kinds["l"] <= 40 * exact[exact.kind == "l"].owner.nunique() + 1
    assert release.tables["payments"].found("kind").cell.tolist()[:3] == ["k", "k0", "k1"]


def test_evidence_of_three_levels(tmp_path):
    """The facts that the charge sealed state that a person has some payments."""
    write_database(tmp_path / "all", make_database())
    folder = bundle.write_bundle(open_run(dp.run(tmp_path / "all/job.toml", tmp_path / "run").path), PASSED)
    assert check_bundle(folder)["sound"]
    link = (folder / "job.toml").read_text()
    assert link.count("max_degree = 3") == 1
    (folder / "job.toml").write_text(link.replace("max_degree = 3", "max_degree = 2"))
    assert any("job.toml differs" in one for one in recompute.faults(folder))
    [[[_, change]]] = recompute.read(folder, "parts.json")["tables.payments"]["bounds"]["rows"]["changes"]
    assert change == ROWS["payments"]
