"""Signatures and members that users see: keywords after the set, a ledger that charges nothing, few members."""

import inspect

import numpy as np
import pytest

import dpscale as dp
from tests.messages import refused
from tests.runs.small import table, write_job, write_table

OPERANDS = {
    "quantile": ["q"],
    "ratio": ["other"],
    "area": ["query"],
    "share": ["value"],
    "test": ["other"],
}  # positional beside the first argument
FIRST = ("attributes", "attribute", "number", "nodes", "join", "names")


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    place = tmp_path_factory.mktemp("surface")
    write_table(place / "data", table())
    return dp.run(write_job(place), run_dir=place / "run")


def positional(method):
    """Return the names of the parameters after the first that may be given by position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [one for one in inspect.signature(method).parameters.values() if one.name != "self"]
    return [one.name for one in parameters[1:] if one.kind in kinds]


def test_everything_after_the_set_is_given_by_name():
    methods = {
        name: one for name, one in inspect.getmembers(dp.Release, inspect.isfunction) if not name.startswith("_")
    }
    asked = {name: one for name, one in methods.items()
             if (listed := list(inspect.signature(one).parameters)[1:]) and listed[0] in FIRST}  # fmt: skip
    assert {"marginal", "answer", "table", "share", "query_ratio", "mean", "cut", "units"} <= set(asked)
    assert {name: found for name, one in asked.items() if (found := positional(one))} == OPERANDS


def test_marginal_takes_names_or_one_sequence(release):
    np.testing.assert_array_equal(release.marginal("age", "sex"), release.marginal(("age", "sex")))
    assert release.marginal("sex").ndim == 1
    with refused(dp.DpscaleError):
        release.marginal("age", "age")


def test_share_is_one_call(release):
    sex = release.domain["sex"].labels[0]
    found, counts = release.share("sex", sex), release.marginal("sex")
    assert found.estimate == pytest.approx(counts[0] / counts.sum())
    assert found.low < found.estimate < found.high
    by = release.share("sex", sex, by="age")
    both = release.marginal("age", "sex")
    np.testing.assert_allclose(by["estimate"], np.clip(both[:, 0] / both.sum(axis=1), 0, 1))


def test_results_say_whether_they_are_about_the_population(release):
    inside, drawn = (release.share("sex", "F", population=one) for one in (False, True))
    assert (type(inside), type(drawn).__name__) == (dp.Estimate, "PopulationEstimate")
    assert drawn.high - drawn.low > inside.high - inside.low
    assert release.share("sex", "F", by="code", population=True)["population"].all()
    assert release.mean("age", population=True).high > release.mean("age").high
    found = release.odds_ratio({"sex": "F"}, {"code": 1}, reference={"code": [0, 2]}, population=True)
    whole = release.crosstab("sex", "code", population=True)
    counts = whole["estimate"].to_numpy()
    others = counts[:, [0, 2]].sum(axis=1)
    assert found.estimate == pytest.approx(counts[0, 1] / counts[1, 1] / (others[0] / others[1]))
    assert (found.population, whole.attrs["population"]) == (True, True)
    result = release.test("sex", "code", where={"code": [0, 1]})
    assert (result.degrees_of_freedom, result.population) == (1, True)
    assert release.test("sex", "age").p_value < 0.01
    with refused(dp.JobError):
        release.odds_ratio({"sex": "F"}, {"code": 1}, reference={"code": [1, 2]})
    with refused(dp.JobError):
        release.difference({"sex": "F"}, {"sex": "M"}, share={"code": 1}, mean="age")
    with refused(dp.PlanError):
        release.odds_ratio({"sex": "F"}, {"code": 1}, by="age")


def test_attribute_shows_few_members(release):
    shown = [name for name in dir(release.domain["age"]) if not name.startswith("_")]
    assert len(shown) <= 12
    assert all(hasattr(release.domain["age"], name) for name in shown)


def test_exported_ledger_does_not_charge(tmp_path):
    with dp.Ledger.open(tmp_path / "ledger.sqlite") as ledger:
        assert ledger.set_cap("trips", 3.0, 1e-9)
        assert list(ledger.summary()["datasets"]) == ["trips"]
    assert not {"charge", "decide", "commit", "publish"} & set(dir(dp.Ledger))
