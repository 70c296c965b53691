"""Answers of a model outside the row space of the measurements: marked `extrapolated`, without a linear standard
error.
"""

import numpy as np
import pyarrow.parquet as pq
import pytest

import dpscale as dp
from dpscale.reconstruction.simulated_errors import ERROR_PARTS
from tests.messages import refused
from tests.runs.small import write_job

TRIPLE = [{"family": "marginal", "degree": 3}]


def check_parts(release, names, table, simulated):
    """The squares of the parts add up to the squared error, and the named part is the largest."""
    if not simulated:
        with refused(dp.PlanError):
            release.error_parts(names)
        return
    parts = release.error_parts(names)
    figures = parts[list(ERROR_PARTS)].to_numpy()
    np.testing.assert_allclose((figures**2).sum(axis=1), table["std_error"] ** 2, rtol=1e-5)
    assert parts["largest"].tolist() == [ERROR_PARTS[place] for place in figures.argmax(axis=1)]
    assert parts[names[0]].tolist() == table[names[0]].tolist()
    if len(names) == 1:
        assert set(parts["largest"]) == {"noise"}


def test_least_squares_never_extrapolates(place):
    release = dp.run(write_job(place), place / "run")
    parts = release.error_parts(("sex", "age"))
    np.testing.assert_allclose(parts["noise"], release.table(("sex", "age"))["std_error"])
    assert set(parts["largest"]) == {"noise"}
    assert not release.extrapolates(("age", "sex"))
    assert "extrapolated" not in release.table(("age", "sex")).columns
    assert "extrapolated" not in pq.read_schema(place / "run" / "answers" / "index.parquet").names


@pytest.mark.parametrize("change", [
    {"mechanism": {"name": "aim-grem"}, "privacy": {"epsilon": 0.3, "delta": 1e-9}},
    {"mechanism": {"name": "aim-grem"}, "reconstruct": {"errors": "none"}},
    {"mechanism": {"name": "mst"}},
    {"mechanism": {"name": "mst"}, "reconstruct": {"method": "graphical"}},
])  # fmt: skip
def test_model_marks_sets_without_cell_measurement_as_extrapolated(place, change):
    release = dp.run(write_job(place, workload=TRIPLE, **change), place / "run")
    decisions = release._run.table.measurements.decisions()
    # A selection of nothing measures the empty set, which has no factor.
    by_cell = {order.block.attributes for one in decisions for order in one.requests
               if order.block.factors and all(factor.cells == release.domain[name].size for factor, name
                      in zip(order.block.factors, order.block.attributes, strict=True))}  # fmt: skip
    index = pq.read_table(place / "run" / "answers" / "index.parquet").to_pylist()
    assert any(row["extrapolated"] for row in index)
    for row in index:
        names = tuple(row["attributes"])
        assert release.extrapolates(names) == row["extrapolated"] == (names not in by_cell)
        table = release.table(names)
        assert (table["extrapolated"] == row["extrapolated"]).all()
        simulated = change["mechanism"]["name"] == "aim-grem" and "reconstruct" not in change
        assert np.isfinite(table["std_error"]).all() == simulated
        check_parts(release, names, table, simulated)
    assert not release.extrapolates(("age",))
    if simulated:
        difference = release.difference({"age": 1}, {"age": 2}, share={"code": 1})
        assert difference.extrapolated == release.extrapolates(("age", "code"))
        with refused(dp.PlanError):
            release.test("age", "sex")
    report = (place / "run" / "report.html").read_text()
    assert f"{sum(row['extrapolated'] for row in index)} of {len(index)} sets are extrapolated" in report


def test_maxent_marks_sets_outside_plan_span_as_extrapolated(place):
    pairs = [{"family": "marginal", "attributes": [["age", "sex"], ["income", "code"]]}]
    job = write_job(place, workload=pairs, reconstruct={"method": "maxent"})
    release = dp.run(job, place / "run")
    assert not release.extrapolates(("sex", "age"))
    assert release.extrapolates(("age", "income"))
    assert release.table(("age", "income"))["extrapolated"].all()
    assert np.isnan(release.answer(("age", "income"), query=np.ones((8, 5)))[1])
