"""Costs of growing tables by brute force: runs without noise on neighbouring tables."""

from fractions import Fraction

import numpy as np
import pandas as pd
import pytest

from dpscale.privacy.draws import GaussianDraw
from tests.periods.growing import MONTHS, frames, make_job, measured_cost, release, write

RELEASED = MONTHS[:4]


@pytest.fixture(autouse=True)
def no_noise(monkeypatch):
    """Replace noise by zeros, so that the stored values are the exact combinations of counts."""
    monkeypatch.setattr(GaussianDraw, "words", lambda self, stream, size: np.zeros(size, np.int64))
    monkeypatch.setattr(GaussianDraw, "halves",
                        lambda self, stream, size: (np.zeros(size, np.int64), np.zeros(size, np.uint64)))  # fmt: skip


def run_of(folder, months, column=False, **job):
    folder.mkdir()
    write(folder, months, column)
    return release(make_job(folder, **job), folder / "run", RELEASED)


def added(months, records):
    """Return the table with further records (month, record)."""
    found = dict(months)
    for month, record in records:
        found[month] = pd.concat([found[month], pd.DataFrame([record])], ignore_index=True)
    return found


@pytest.mark.parametrize("column", [False, True])
def test_record_costs_at_most_the_charge(tmp_path, column):
    months = frames(40)
    base = run_of(tmp_path / "base", months, column)
    costs = []
    for number, month in enumerate(RELEASED):
        changed = added(months, [(month, {"a": 1, "b": 2})])
        costs.append(measured_cost(base, run_of(tmp_path / f"more{number}", changed, column)))
    assert max(costs) <= base.spent.gaussian
    assert min(costs) > 0


def test_last_columns_of_the_strategy_reach_the_charge(tmp_path):
    """The largest column norm of R over all periods of the horizon is the charge, up to lattice noise."""
    months = frames(20, MONTHS)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    costs = []
    for number, month in enumerate(MONTHS):
        runs = []
        for name, own in (("one", months), ("two", added(months, [(month, {"a": 0, "b": 0})]))):
            folder = tmp_path / name / str(number)
            folder.mkdir()
            write(folder, own)
            runs.append(release(make_job(folder), folder / "run", MONTHS))
        costs.append(measured_cost(*runs))
    assert max(costs) <= runs[0].spent.gaussian
    assert float(max(costs) / runs[0].spent.gaussian) == pytest.approx(1, abs=1e-6)


UNIT = {"privacy_unit": "who", "max_rows_per_unit": 2}


def unit_records(periods, rows, cells):
    """Return records of a new unit."""
    return [(month, {"a": cells[number % len(cells)][0], "b": cells[number % len(cells)][1], "who": 10_000})
            for number, month in enumerate(RELEASED[:periods]) for _ in range(rows)]  # fmt: skip


@pytest.mark.parametrize("cells", [[(0, 0)], [(0, 0), (1, 1)], [(2, 3), (0, 1), (1, 0)]])
@pytest.mark.parametrize("periods", [1, 2, 4])
def test_unit_in_several_periods_costs_at_most_the_charge(tmp_path, cells, periods):
    months = frames(30, units=12)
    settings = {"data": UNIT, "time": {"max_periods_per_unit": 2}}
    base = run_of(tmp_path / "base", months, **settings)
    more = added(months, unit_records(periods, 5, cells))  # more rows and periods than are declared
    cost = measured_cost(base, run_of(tmp_path / "more", more, **settings))
    assert 0 < cost <= base.spent.gaussian


def test_unit_period_promise_holds_for_one_period(tmp_path):
    months = frames(30, units=12)
    base = run_of(tmp_path / "base", months, data=UNIT)
    cost = measured_cost(base, run_of(tmp_path / "one", added(months, unit_records(1, 3, [(0, 0)])), data=UNIT))
    assert 0 < cost <= base.spent.gaussian


def test_planted_unit_in_several_periods_exceeds_the_unit_period_promise(tmp_path):
    """The check finds a unit whose rows are in more periods than the cost is for."""
    months = frames(30, units=12)
    base = run_of(tmp_path / "base", months, data=UNIT)
    cost = measured_cost(base, run_of(tmp_path / "more", added(months, unit_records(4, 2, [(0, 0)])), data=UNIT))
    assert cost > base.spent.gaussian * Fraction(3, 2)
