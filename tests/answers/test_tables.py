"""Tables of a release: labels of the domain, answers of the release, order of the given attributes."""

import os

import numpy as np
import pandas as pd
import pytest

import dpscale as dp
from dpscale.answers.regression.design import Frames
from dpscale.answers.tables import column, texts
from dpscale.base.errors import PlanError
from dpscale.domain import Domain
from dpscale.domain.attribute import Attribute
from tests.messages import refused
from tests.runs.small import table, write_job, write_table


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    place = tmp_path_factory.mktemp("tables")
    write_table(place / "data", table())
    return dp.run(write_job(place), run_dir=place / "run")


def test_table_rows_equal_marginal_in_given_order(release):
    for names in (("age", "sex"), ("sex", "age")):
        found = release.table(names)
        assert list(found.columns) == [*names, "estimate", "std_error", "low", "high"]
        np.testing.assert_allclose(found["estimate"], release.marginal(names).ravel())
        wide = found.set_index(list(names))["estimate"].unstack()
        np.testing.assert_allclose(wide.loc[:, list(wide.columns)].to_numpy(), release.marginal(names))


def test_table_labels_come_from_domain(release):
    found = release.table(("income",))
    assert found["income"].astype(str).tolist() == ["[0, 10)", "[10, 20)", "[20, 50)", "[50, 100]", "(missing)"]
    assert found["income"].cat.ordered
    assert pd.api.types.is_integer_dtype(release.table(("age",))["age"])
    assert not release.table(("sex",))["sex"].cat.ordered


def test_table_errors_equal_single_answers(release):
    found = release.table(("age", "income"))
    for row in (0, 7, 39):
        query = np.zeros(40)
        query[row] = 1
        estimate, error = release.answer(("age", "income"), query=query.reshape(8, 5))
        assert found["estimate"][row] == pytest.approx(estimate)
        assert found["std_error"][row] == pytest.approx(error)


def test_range_and_prefix_rows_name_their_cells(release):
    ranges, counts = release.table(("age",), family="range"), release.marginal(("age",))
    for row in ranges.itertuples():
        assert row.estimate == pytest.approx(counts[row.age_from : row.age_to + 1].sum())
    found = release.cumulative("income")
    assert next(iter(found.columns)) == "income_at_most"
    np.testing.assert_allclose(found["estimate"], np.cumsum(release.marginal(("income",)))[:4])


def test_arrow_and_polars_frames_equal_pandas(release):
    arrow, polars = (release.table(("age", "income"), frame=frame) for frame in ("arrow", "polars"))
    pd.testing.assert_frame_equal(arrow.to_pandas(), release.table(("age", "income")))
    assert polars["estimate"].to_list() == arrow["estimate"].to_pylist()
    assert polars["income"].cast(str).to_list() == arrow["income"].to_pylist()


def test_joint_intervals_are_wider_and_reproducible(release):
    single, joint = release.table(("age", "sex")), release.table(("age", "sex"), joint=True)
    assert (joint["low"] < single["low"]).all()
    assert joint.equals(release.table(("age", "sex"), joint=True))
    assert release.total(level=0.99).low < release.total(level=0.9).low


def test_group_statistics_have_labels(release):
    found = release.mean("age", by="sex")
    assert list(found.columns) == ["sex", "estimate", "low", "high"]
    assert found["sex"].astype(str).tolist() == ["F", "M"]
    assert release.quantile("income", 0.5).low in (0, 10, 20, 50)


def test_model_without_errors_gives_nan_intervals(release, tmp_path):
    os.symlink(release.path.parent / "data", tmp_path / "data")
    other = dp.run(write_job(tmp_path, reconstruct={"method": "maxent"}), run_dir=tmp_path / "run")
    assert other.table(("age", "sex"))["low"].isna().all()
    assert np.isnan(other.quantile("age", 0.5).low)
    assert other.total().estimate == pytest.approx(4000, abs=400)
    with refused(PlanError):
        other.table(("age", "sex"), joint=True)


def test_plot_accepts_one_or_two_attributes(release):
    assert len(release.plot(("age",)).axes) == 1
    assert len(release.plot(("age", "sex")).axes) == 2
    with refused(dp.JobError):
        release.plot(())


def test_repr_shows_public_facts_only(release):
    workload = dp.Workload(release.domain).add("marginal", degree=2)
    for thing in (release, release.domain, workload, release.plan):
        assert len(repr(thing)) < 300
        assert thing._repr_html_().startswith("<strong>")
    assert "<script>" not in dp.Domain({"<script>": 3})._repr_html_()


def test_privacy_module_lists_conversions_only():
    assert "gdp_mu" in dir(dp.privacy)
    assert all(callable(getattr(dp.privacy, name)) for name in dir(dp.privacy))


def test_texts_of_cells_are_distinct_whatever_the_labels_are():
    for values in (("(missing)", "x"), ("(missing)", "(missing) (cell 2)"), ("x", "(missing)", "(missing) (cell 3)")):
        one = Attribute("a", "categories", values=values, nulls="category")
        found = texts(one)
        assert found[: one.listed] == list(values)
        assert len(set(found)) == one.size, found
        assert column(one, np.arange(one.size)).to_pandas().tolist() == found
        domain = Domain([one, Attribute("b", "coded", high=1)])
        levels = Frames(domain).frame({"a": np.arange(one.size)}, one.size)["a"]
        assert levels.tolist() == found
