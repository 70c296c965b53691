"""Synthesizer with the interface of scikit-learn: parameters, fit, sample, clone."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

import dpscale as dp
from dpscale.api.public import SpentWarning


@pytest.fixture(autouse=True)
def data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("DPSCALE_DATA", str(tmp_path / "user"))
    warnings.simplefilter("ignore", SpentWarning)
    return tmp_path / "user"


def correlated_frame():
    rng = np.random.default_rng(1)
    first = rng.choice(["x", "y"], 3000, p=[0.7, 0.3])
    second = np.where(rng.random(3000) < 0.9, first == "x", rng.random(3000) < 0.5)
    return pd.DataFrame({"a": first, "b": second, "c": rng.integers(0, 4, 3000)})


def synthesizer(**changes):
    return dp.Synthesizer(dp.Domain(a=["x", "y"], b=bool, c=4), **{"epsilon": 10.0, "degree": 2} | changes)


def test_rows_have_the_columns_values_and_pairs_of_the_data():
    frame = correlated_frame()
    rows = synthesizer().fit(frame).sample(2000)
    assert len(rows) == 2000
    assert sorted(rows.columns) == ["a", "b", "c"]
    assert set(rows["a"]) == {"x", "y"}
    shares, exact = (pd.crosstab(one["a"].astype(str), one["b"], normalize=True) for one in (rows, frame))
    assert np.abs(shares.to_numpy() - exact.to_numpy()).max() < 0.03


def test_samples_cost_nothing_and_a_fit_is_charged_once(data_folder):
    fitted = synthesizer().fit(correlated_frame())
    assert len(fitted.sample(10)) == 10
    assert len(fitted.sample(50)) == 50
    assert len(fitted.sample()) == pytest.approx(3000, abs=100)
    again = synthesizer().fit(correlated_frame())
    assert again.release_.path == fitted.release_.path
    with pytest.warns(SpentWarning, match="epsilon 10"):
        synthesizer().fit(correlated_frame())


def test_parameters_are_those_of_scikit_learn():
    one = synthesizer()
    copy = clone(one).set_params(epsilon=2.0)
    assert (one.epsilon, copy.epsilon, copy.degree) == (10.0, 2.0, 2)
    assert "epsilon=10.0" in repr(one)
    assert one.plan().measurements.mechanism == "aim-grem"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: synthesizer().sample(5), "call fit first"),
        (lambda: synthesizer().set_params(epsilo=1), "'epsilo'"),
        (lambda: synthesizer(epsilon=0).plan(), "privacy.epsilon"),
        (lambda: dp.Synthesizer({"a": 3}, epsilon=1).plan(), "a Domain"),
        (lambda: synthesizer(mechanism="aim").plan().measurements, "mechanism"),
        (lambda: synthesizer().fit(correlated_frame()).sample(0), "synthesize"),
    ],
)
def test_wrong_calls_get_one_sentence(call, says):
    with pytest.raises(dp.DpscaleError) as error:
        call()
    assert says in str(error.value)


@pytest.mark.parametrize("mechanism", ["aim-grem", "mst"])
def test_rows_given_values_have_the_distribution_of_the_release(mechanism):
    frame = correlated_frame()
    fitted = synthesizer(mechanism=mechanism).fit(frame)
    rows = fitted.sample(2000, given={"a": "y"})
    assert len(rows) == 2000
    assert set(rows["a"]) == {"y"}
    assert rows.dtypes.equals(fitted.sample(10).dtypes)
    told = fitted.release_.conditional("b", given={"a": "y"})
    expected = dict(zip(told["b"].astype(str).str.lower(), told["probability"], strict=True))["true"]
    share = (rows["b"].astype(str).str.lower() == "true").mean()
    exact = (frame["b"][frame["a"] == "y"]).mean()
    assert share == pytest.approx(exact, abs=0.06)
    assert share == pytest.approx(expected, abs=0.03)
    assert set(fitted.sample(500, given={"a": "y", "c": [1, 2]})["c"]) == {1, 2}
    assert len(fitted.sample(given={"a": "y"})) == pytest.approx((frame["a"] == "y").sum(), rel=0.1)


@pytest.mark.parametrize("mechanism", ["aim-grem", "mst"])
def test_random_state_names_another_draw(mechanism):
    fitted = synthesizer(mechanism=mechanism).fit(correlated_frame())
    first, again, other = (fitted.sample(300, random_state=state) for state in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)
    given = [fitted.sample(300, given={"a": "x"}, random_state=state) for state in (None, None, 4)]
    assert given[0].equals(given[1])
    assert not given[0].equals(given[2])


def test_rare_and_unknown_values_are_refused(monkeypatch):
    from dpscale.runs.stages import conditional_rows

    fitted = synthesizer().fit(correlated_frame())
    with pytest.raises(dp.JobError, match=r"value: 'z' of a; expected labels of its cells"):
        fitted.sample(3, given={"a": "z"})
    with pytest.raises(dp.JobError, match=r"random_state: 'one'; expected a whole number"):
        fitted.sample(3, random_state="one")
    with pytest.raises(dp.JobError, match=r"synthesize\.rows"):
        fitted.sample(-3, given={"a": "x"})
    monkeypatch.setattr(conditional_rows, "MOST_DRAWN", 10)
    with pytest.raises(dp.PlanError, match=r"given: values of 0\.\d+ of the rows, for which over 10 rows .*aim-pgm or"):
        fitted.sample(9, given={"a": "y"})
