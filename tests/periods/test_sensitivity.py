"""Costs of growing tables by brute force: runs without noise on neighbouring tables."""

from fractions import Fraction
from functools import cache

import numpy as np
import pandas as pd
import pytest

from dpscale.privacy.draws import GaussianDraw
from tests.periods.growing import MONTHS, frames, make_job, measured_cost, start, write
from tests.running import run_stages

RELEASED = MONTHS[:4]
UNIT = {"privacy_unit": "who", "max_rows_per_unit": 2}
TABLES = {
    "files": {"months": frames(40, RELEASED)},
    "column": {"months": frames(40, RELEASED), "column": True},
    "units": {"months": frames(30, RELEASED, units=12), "data": UNIT, "time": {"max_periods_per_unit": 2}},
}


@pytest.fixture(scope="module", autouse=True)
def no_noise():
    """Replace noise by zeros, so that the stored values are the exact combinations of counts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GaussianDraw, "words", lambda self, stream, size: np.zeros(size, np.int64))
        patch.setattr(GaussianDraw, "halves",
                      lambda self, stream, size: (np.zeros(size, np.int64), np.zeros(size, np.uint64)))  # fmt: skip
        yield


@pytest.fixture(scope="module")
def measure(tmp_path_factory):
    """Function that measures all months of a table."""

    def measured(months, column=False, **job):
        folder = tmp_path_factory.mktemp("measured")
        write(folder, months, column)
        run = start(make_job(folder, **job), folder / "run")
        for stage in ("plan", "measure"):
            run_stages(run, only=stage)
        assert run.released == list(months)
        return run

    return measured


@pytest.fixture(scope="module")
def base_of(measure):
    """Function that measures a table once, by the name of the table."""
    return cache(lambda name: measure(**TABLES[name]))


def added(months, records):
    """Return the table with further records (month, record)."""
    found = dict(months)
    for month, record in records:
        found[month] = pd.concat([found[month], pd.DataFrame([record])], ignore_index=True)
    return found


@pytest.mark.parametrize(("name", "month"), [("files", 0), ("files", 3), ("column", 1)])
def test_record_costs_at_most_the_charge(measure, base_of, name, month):
    base, table = base_of(name), TABLES[name]
    more = added(table["months"], [(RELEASED[month], {"a": 1, "b": 2})])
    cost = measured_cost(base, measure(**table | {"months": more}))
    assert 0 < cost <= base.spent.gaussian


def test_row_of_the_first_period_reaches_the_charge(measure):
    """Over all periods of the horizon the largest column of R is the charge, up to lattice noise."""
    months = frames(20, MONTHS)
    base, costs = measure(months), []
    for month in (MONTHS[0], MONTHS[3]):
        costs.append(measured_cost(base, measure(added(months, [(month, {"a": 0, "b": 0})]))))
    assert max(costs) <= base.spent.gaussian
    assert float(max(costs) / base.spent.gaussian) == pytest.approx(1, abs=1e-6)


def unit_records(periods, rows, cells):
    """Return records of a new unit."""
    return [(month, {"a": cells[number % len(cells)][0], "b": cells[number % len(cells)][1], "who": 10_000})
            for number, month in enumerate(RELEASED[:periods]) for _ in range(rows)]  # fmt: skip


CASES = [(4, [(0, 0)]), (2, [(0, 0), (1, 1)]), (4, [(2, 3), (0, 1), (1, 0)]), (1, [(1, 2)])]


@pytest.mark.parametrize(("periods", "cells"), CASES)
def test_unit_in_several_periods_costs_at_most_the_charge(measure, base_of, periods, cells):
    """The unit has more rows and periods than are declared: the first of them count."""
    base, table = base_of("units"), TABLES["units"]
    more = added(table["months"], unit_records(periods, 5, cells))
    cost = measured_cost(base, measure(**table | {"months": more}))
    assert 0 < cost <= base.spent.gaussian


def test_unit_period_promise_holds_for_one_period_and_a_planted_unit_exceeds_it(measure):
    """The check finds a unit whose rows are in more periods than the cost is for."""
    months = frames(30, RELEASED, units=12)
    base = measure(months, data=UNIT)
    one, more = (measured_cost(base, measure(added(months, unit_records(periods, 3, [(0, 0)])), data=UNIT))
                 for periods in (1, 4))  # fmt: skip
    assert 0 < one <= base.spent.gaussian
    assert more > base.spent.gaussian * Fraction(3, 2)
